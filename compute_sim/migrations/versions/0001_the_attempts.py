"""Creates the table of attempts on a cell's hosts."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "compute_attempts",
        sa.Column("cell", sa.String(40), nullable=False),
        sa.Column("host", sa.Uuid(), nullable=False),
        sa.Column("instance", sa.Uuid(), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("cell", "host", "instance", "attempt", name="pk_compute_attempts"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    op.drop_table("compute_attempts")
