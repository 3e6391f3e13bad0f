"""Commands about instances and the hosts that they are on."""
