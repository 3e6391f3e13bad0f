"""Owns the instances of one cell; retries alternates; never calls up."""
