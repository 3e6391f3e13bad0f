"""Providers remember what their reporter last reported of inventories that were written by name since.

A provider that exists already counts as reported: which of its inventories were written by name is not known.
"""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0005"
down_revision = "0004"


def upgrade(op: Operations) -> None:
    op.add_column("providers", sa.Column("reported", sa.Text, nullable=False, server_default="{}"))
