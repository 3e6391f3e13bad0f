"""The first tables, from which later releases upgrade. It has no steps: a new database gets its tables from tables.py."""

revision = "0100"
down_revision = None
