"""The whole cloud at a glance: `moor status` and `moor top`."""
