"""Keeps placement true about bare metal: shares nodes among daemons by a hash ring, and re-homes them."""
