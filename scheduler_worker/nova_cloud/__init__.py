"""Reads and hears a Nova that schedules through us: its compute API, its API database, and its notifications.

settings.py    the section [nova_cloud].
databases.py   opens Nova's databases, read-only, and checks their versions (versions.py).
rest.py        the compute API.
reading.py     reads all of a Nova: hosts, services, aggregates, cells.
holders.py     which of these instances and migrations does Nova know? For the audit.
keeping.py     the part that keeps what was read true, by notifications and by reading again.
"""
