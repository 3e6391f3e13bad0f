"""Values that a daemon's store takes and gives. store_sql.py has the store.

A row is written by compare-and-set on its version, so that any daemon may apply what it heard. An owner changes by
compare-and-set on owner and epoch, and that too counts the version up: a daemon that lost a node cannot write what it
read before. Leases are measured by the database's clock alone.
"""

import re
from datetime import timedelta
from typing import Literal

from msgspec import Struct

from engine.inventories import ProviderId
from ironic_sync.core.ring import Member, Owned
from ironic_sync.core.rows import NodeRow
from kit.errors import Transient

# A row may need a report or a read (`needs_report`, `needs_read` in core/rows.py).
Need = Literal["report", "read"]
# How long a daemon that has gone is still shown.
FORGOTTEN_AFTER = timedelta(days=1)
DAEMON_NAME = re.compile(r"[a-zA-Z0-9][a-zA-Z0-9._-]{0,62}")


class DaemonNameTaken(Transient):
    """Another process has a lease under this daemon's name: it may have been killed, and then its lease runs out."""


class SavedRows(Struct, frozen=True):
    """Rows as they are stored now, and the nodes whose rows another daemon wrote first."""

    rows: tuple[NodeRow, ...] = ()
    lost: tuple[ProviderId, ...] = ()


class RingView(Struct, frozen=True, kw_only=True):
    """The parts of the ring that a daemon reads several times a second: members, owners, and its own unread nodes.

    All are read at one moment.
    """

    # In the order of their names, those whose leases are over too.
    members: tuple[Member, ...]
    # Every name that is the owner of a node; empty for nodes that no daemon has taken.
    owner_names: tuple[str, ...]
    # A page of the daemon's own nodes that it must read: those that others gave it are among them.
    unread: tuple[Owned, ...]


def check_name(name: str) -> None:
    if not DAEMON_NAME.fullmatch(name):
        raise ValueError(
            f"the daemon's name is {name!r}: it must be letters, digits, '.', '-' and '_', begin with a letter or digit, "
            "and have at most 63 characters"
        )


def name_taken(name: str, holder: Member) -> DaemonNameTaken:
    return DaemonNameTaken(
        f"daemon name {name!r} is taken: incarnation {holder.incarnation} has a lease for another "
        f"{holder.lease_left_s:.1f} s; give each daemon a name of its own. If that process is gone, its lease runs out"
    )
