"""Instances that wait for room, and the lease of the worker that tries them."""

import sqlalchemy as sa
from alembic.operations import Operations

from bus.sql.types import Id, Moment

revision = "0007"
down_revision = "0006"


def upgrade(op: Operations) -> None:
    op.create_table(
        "waiting_instances",
        sa.Column("id", Id, nullable=False),
        sa.Column("precedence", sa.Integer(), nullable=False),
        sa.Column("since", Moment, nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("build", sa.LargeBinary(), nullable=False),
        sa.Column("is_woken", sa.Boolean()),
        sa.PrimaryKeyConstraint("id", name="pk_waiting_instances"),
    )
    op.create_index(
        "ix_waiting_instances_precedence_since_id", "waiting_instances", ["precedence", "since", "id"]
    )
    op.create_index("ix_waiting_instances_digest", "waiting_instances", ["digest"])
    op.create_index(
        "ix_waiting_instances_is_woken",
        "waiting_instances",
        ["is_woken"],
        postgresql_where=sa.text("is_woken IS NOT NULL"),
        sqlite_where=sa.text("is_woken IS NOT NULL"),
    )
    op.create_table(
        "waking_lease",
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("holder", Id, nullable=False),
        sa.Column("held_until", Moment, nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_waking_lease"),
    )
