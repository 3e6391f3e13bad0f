"""Pretends to be many hypervisors, honest and bad ones, behind the update_provider_tree contract."""
