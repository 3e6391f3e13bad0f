"""Owns the choice: requests, filters, weighers, claims with retries, alternates, explanations, moves."""
