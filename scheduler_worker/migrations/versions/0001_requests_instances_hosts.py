"""Requests, instances and hosts as they were first kept."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_MOMENT = sa.DateTime(timezone=True).with_variant(sa.String(32), "sqlite")


def upgrade() -> None:
    op.create_table(
        "build_requests",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("digest", sa.LargeBinary(), nullable=False),
        sa.Column("instances", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_build_requests"),
    )
    op.create_table(
        "requested_instances",
        sa.Column("id", sa.Uuid(), nullable=False),
        sa.Column("request_id", sa.Uuid(), nullable=False),
        sa.Column("state", sa.String(32), nullable=False),
        sa.Column("changed_at", _MOMENT, nullable=False),
        sa.Column("due_at", _MOMENT),
        sa.Column("unsaid", sa.BigInteger()),
        sa.Column("body", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_requested_instances"),
        postgresql_with={"fillfactor": 50},
    )
    op.create_index("ix_requested_instances_request_id", "requested_instances", ["request_id"])
    for column in ("due_at", "unsaid"):
        known = sa.text(f"{column} IS NOT NULL")
        op.create_index(
            f"ix_requested_instances_{column}",
            "requested_instances",
            [column],
            postgresql_where=known,
            sqlite_where=known,
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
    for table in ("known_hosts", "requested_instances", "build_requests"):
        op.drop_table(table)
