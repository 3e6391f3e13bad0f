"""A worker whose tables have changed twice since its first release."""

from sqlalchemy import Column, Index, Integer, MetaData, String, Table

metadata = MetaData()

crates = Table(
    "crates",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("name", String(32), nullable=False),
    Column("colour", String(32), nullable=False, server_default="grey"),
    Index("uq_crates_name_colour", "name", "colour", unique=True),
)
