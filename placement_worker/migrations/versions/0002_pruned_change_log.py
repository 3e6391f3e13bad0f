"""Note how much of the change log was pruned: a reader that was away for longer cannot be told what changed.

How much was pruned before this migration is not known, so everything committed so far counts as pruned.
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None

_FORGOTTEN = {
    "postgresql": "pg_current_snapshot()::text",
    "sqlite": "CAST(COALESCE((SELECT seq FROM sqlite_sequence WHERE name = 'change_log'), 0) AS TEXT)",
}


def upgrade() -> None:
    op.add_column("feed", sa.Column("forgotten", sa.String(), server_default="", nullable=False))
    forgotten: sa.ColumnClause[str] = sa.literal_column(_FORGOTTEN[op.get_bind().dialect.name])
    feed = sa.table("feed", sa.column("cursor"), sa.column("forgotten"))
    # Where nothing was ever published, nothing was pruned.
    op.execute(sa.update(feed).where(feed.c.cursor != "").values(forgotten=forgotten))


def downgrade() -> None:
    with op.batch_alter_table("feed") as feed:
        feed.drop_column("forgotten")
