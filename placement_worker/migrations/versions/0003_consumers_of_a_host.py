"""How many consumers have each provider as their host, since a claim may limit that number."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"
branch_labels = None
depends_on = None

_COUNT = """
UPDATE providers SET consumers = living.number
FROM (SELECT host, count(*) AS number FROM consumers WHERE held <> '{}' GROUP BY host) AS living
WHERE living.host = providers.uuid
"""


def upgrade() -> None:
    op.add_column("providers", sa.Column("consumers", sa.BigInteger(), server_default="0", nullable=False))
    op.execute(_COUNT)


def downgrade() -> None:
    with op.batch_alter_table("providers") as providers:
        providers.drop_column("consumers")
