"""Instances in the order of their names and of their hosts. The index by name makes room for one by the name as it sorts.

Workers put the names of rows in order that release 0.1.0 has written before, or still writes: until then these rows are found by
neither (`put_names_in_order`).
"""

import sqlalchemy as sa
from alembic.operations import Operations

revision = "0200"
down_revision = "0100"


def upgrade(op: Operations) -> None:
    text = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")
    op.add_column("requested_instances", sa.Column("name_order", text))
    op.create_index("ix_requested_instances_name_order_id", "requested_instances", ["name_order", "id"])
    living = sa.text("ended_at IS NULL")
    op.create_index(
        "ix_requested_instances_cell_host_name_order_id",
        "requested_instances",
        ["cell", "host", "name_order", "id"],
        postgresql_where=living,
        sqlite_where=living,
    )
    op.drop_index("ix_requested_instances_name_project_id", "requested_instances")
