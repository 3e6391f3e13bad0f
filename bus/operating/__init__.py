"""What operators see of a worker process: its start and end, its health and its metrics."""
