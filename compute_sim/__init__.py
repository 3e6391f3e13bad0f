"""Simulates many hypervisors, reliable and faulty ones, behind the update_provider_tree contract."""
