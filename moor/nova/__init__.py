"""Commands about a Nova beside which, or in place of whose scheduler, Moorage works."""
