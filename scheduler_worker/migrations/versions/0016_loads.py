"""Loads of hosts, written beside their rows."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0016"
down_revision = "0015"


def upgrade(op: Operations) -> None:
    op.add_column("known_hosts", sa.Column("sequence", sa.BigInteger()))
    op.add_column("known_hosts", sa.Column("load", sa.LargeBinary()))
    if op.get_bind().dialect.name == "postgresql":
        # Counts for pages that are written from now on.
        op.execute("ALTER TABLE known_hosts SET (fillfactor = 70)")
