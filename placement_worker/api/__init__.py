"""Placement over HTTP: a translation, there and back. The rules themselves are in core/, and the bus has the same ones."""
