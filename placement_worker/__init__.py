"""Placement: providers, inventories, traits, aggregates and allocations. Only this room may answer "claimed"."""
