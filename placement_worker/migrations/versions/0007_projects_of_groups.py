"""The project of a server group: that for which the API level has claimed members."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0007"
down_revision = "0006"


def upgrade(op: Operations) -> None:
    op.add_column("server_groups", sa.Column("project_id", sa.String(255)))
