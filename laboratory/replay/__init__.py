"""Plays a trace of arrivals against the choice of hosts itself, under one policy and another: `moor replay`."""
