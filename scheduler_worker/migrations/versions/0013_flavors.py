"""Flavors that build requests may name."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0013"
down_revision = "0012"


def upgrade(op: Operations) -> None:
    op.create_table(
        "known_flavors",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("flavor", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_known_flavors"),
    )
