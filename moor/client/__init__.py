"""The public Python client."""
