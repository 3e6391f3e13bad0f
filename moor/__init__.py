"""The door people use: the `moor` command."""
