"""Names and metadata of aggregates."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "aggregates_metadata",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_aggregates_metadata"),
        sa.UniqueConstraint("name", name="uq_aggregates_metadata_name"),
    )


def downgrade() -> None:
    op.drop_table("aggregates_metadata")
