"""Applications, and the projects that each speaks for."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "known_applications",
        sa.Column("name", sa.String(64), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_known_applications"),
    )


def downgrade() -> None:
    op.drop_table("known_applications")
