"""Commands about hosts, cells and aggregates."""
