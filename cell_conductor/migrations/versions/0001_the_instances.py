"""The instances of a cell as they were first written down."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_DUE = sa.text("due_us IS NOT NULL")
_UNSAID = sa.text("unsaid_from IS NOT NULL")


def upgrade() -> None:
    op.create_table(
        "cell_instances",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("cell", sa.String(40), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("due_us", sa.BigInteger()),
        sa.Column("unsaid_from", sa.BigInteger()),
        sa.Column("unsaid_to", sa.BigInteger()),
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
    op.create_index(
        "ix_cell_instances_cell_unsaid_from",
        "cell_instances",
        ["cell", "unsaid_from"],
        postgresql_where=_UNSAID,
        sqlite_where=_UNSAID,
    )


def downgrade() -> None:
    op.drop_table("cell_instances")
