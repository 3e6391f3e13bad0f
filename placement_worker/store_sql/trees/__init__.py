"""Rows of providers and their trees."""
