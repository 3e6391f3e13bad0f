"""Writes of operators and clients: providers and what they have, names, allocations, reshapes."""
