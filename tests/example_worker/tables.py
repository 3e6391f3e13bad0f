"""A worker whose tables have changed twice since its first release."""

from sqlalchemy import Column, Integer, MetaData, String, Table, UniqueConstraint

metadata = MetaData()

crates = Table(
    "crates",
    metadata,
    Column("id", Integer, primary_key=True),
    Column("name", String(32), nullable=False),
    Column("colour", String(32), nullable=False, server_default="grey"),
    UniqueConstraint("name", "colour"),
)
