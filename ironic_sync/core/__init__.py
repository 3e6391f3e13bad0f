"""The rules: the meaning of notifications, the offers of nodes, the order of updates, and the owners of nodes. Pure."""
