"""The hosts as plugins see them: columns and facts, with the choices of the batch."""
