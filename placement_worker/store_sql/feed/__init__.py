"""Reads what was written: changes for the feed, and pages of providers for readers that start or were away."""
