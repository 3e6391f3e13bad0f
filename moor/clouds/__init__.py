"""Commands that run workers and whole clouds, and prepare their databases."""
