"""Decides what an import does, from values that were read before."""
