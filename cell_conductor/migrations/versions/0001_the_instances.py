"""Creates the tables for the instances of a cell."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_INTERNAL_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_DUE = sa.text("due_us IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "cell_instances",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("cell", sa.String(40), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("due_us", sa.BigInteger()),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.Column("placed", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("id", "cell", name="pk_cell_instances"),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index(
        "ix_cell_instances_cell_due_us",
        "cell_instances",
        ["cell", "due_us"],
        postgresql_where=_DUE,
        sqlite_where=_DUE,
    )
    op.create_table(
        "cell_notes",
        sa.Column("number", _INTERNAL_ID, sa.Identity(), nullable=False),
        sa.Column("cell", sa.String(40), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("said", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_cell_notes"),
        sqlite_autoincrement=True,
    )


def downgrade() -> None:
    op.drop_table("cell_notes")
    op.drop_table("cell_instances")
