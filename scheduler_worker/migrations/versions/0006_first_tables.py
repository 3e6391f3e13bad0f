"""The first tables that a later release upgrades. It has no steps: a new database gets its tables from tables.py."""

revision = "0006"
down_revision = None
