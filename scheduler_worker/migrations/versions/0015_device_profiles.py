"""Device profiles that flavors may name."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0015"
down_revision = "0014"


def upgrade(op: Operations) -> None:
    op.create_table(
        "known_device_profiles",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("profile", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_known_device_profiles"),
    )
