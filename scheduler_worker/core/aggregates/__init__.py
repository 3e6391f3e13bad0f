"""The rules about host aggregates: what metadata may say, and what an order changes."""
