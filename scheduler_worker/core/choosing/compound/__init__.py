"""Hosts that are more than one provider: their children and pools, and what each of these gives."""
