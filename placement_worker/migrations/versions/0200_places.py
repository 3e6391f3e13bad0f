"""Places of hosts, and the rules of server groups that stand on them."""

import sqlalchemy as sa
from alembic.operations import Operations

from kit.sql.statements import InternalId

revision = "0200"
down_revision = "0100"


def upgrade(op: Operations) -> None:
    op.create_table(
        "provider_places",
        sa.Column("provider_id", InternalId, sa.ForeignKey("providers.id"), primary_key=True),
        sa.Column("set_by_operator", sa.Boolean, primary_key=True),
        sa.Column("place", sa.String(255), primary_key=True),
        sqlite_with_rowid=False,
    )
    op.add_column("server_groups", sa.Column("rules", sa.Text))
