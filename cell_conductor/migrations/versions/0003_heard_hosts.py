"""Adds the table of hosts that conductors have heard, and whether they fell silent."""

import sqlalchemy as sa
from alembic.operations import Operations

from bus.sql.types import Id

revision = "0003"
down_revision = "0002"


def upgrade(op: Operations) -> None:
    op.create_table(
        "cell_heard_hosts",
        sa.Column("id", Id, nullable=False),
        sa.Column("cell", sa.String(40), nullable=False),
        sa.Column("silent_since_us", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id", "cell", name="pk_cell_heard_hosts"),
    )
