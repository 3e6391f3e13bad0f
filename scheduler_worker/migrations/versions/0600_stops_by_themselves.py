"""An index for the instances that have stopped by themselves: keepers ask for those that died."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0600"
down_revision = "0500"


def upgrade(op: Operations) -> None:
    where = sa.text("what = 'stopped'")
    op.create_index(
        "ix_instance_changes_by_themselves",
        "instance_changes",
        ["instance"],
        postgresql_where=where,
        sqlite_where=where,
    )
