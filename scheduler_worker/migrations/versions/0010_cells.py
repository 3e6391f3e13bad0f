"""When each cell was last heard."""

import sqlalchemy as sa
from alembic.operations import Operations

from bus.sql.types import Moment

revision = "0010"
down_revision = "0009"


def upgrade(op: Operations) -> None:
    op.create_table(
        "known_cells",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("heard_at", Moment, nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_known_cells"),
    )
