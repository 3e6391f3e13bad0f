"""Commands that move and rebuild instances, and that empty hosts."""
