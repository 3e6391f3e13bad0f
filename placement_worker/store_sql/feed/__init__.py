"""Reads the changes that were written, for the feed and for snapshots."""
