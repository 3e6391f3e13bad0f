"""Images that build requests may name."""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0014"
down_revision = "0013"


def upgrade(op: Operations) -> None:
    op.create_table(
        "known_images",
        sa.Column("name", sa.String(255), nullable=False),
        sa.Column("image", sa.LargeBinary(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_known_images"),
    )
