"""What ended long ago is found by its time, to be forgotten."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_INDEX = "ix_requested_instances_ended_at"


def upgrade() -> None:
    ended = sa.text("ended_at IS NOT NULL")
    op.create_index(_INDEX, "requested_instances", ["ended_at"], postgresql_where=ended, sqlite_where=ended)


def downgrade() -> None:
    op.drop_index(_INDEX, "requested_instances")
