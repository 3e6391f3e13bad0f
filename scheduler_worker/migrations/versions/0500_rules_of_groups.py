"""Server groups have rules for domains. Rows that release 0.1.0 writes have none."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0500"
down_revision = "0400"


def upgrade(op: Operations) -> None:
    op.add_column("known_groups", sa.Column("rules", sa.Text))
