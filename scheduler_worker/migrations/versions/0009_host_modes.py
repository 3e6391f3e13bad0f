"""Hosts have a mode. A host that was disabled is draining now, for the same reason."""

import json

import sqlalchemy as sa
from alembic.operations import Operations

from bus.sql.types import Id

revision = "0009"
down_revision = "0008"

_HOSTS = sa.table(
    "known_hosts",
    sa.column("id", Id),
    sa.column("enabled", sa.Boolean()),
    sa.column("body", sa.LargeBinary()),
)


def upgrade(op: Operations) -> None:
    connection = op.get_bind()
    disabled = connection.execute(sa.select(_HOSTS.c.id, _HOSTS.c.body).where(_HOSTS.c.enabled.is_(False)))
    for id_, body in disabled.all():
        host = json.loads(body)
        reason = host.get("disabled_reason", "")
        host["setting"] = {"mode": "draining", "reason": reason, "number": 1}
        connection.execute(sa.update(_HOSTS).where(_HOSTS.c.id == id_).values(body=json.dumps(host).encode()))
    op.drop_column("known_hosts", "enabled")
