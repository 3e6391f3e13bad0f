"""Adds the table of hosts whose mode an operator has set."""

import sqlalchemy as sa
from alembic.operations import Operations

from bus.sql.types import Id

revision = "0002"
down_revision = "0001"


def upgrade(op: Operations) -> None:
    op.create_table(
        "cell_hosts",
        sa.Column("id", Id, nullable=False),
        sa.Column("cell", sa.String(40), nullable=False),
        sa.Column("writes", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", "cell", name="pk_cell_hosts"),
    )
