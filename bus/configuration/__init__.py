"""The settings of the bus and of databases, the addresses of brokers and databases, and how settings are read."""
