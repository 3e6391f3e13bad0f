"""An index for how many instances of a project have no host, which its limit counts."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0300"
down_revision = "0200"


def upgrade(op: Operations) -> None:
    without_host = sa.text("host = '' AND ended_at IS NULL")
    op.create_index(
        "ix_requested_instances_without_host",
        "requested_instances",
        ["project"],
        postgresql_where=without_host,
        sqlite_where=without_host,
    )
