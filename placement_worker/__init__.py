"""Owns providers, inventories, traits, aggregates and allocations; the only one that may say "claimed"."""
