"""A worker process for its operators: start and end, health and metrics."""
