"""Quotas of projects, and what a migration that has made its instance smaller counts of one."""

import sqlalchemy as sa
from alembic.operations import Operations

from bus.sql.types import InternalId

revision = "0008"
down_revision = "0007"


def upgrade(op: Operations) -> None:
    op.add_column("consumers", sa.Column("kept", sa.Text()))
    op.create_table(
        "quotas",
        sa.Column("id", InternalId, sa.Identity(), nullable=False),
        sa.Column("project_id", sa.String(255), nullable=False),
        sa.Column("limits", sa.Text(), nullable=False),
        sa.Column("used", sa.Text(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_quotas"),
        sa.UniqueConstraint("project_id", name="uq_quotas_project_id"),
        sqlite_autoincrement=True,
    )
