"""Decide the writes by name: providers and what they have, custom classes and traits, allocations, reshapes."""
