"""Which nodes Ironic tells an older state of, and when a daemon last took an instance off one by itself."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0101"
down_revision = "0100"


def upgrade(op: Operations) -> None:
    op.add_column(
        "ironic_nodes", sa.Column("is_older", sa.Boolean, nullable=False, server_default=sa.false())
    )
    op.add_column("ironic_nodes", sa.Column("unasked_us", sa.BigInteger))
