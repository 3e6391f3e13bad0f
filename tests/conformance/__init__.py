"""Whether we are what clients of OpenStack's Placement take us for: judged by upstream's own suite, and by its clients."""
