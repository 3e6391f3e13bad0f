"""The port to a daemon's database. store_sql.py implements it.

A row is written by compare-and-set on its version, so that any daemon may apply what it heard. An owner changes by
compare-and-set on owner and epoch, and that too counts the version up: a daemon that lost a node cannot write what it
read before. Leases are measured by the database's clock alone.
"""

import re
from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from datetime import datetime, timedelta
from typing import Literal, Protocol

from msgspec import Struct

from engine.inventories import ProviderId
from ironic_sync.core.ring import Member, NodeHandover, Owned
from ironic_sync.core.rows import Alarms, NodeRow
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


class IronicTransaction(Protocol):
    """One transaction on the nodes' rows: all of its writes take effect, or none."""

    async def load(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        """The rows that exist, locked until the transaction ends. Load once in a transaction: rows are locked in the
        order of their ids, and two transactions that go back in that order may wait for each other.
        """

    async def save(self, rows: Sequence[NodeRow]) -> SavedRows:
        """Save rows. Each has the version that was read, 0 for a new row, and is stored with the next version.

        A row that another daemon wrote since is left as it is, and its id is in `lost`.
        """

    async def forget(self, rows: Sequence[NodeRow]) -> int:
        """Delete these rows, but those that another daemon wrote since. Returns how many were deleted."""


class NodeStore(Protocol):
    """The rows of nodes. A page is in the order of ids, begins after `after`, and has at most `limit` rows."""

    def transaction(self, *, is_lazy: bool = False) -> AbstractAsyncContextManager[IronicTransaction]:
        """A transaction: it commits at its end, and rolls back on any exception. May raise `Transient` at any step:
        then try again.

        A lazy commit does not wait for the disk (kit/sql/databases.py): it is only for changes that are made again if
        they are lost.
        """

    async def read(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        """The existing rows of these nodes, not locked."""

    async def page_of(
        self, owner: str, limit: int, after: ProviderId | None = None, *, needs: Need | None = None
    ) -> tuple[NodeRow, ...]:
        """A page of the owner's rows; with `needs`, of those that must be reported or read."""

    async def alarms(self, since: datetime) -> Alarms:
        """Of all nodes; the orders that daemons gave by themselves count from `since` on."""

    async def due(self, owner: str, now: datetime, beyond: datetime, limit: int) -> tuple[NodeRow, ...]:
        """The owner's rows whose `due_at` has come, those that are due for longest first, then those due after
        `beyond`.

        No daemon waits longer than until `beyond`. So a later time was written by a daemon whose clock was ahead.
        """


class RingStore(Protocol):
    """The members of the ring, and the owner of each node."""

    async def join(self, name: str, incarnation: str, lease_s: float) -> None:
        """Become a member that does not drain; may be repeated. Raises NameTaken while another incarnation has a lease."""

    async def renew(self, name: str, incarnation: str, lease_s: float) -> bool:
        """Make the lease last `lease_s` from now. False if it was over already, or is another incarnation's: then the
        daemon must join again.
        """

    async def leave(self, name: str, incarnation: str) -> None: ...

    async def set_draining(self, name: str, *, draining: bool) -> bool:
        """Set whether this member drains. False if there is no such member. A daemon that joins again does not drain."""

    async def members(self) -> tuple[Member, ...]:
        """All members of the ring in the order of their names, also those whose leases are over."""

    async def look(self, name: str, limit: int, after: ProviderId | None = None) -> RingView:
        """Read what the daemon `name` looks at several times a second: the members of the ring, the names of all owners
        of nodes, and the daemon's own nodes that it must read.

        Of the latter (`unread`), the answer has at most `limit` nodes, with ids above `after`.
        """

    async def owners(self, names: Collection[str] | None = None) -> tuple[Owned, ...]:
        """The owner of each node, in the order of the nodes' ids. With `names`, only the nodes that these daemons own."""

    async def give(self, moves: Sequence[NodeHandover]) -> tuple[Owned, ...]:
        """Carry out these moves. Returns the nodes that moved, as they are now: each has the next epoch and version,
        and must be read.

        A node is left where it is if it has another owner or epoch by now, or if it has an instance and the move is
        only for free nodes. It is left, too, while another transaction has its row locked: then try again soon.
        """


class IronicStore(NodeStore, RingStore, Protocol):
    async def close(self) -> None: ...


async def pages_of(
    store: NodeStore, owner: str, limit: int, *, needs: Need | None = None
) -> AsyncIterator[tuple[NodeRow, ...]]:
    """All rows of this owner, in pages of `limit` rows; with `needs`, only those that must be reported or read."""
    after: ProviderId | None = None
    while page := await store.page_of(owner, limit, after, needs=needs):
        yield page
        after = page[-1].id


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
