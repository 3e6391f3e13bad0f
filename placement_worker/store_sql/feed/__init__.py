"""What was written, read for the feed of changes and for snapshots."""
