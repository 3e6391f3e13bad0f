"""Orders for instances, and how they ended."""

import sqlalchemy as sa
from alembic.operations import Operations

from bus.sql.types import Id, Moment

revision = "0008"
down_revision = "0007"


def upgrade(op: Operations) -> None:
    op.create_table(
        "instance_changes",
        sa.Column("instance", Id, nullable=False),
        sa.Column("number", sa.BigInteger(), nullable=False),
        sa.Column("what", sa.String(32), nullable=False),
        sa.Column("cell", sa.String(255), nullable=False),
        sa.Column("asked_at", Moment, nullable=False),
        sa.Column("by", sa.String(255), nullable=False),
        sa.Column("request_id", Id),
        sa.Column("source", sa.String(255), nullable=False),
        sa.Column("destination", sa.String(255), nullable=False),
        sa.Column("ended_at", Moment),
        sa.Column("ended_by", sa.String(255), nullable=False),
        sa.Column("outcome", sa.String(32), nullable=False),
        sa.Column("failure", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("instance", "number", name="pk_instance_changes"),
    )
    op.create_index("ix_instance_changes_asked_at", "instance_changes", ["asked_at"])
    op.create_index(
        "ix_instance_changes_open",
        "instance_changes",
        ["asked_at"],
        postgresql_where=sa.text("ended_at IS NULL"),
        sqlite_where=sa.text("ended_at IS NULL"),
    )
