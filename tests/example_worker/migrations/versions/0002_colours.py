import sqlalchemy as sa
from alembic.operations import Operations

revision = "0002"
down_revision = "0001"


def upgrade(op: Operations) -> None:
    op.add_column("crates", sa.Column("colour", sa.String(32), server_default="grey", nullable=False))
