"""Instances and hosts as they were first kept."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True).with_variant(sa.String(32), "sqlite")


def upgrade() -> None:
    op.create_table(
        "requested_instances",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("request_id", sa.Uuid()),
        sa.Column("place", sa.Integer()),
        sa.Column("project", sa.String(64)),
        sa.Column("given", sa.LargeBinary(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("heard", sa.BigInteger(), nullable=False),
        sa.Column("cell", sa.String(255), nullable=False),
        sa.Column("host", sa.String(255), nullable=False),
        sa.Column("attempt", sa.BigInteger(), nullable=False),
        sa.Column("changed_at", _MOMENT, nullable=False),
        sa.Column("due_at", _MOMENT),
        sa.Column("ended_at", _MOMENT),
        sa.Column("unsaid", sa.BigInteger()),
        sa.Column("place_order", sa.LargeBinary()),
        sa.Column("troubles", sa.LargeBinary()),
        sa.PrimaryKeyConstraint("id", name="pk_requested_instances"),
        postgresql_with={"fillfactor": 70},
    )
    op.create_index(
        "ix_requested_instances_request_id_place", "requested_instances", ["request_id", "place"], unique=True
    )
    is_due = sa.text("due_at IS NOT NULL")
    op.create_index(
        "ix_requested_instances_due_at",
        "requested_instances",
        ["due_at"],
        postgresql_where=is_due,
        sqlite_where=is_due,
    )
    of_a_project = sa.text("project IS NOT NULL")
    op.create_index(
        "ix_requested_instances_project_id",
        "requested_instances",
        ["project", "id"],
        postgresql_where=of_a_project,
        sqlite_where=of_a_project,
    )
    op.create_table(
        "request_notes",
        sa.Column(
            "number", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), sa.Identity(), nullable=False
        ),
        sa.Column("at", _MOMENT, nullable=False),
        sa.Column("placed", sa.LargeBinary(), nullable=False),
        sa.Column("others", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("number", name="pk_request_notes"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "known_hosts",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("cell", sa.String(255), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("changed_at", _MOMENT, nullable=False),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_known_hosts"),
    )
    op.create_index("ix_known_hosts_name", "known_hosts", ["name"])
    op.create_index("ix_known_hosts_changed_at", "known_hosts", ["changed_at"])


def downgrade() -> None:
    for table in ("known_hosts", "request_notes", "requested_instances"):
        op.drop_table(table)
