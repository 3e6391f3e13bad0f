"""The size that a resize asks for, in the history."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0011"
down_revision = "0010"


def upgrade(op: Operations) -> None:
    op.add_column("instance_changes", sa.Column("size", sa.LargeBinary()))
