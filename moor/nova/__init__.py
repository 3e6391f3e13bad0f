"""Commands about a Nova beside which, or in the stead of whose scheduler, Moorage works."""
