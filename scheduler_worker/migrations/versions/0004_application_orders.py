"""When the latest order about each application was sent."""

import sqlalchemy as sa
from alembic import op

from bus.sql.types import Moment

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "application_orders",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("sent_at", Moment(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_application_orders"),
    )


def downgrade() -> None:
    op.drop_table("application_orders")
