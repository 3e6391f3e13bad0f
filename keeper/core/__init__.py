"""Decisions about campaigns and movements. No clock, no chance, no input and no output."""
