"""Server groups."""

import sqlalchemy as sa
from alembic import op

from bus.sql.types import Id, Moment

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "known_groups",
        sa.Column("id", Id, nullable=False),
        sa.Column("project", sa.String(64), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("policy", sa.String(32), nullable=False),
        sa.Column("max_per_host", sa.Integer(), nullable=False),
        sa.Column("deleted_at", Moment()),
        sa.PrimaryKeyConstraint("id", name="pk_known_groups"),
    )
    op.create_index("ix_known_groups_project_id", "known_groups", ["project", "id"])


def downgrade() -> None:
    op.drop_table("known_groups")
