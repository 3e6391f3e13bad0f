"""Commands that run workers, whole clouds, the demo and the load test."""
