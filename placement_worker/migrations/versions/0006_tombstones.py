"""An index of the rows that a release left before any claim: each owner has a bound on them."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0006"
down_revision = "0005"


def upgrade(op: Operations) -> None:
    where = sa.text("generation = 0 AND ended_at IS NOT NULL")
    op.create_index(
        "ix_consumers_tombstones",
        "consumers",
        ["cell", "project_id"],
        postgresql_where=where,
        sqlite_where=where,
    )
