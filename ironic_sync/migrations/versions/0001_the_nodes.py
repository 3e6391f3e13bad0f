"""The nodes and the daemons as they were first written down."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "ironic_nodes",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("cell", sa.String(40), nullable=False),
        sa.Column("owner", sa.String(63), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("holds_instance", sa.Boolean(), nullable=False),
        sa.Column("due_us", sa.BigInteger()),
        sa.Column("needs_report", sa.Boolean(), nullable=False),
        sa.Column("needs_read", sa.Boolean(), nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_ironic_nodes"),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index("ix_ironic_nodes_owner_id", "ironic_nodes", ["owner", "id"])
    for name, columns, where in (
        ("ix_ironic_nodes_owner_due_us", ["owner", "due_us"], "due_us IS NOT NULL"),
        ("ix_ironic_nodes_to_report", ["owner", "id"], "needs_report"),
        ("ix_ironic_nodes_to_read", ["owner", "id"], "needs_read"),
    ):
        op.create_index(
            name, "ironic_nodes", columns, postgresql_where=sa.text(where), sqlite_where=sa.text(where)
        )
    op.create_table(
        "ironic_daemons",
        sa.Column("name", sa.String(63), nullable=False),
        sa.Column("incarnation", sa.String(36), nullable=False),
        sa.Column("lease_ends_us", sa.BigInteger(), nullable=False),
        sa.Column("is_draining", sa.Boolean(), nullable=False),
        sa.Column("joined_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_ironic_daemons"),
    )


def downgrade() -> None:
    op.drop_table("ironic_daemons")
    op.drop_table("ironic_nodes")
