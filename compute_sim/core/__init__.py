"""The decisions of a compute: how it answers orders, and what it reports of a host's tree."""
