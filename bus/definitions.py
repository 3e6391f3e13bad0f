"""The topology in RabbitMQ's format.

Users and permissions are written as `rabbitmqctl import_definitions` reads them. Queues get the arguments that
give each kind of queue its properties on RabbitMQ 3.10.

Pure: passwords and salt are arguments, and nothing is sent. The rights come from bus/permissions.py; the
memory broker enforces the same rights.
"""

import base64
import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

from bus.permissions import NAMED_BY_RABBITMQ, Rights, joined, rights_of
from bus.topology import (
    DEAD_LETTERS,
    EVERY_SITE,
    IRONIC_INBOX,
    QUEUES,
    ROLES,
    Application,
    Exchange,
    Limits,
    Queue,
    Role,
    Site,
    properties_of,
    user_of,
)

# The length of the salt that RabbitMQ stores in front of the hash.
SALT_BYTES = 4


def definitions_of(
    exchanges: Iterable[Exchange],
    cells: Iterable[str],
    passwords: Mapping[str, str],
    *,
    salt: bytes,
    virtual_host: str = "/",
    sites: Iterable[Site] = EVERY_SITE,
    applications: Iterable[Application] = (),
    inbox: Queue = IRONIC_INBOX,
    limits: Mapping[str, int] | None = None,
    granted: Rights | None = None,
) -> dict[str, list[dict[str, Any]]]:
    """The definitions of the users in `passwords`, for a broker that has these exchanges and serves these cells.

    They contain the users, their rights, RabbitMQ's limits on what each user may take of the broker, and the bounds of the
    queues that users declare for themselves. `granted` are rights that their user has on the broker already, and keeps.
    """
    rights = rights_by_user(exchanges, cells, sites, applications, inbox=inbox)
    if granted is not None:
        rights[granted.user] = joined(rights[granted.user], granted)
    strangers = sorted(passwords.keys() - rights.keys())
    if strangers:
        raise ValueError(
            f"no such user of the topology: {', '.join(strangers)}; there are {', '.join(sorted(rights))}"
        )
    wanted = [rights[user] for user in sorted(passwords)]
    return {
        "users": [
            {
                "name": user,
                "password_hash": password_hash(user, passwords[user], salt),
                "hashing_algorithm": "rabbit_password_hashing_sha256",
                "tags": [],
                "limits": dict(limits or {}),
            }
            for user in sorted(passwords)
        ],
        "permissions": [
            {
                "user": each.user,
                "vhost": virtual_host,
                "configure": each.configure,
                "write": each.write,
                "read": each.read,
            }
            for each in wanted
        ],
        "topic_permissions": [
            {
                "user": each.user,
                "vhost": virtual_host,
                "exchange": topic.exchange,
                "write": topic.write,
                "read": topic.read,
            }
            for each in wanted
            for topic in each.topics
        ],
        "policies": [_bounds_of_own_queues(virtual_host, Limits())],
    }


def _bounds_of_own_queues(virtual_host: str, limits: Limits) -> dict[str, Any]:
    """The bounds of all queues with names from RabbitMQ: what applications and workers declare for answers and feeds.

    An application may declare its queue without a bound. If it then reads slowly, the queue grows until the broker's memory
    alarm stops all publishers. So the broker drops the oldest messages, and deletes a queue that nobody uses.
    """
    return {
        "vhost": virtual_host,
        "name": "moor-own-queues",
        "pattern": f"^{NAMED_BY_RABBITMQ}$",
        "apply-to": "queues",
        "priority": 0,
        "definition": {
            "max-length": limits.feed_length_max,
            "max-length-bytes": limits.feed_bytes_max,
            "overflow": "drop-head",
            "expires": limits.own_queue_expires_ms,
        },
    }


def rights_by_user(
    exchanges: Iterable[Exchange],
    cells: Iterable[str],
    sites: Iterable[Site] = EVERY_SITE,
    applications: Iterable[Application] = (),
    *,
    inbox: Queue = IRONIC_INBOX,
) -> dict[str, Rights]:
    """The rights of each user of a broker that has these exchanges, by the user's name.

    `sites` says what this broker serves: the API level, cells or Ironic. `cells` are the cells that it serves. It has a
    user for each role that belongs to one of its sites, and one for each application. A role of cells has one user for
    each cell.
    """
    names, cell_names = tuple(exchange.name for exchange in exchanges), tuple(cells)
    there = {*sites}
    of_applications = {each.user: rights_of(each.role, (*names, each.exchange)) for each in applications}
    return of_applications | {
        user_of(role.name, cell): rights_of(role, names, cell, inbox=inbox)
        for role in ROLES
        if _has_user(role, there)
        for cell in (cell_names if role.per_cell else ("",))
    }


def _has_user(role: Role, sites: set[Site]) -> bool:
    """Whether a role needs a user on a broker that serves these sites: the API level, a cell, or Ironic.

    It does if the role belongs to one of them. On the broker of Ironic it does if the role reads a queue there.
    """
    if role.site in sites or (role.site is Site.BOTH and sites & {Site.API, Site.CELL}):
        return True
    return any(
        queue.site in sites and queue.name in role.reads for queue in QUEUES if queue.site is Site.IRONIC
    )


def password_hash(user: str, password: str, salt: bytes) -> str:
    """Hash a password as RabbitMQ stores it. Each user has a salt of its own, derived from `salt` and the user's name."""
    own_salt = hashlib.sha256(salt + user.encode()).digest()[:SALT_BYTES]
    return base64.b64encode(own_salt + hashlib.sha256(own_salt + password.encode()).digest()).decode()


def arguments_of(queue: Queue, limits: Limits) -> dict[str, str | int]:
    kind = properties_of(queue.kind, limits)
    dead_letters = DEAD_LETTERS.get(queue.kind)
    overflow = "drop-head" if kind.drops_oldest else "reject-publish"
    stated = {
        "x-queue-type": "quorum" if kind.counts_returns else "classic",
        "x-delivery-limit": kind.deliveries_max,
        "x-dead-letter-exchange": dead_letters,
        "x-dead-letter-routing-key": queue.name if dead_letters else None,
        # At-least-once dead-lettering needs all three: the strategy, an overflow that rejects, and therefore a length limit.
        "x-dead-letter-strategy": "at-least-once" if kind.deliveries_max else None,
        "x-overflow": overflow if kind.length_max else None,
        "x-max-length": kind.length_max,
        "x-max-length-bytes": kind.bytes_max,
        "x-expires": kind.expires_ms,
    }
    return {name: value for name, value in stated.items() if value is not None}
