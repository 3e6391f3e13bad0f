"""The first migration, from which later releases upgrade.

It changes nothing: a new database gets its tables from tables.py.
"""

revision = "0001"
down_revision = None
