"""Indexes for how many instances of a project have no host, or were deleted without one, which its limit counts."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0300"
down_revision = "0200"


def upgrade(op: Operations) -> None:
    for name, condition in (
        ("without_host", "host = '' AND ended_at IS NULL"),
        ("deleted_unplaced", "cell = 'cell0' AND ended_at IS NOT NULL"),
    ):
        where = sa.text(condition)
        op.create_index(
            f"ix_requested_instances_{name}",
            "requested_instances",
            ["project"],
            postgresql_where=where,
            sqlite_where=where,
        )
