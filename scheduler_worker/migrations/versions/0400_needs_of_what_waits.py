"""Each row of what waits for room has what it waits for. Rows that release 0.1.0 has written, or still writes, have it not."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0400"
down_revision = "0300"


def upgrade(op: Operations) -> None:
    op.add_column("waiting_instances", sa.Column("needs", sa.LargeBinary()))
