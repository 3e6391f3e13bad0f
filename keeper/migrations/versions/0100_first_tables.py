"""The first tables. It has no steps: a database gets its tables from tables.py."""

revision = "0100"
down_revision = None
