"""Commands about bare-metal nodes and the ring of daemons."""
