"""The names of instances, and of groups, can be looked up."""

import msgspec
import sqlalchemy as sa
from alembic.operations import Operations

from bus.sql.types import Id

revision = "0012"
down_revision = "0011"

PAGE = 1000

_instances = sa.table(
    "requested_instances", sa.column("id", Id), sa.column("given", sa.LargeBinary()), sa.column("name")
)
_IS_NAMED = sa.text("name IS NOT NULL")


def upgrade(op: Operations) -> None:
    op.add_column("requested_instances", sa.Column("name", sa.Text()))
    _write_names(op.get_bind())
    op.create_index(
        "ix_requested_instances_name_project_id",
        "requested_instances",
        ["name", "project", "id"],
        postgresql_where=_IS_NAMED,
        sqlite_where=_IS_NAMED,
    )
    op.create_index("ix_known_groups_name", "known_groups", ["name"])


def _write_names(connection: sa.Connection) -> None:
    """Write the name of each instance that has one into its own column, from what its request gave."""
    page = sa.select(_instances.c.id, _instances.c.given).order_by(_instances.c.id).limit(PAGE)
    write = (
        sa.update(_instances)
        .where(_instances.c.id == sa.bindparam("instance"))
        .values(name=sa.bindparam("its_name"))
    )
    rows = connection.execute(page).all()
    while rows:
        # The second value of what was given.
        named = [
            {"instance": id_, "its_name": name}
            for id_, given in rows
            if (name := msgspec.msgpack.decode(given)[1])
        ]
        if named:
            connection.execute(write, named)
        rows = connection.execute(page.where(_instances.c.id > rows[-1].id)).all()
