"""The revision with which upgrades begin. There are no steps: a new database gets its tables from tables.py."""

revision = "0006"
down_revision = None
