"""Settings of the bus and of databases, the address of each part, and how a setting is read."""
