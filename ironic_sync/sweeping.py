"""Reads nodes from Ironic's REST API: all nodes at an interval and after a gap, single nodes that are in doubt, and
nodes that changed lately.

Ironic loses notifications, and announces some changes not at all. A REST answer is applied only if the row was not written
since the request was sent; otherwise the node is read again. While Ironic is away, rows stay as they are.

A node counts as deleted when Ironic answers 404 for it. If these are too many at once, they are kept reserved instead
(core/missing.py), and the part "believe what Ironic lists" fails until they return or count as deleted.
"""

import asyncio
import logging
import random
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from datetime import datetime, timedelta
from uuid import UUID  # noqa: TC003 - like every other import

from msgspec import structs

from bus.errors import Operational
from bus.message import ProviderId
from bus.moments import EPOCH, SECOND_US, moment
from bus.parts import PartGroup, Periodic, Status
from ironic_sync.applying import Change, NodeWriter
from ironic_sync.core.missing import Belief, decide_missing
from ironic_sync.core.node import Node
from ironic_sync.core.notifications import AllocationNotified
from ironic_sync.core.ordering import NOT_LISTED, held_missing, not_listed, read_again, read_as_gone
from ironic_sync.core.ring import Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import seen
from ironic_sync.membership import Membership
from ironic_sync.rest import ReadsNodes
from ironic_sync.settings import IronicSettings
from ironic_sync.steady import SteadyClock
from ironic_sync.store import IronicStore, NodeStore, pages_of

log = logging.getLogger(__name__)

# The row after an answer of Ironic: of the row now, the version that was read before, and the time of the answer.
Apply = Callable[[NodeRow, int, int], NodeRow | None]
# More nodes than this are read as pages of the whole list.
SINGLE_READS_MAX = 50
# Clocks of Ironic's processes may differ by so much, and a change may be visible so long after its time.
CHANGES_OVERLAP = timedelta(seconds=10)


class TooManyMissing(Operational):
    """More nodes are missing in Ironic at once than the daemon takes for deleted."""


class Sweeper(PartGroup):
    """Reads nodes from Ironic: all of them at an interval and after a gap, and those in doubt at once."""

    def __init__(
        self,
        api: ReadsNodes,
        writer: NodeWriter,
        store: IronicStore,
        membership: Membership,
        settings: IronicSettings,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self._sweeping = Periodic(
            "compare all nodes with Ironic", self._sweep, settings.sweep_s, is_cut_short=True, chance=chance
        )
        self._doubting = Periodic(
            "read nodes in doubt", self._read_doubted, settings.doubts_s, is_cut_short=True, chance=chance
        )
        self._changing = Periodic(
            "look for changed nodes",
            self._look_for_changes,
            settings.changes_s,
            is_cut_short=True,
            chance=chance,
        )
        self._believing = Status("believe what Ironic lists", chance=chance)
        super().__init__(self._sweeping, self._doubting, self._changing, statuses=(self._believing,))
        self._belief = Belief(
            few=settings.missing_few,
            share=settings.missing_share,
            after_us=round(settings.missing_believed_s * SECOND_US),
        )
        self._steady_us = SteadyClock(writer.clock_us, clock_s, forgets_s=settings.missing_believed_s)
        # How many nodes were believed to be gone, and when.
        self._lost_at: deque[tuple[int, int]] = deque()
        self._api = api
        self._writer = writer
        self._store = store
        self._membership = membership
        self._settings = settings
        # Nodes to be read; those that a list lacks are read by themselves, however many they are.
        self._suspects: dict[ProviderId, None] = {}
        self._unlisted: dict[ProviderId, None] = {}
        self._allocations: dict[UUID, None] = {}
        # The next sweep compares other daemons' nodes as well: they may not know that a notification was missed.
        self._is_for_all = False
        # The time of the last change of a node that was looked at; None before the first look.
        self._changed_to: datetime | None = None
        self.sweeps = 0
        self.change_looks = 0

    # What others tell

    def touch(self, rows: Iterable[NodeRow]) -> None:
        """Of rows that were just written: read the nodes in doubt from Ironic at once, whichever daemon owns them."""
        self._suspect_rows(row for row in rows if row.doubts)

    def gained(self, nodes: Sequence[Owned]) -> None:
        self._suspect(each.id for each in nodes)

    def lost(self, nodes: Sequence[ProviderId]) -> None:
        for node in nodes:
            self._suspects.pop(node, None)
            self._unlisted.pop(node, None)

    def gap(self, why: str) -> None:
        """Have all nodes read again, since notifications may have been missed."""
        log.info("all nodes are read again: %s", why)
        self._is_for_all = True
        self._sweeping.wake()

    def look_into(self, allocations: Sequence[AllocationNotified]) -> None:
        self._allocations.update(dict.fromkeys(each.allocation for each in allocations))
        self._doubting.wake()

    def _suspect(self, nodes: Iterable[ProviderId]) -> None:
        before = len(self._suspects)
        self._suspects.update(dict.fromkeys(nodes))
        if len(self._suspects) > before:
            self._doubting.wake()

    def _suspect_rows(self, rows: Iterable[NodeRow]) -> None:
        listed = []
        for row in rows:
            if NOT_LISTED in row.doubts or row.is_deleted:
                self._unlisted[row.id] = None
                self._doubting.wake()
            else:
                listed.append(row.id)
        self._suspect(listed)

    # All nodes

    async def _sweep(self) -> None:
        is_for_all, self._is_for_all = self._is_for_all, False
        try:
            await self._compare_all(is_for_all=is_for_all)
        except Exception:
            # The next sweep must be for all again; a gap during this one may have asked for that, too.
            self._is_for_all = self._is_for_all or is_for_all
            raise
        self.sweeps += 1

    async def _compare_all(self, *, is_for_all: bool) -> None:
        owners = await self._store.owners()
        names = {each.owner for each in owners} if is_for_all else {self._membership.name}
        rows = await self._rows_of(names)
        known = {each.id for each in owners}
        listed: set[ProviderId] = set()
        async for page in self._api.pages():
            for wrong in page.unreadable:
                log.warning(
                    "node %s cannot be read from Ironic: %s", wrong.id or "without an id", wrong.reason
                )
                if wrong.id is not None:
                    listed.add(wrong.id)
            listed.update(node.id for node in page.nodes)
            await self._compare(page.nodes, rows, known)
        await self._handle_unlisted(listed, rows)

    async def _rows_of(self, owners: Iterable[str]) -> dict[ProviderId, NodeRow]:
        """The rows of these daemons' nodes, read before Ironic is asked. If a row is written meanwhile, Ironic's
        answer is not applied to it, and its node is read again by itself.
        """
        rows: dict[ProviderId, NodeRow] = {}
        for owner in sorted(owners):
            async for page in pages_of(self._store, owner, self._settings.page):
                rows.update((row.id, row) for row in page)
        return rows

    async def _compare(
        self, nodes: Sequence[Node], rows: Mapping[ProviderId, NodeRow], known: AbstractSet[ProviderId]
    ) -> None:
        changes: dict[ProviderId, Change] = {}
        for node in nodes:
            row = rows.get(node.id)
            if row is None and node.id in known:
                # Another daemon's, which compares it itself.
                continue
            if row is None or row.needs_read or row.is_deleted or row.missing_since_us or row.node != node:
                changes[node.id] = self._change_by(row.version if row else 0, _as_found(node))
        await self._writer.change(changes)

    async def _handle_unlisted(
        self, listed: AbstractSet[ProviderId], rows: Mapping[ProviderId, NodeRow]
    ) -> None:
        """Have the nodes that Ironic's list lacks read one by one, since only a 404 for the node itself says that it
        is deleted. If too many are missing, they are kept reserved instead.
        """
        known = [row for row in rows.values() if not row.is_deleted]
        gone, held = self._decide([row for row in known if row.id not in listed], len(known))
        changes: dict[ProviderId, Change] = {
            row.id: self._change_by(row.version, held_missing) for row in held
        }
        changes |= {row.id: not_listed for row in gone}
        await self._writer.change(changes)
        if held:
            self._say_missing(held, len(known))
        else:
            self._believing.well()

    def _decide(self, missing: Sequence[NodeRow], known: int) -> tuple[Sequence[NodeRow], Sequence[NodeRow]]:
        at_us = self._steady_us()
        while self._lost_at and self._lost_at[0][0] <= at_us - self._belief.after_us:
            self._lost_at.popleft()
        lost_lately = sum(count for _, count in self._lost_at)
        return decide_missing(
            missing, known=known + lost_lately, lost_lately=lost_lately, at_us=at_us, belief=self._belief
        )

    def _say_missing(self, held: Sequence[NodeRow], known: int) -> None:
        problem = TooManyMissing(
            f"Ironic has lost {len(held)} of {known} nodes at once, {held[0].id} is one: they are held, not removed. Is it the "
            "right Ironic, and may this user see all nodes? They are removed when they stay missing for "
            f"{self._settings.missing_believed_s:g} s, or by `moor ring missing --remove`"
        )
        log.error("%s", problem)
        self._believing.failed(problem)

    # Nodes that changed lately

    async def _look_for_changes(self) -> None:
        """Find nodes of this daemon that Ironic changed lately and that differ from their rows, and have them read again:
        their notifications were lost, or are late.

        Ironic's processes and this daemon have different clocks. So the next look begins where the last one found the
        newest change, and not later than this look began.
        """
        began = moment(self._writer.clock_us())
        since = EPOCH if self._changed_to is None else self._changed_to - CHANGES_OVERLAP
        newest, count = self._changed_to or EPOCH, 0
        async with aclosing(self._api.changed_since(since)) as pages:
            async for page in pages:
                nodes = {each.node.id: each.node for each in page}
                rows = await self._store.read(nodes)
                self._suspect(id_ for id_, node in nodes.items() if self._is_news(rows.get(id_), node))
                newest = max([newest, *(each.at for each in page)])
                count += len(page)
                if self._changed_to is None or count >= self._settings.page:
                    # The first sweep reads all nodes. And of so many changes, the next sweep finds what is missing.
                    break
        self._changed_to = min(newest, began)
        self.change_looks += 1

    def _is_news(self, row: NodeRow | None, node: Node) -> bool:
        if row is None:
            return True
        if row.owner not in ("", self._membership.name) or row.needs_read:
            # Its owner looks itself, or it is read anyway.
            return False
        known = row.node and structs.replace(row.node, provision_updated_at=node.provision_updated_at)
        return row.is_deleted or known != node

    # Single nodes

    async def _read_doubted(self) -> None:
        """Read single nodes from Ironic: those that this daemon has to look at, and those of its own that another
        daemon left in doubt.
        """
        await self._find_nodes_of_allocations()
        self._suspect_rows(
            await self._store.page_of(self._membership.name, self._settings.page, needs="read")
        )
        if len(self._suspects) > SINGLE_READS_MAX:
            # As after a takeover: a list of all nodes costs less. Other daemons' nodes are in it only if all are compared.
            self._is_for_all = self._is_for_all or any(
                node not in self._membership.owned for node in self._suspects
            )
            self._suspects.clear()
            self._sweeping.wake()
        await self._read([*self._suspects, *self._unlisted][: self._settings.page])

    async def _find_nodes_of_allocations(self) -> None:
        for allocation in [*self._allocations]:
            node = await self._api.node_of_allocation(allocation)
            del self._allocations[allocation]
            if node is not None:
                self._suspects[node] = None

    async def _read(self, nodes: Sequence[ProviderId]) -> None:
        """Read these nodes from Ironic, each by a request of its own and several at once, and apply the answers."""
        rows = await self._writer.read(nodes)
        found = await self._answers(nodes)
        for node in nodes:
            self._suspects.pop(node, None)
            self._unlisted.pop(node, None)
        missing = [
            row for node, row in rows.items() if found[node] is None and row.version and not row.is_deleted
        ]
        # A daemon reads nodes of others as well.
        known = max(len(self._membership.owned), len(nodes))
        gone, held = self._decide(missing, known)
        changes = {node: self._change_by(rows[node].version, _as_found(found[node])) for node in nodes}
        changes |= {row.id: self._change_by(row.version, held_missing) for row in held}
        await self._writer.change(changes)
        if lost := sum(not row.missing_since_us for row in gone):
            self._lost_at.append((self._steady_us(), lost))
        if held:
            self._say_missing(held, known)

    async def _answers(self, nodes: Sequence[ProviderId]) -> dict[ProviderId, Node | None]:
        at_once = asyncio.Semaphore(self._settings.reads_at_once)

        async def answer(node: ProviderId) -> Node | None:
            async with at_once:
                return await self._api.node(node)

        async with asyncio.TaskGroup() as reading:
            tasks = {node: reading.create_task(answer(node)) for node in nodes}
        return {node: task.result() for node, task in tasks.items()}

    def _change_by(self, version: int, apply: Apply) -> Change:
        at_us = self._writer.clock_us()

        def change(row: NodeRow) -> NodeRow | None:
            after = apply(row, version, at_us)
            if after is not None:
                return seen(after) if _is_owned(row, self._membership) else after
            if row.version:
                # It was written since: what was read may be older.
                self._suspect((row.id,))
            return None

        return change


def _as_found(found: Node | None) -> Apply:
    def apply(row: NodeRow, version: int, at_us: int) -> NodeRow | None:
        if found is not None:
            return read_again(row, found, version, at_us)
        return read_as_gone(row, version, at_us) if row.version else None

    return apply


def _is_owned(row: NodeRow, membership: Membership) -> bool:
    """Whether this daemon knows that it owns the node in the row's epoch, so that the row may be marked as read.

    A node that was given to this daemon is noticed because it is not read yet. If it were marked as read before, it
    would stay unnoticed: nobody would report it or deploy on it.
    """
    return membership.owned.get(row.id) == row.epoch


class Adopter(Periodic):
    """The part that takes the Sweeper's place where Ironic's REST API is not known. A gained node cannot be read there.
    It counts as read with the facts of its notifications, and is reported again in its new epoch.
    """

    def __init__(
        self,
        writer: NodeWriter,
        store: NodeStore,
        membership: Membership,
        settings: IronicSettings,
        *,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(
            "adopt gained nodes", self._adopt, settings.doubts_s, is_cut_short=True, chance=chance
        )
        self._writer = writer
        self._store = store
        self._membership = membership
        self._page = settings.page

    def gained(self, nodes: Sequence[Owned]) -> None:
        if nodes:
            self.wake()

    def lost(self, nodes: Sequence[ProviderId]) -> None:
        """Does nothing when the daemon loses nodes: this part stores nothing about single nodes."""

    def gap(self, why: str) -> None:
        log.warning("notifications may have been missed, and Ironic cannot be asked: %s", why)

    def look_into(self, allocations: Sequence[AllocationNotified]) -> None:
        """Does nothing: the notifications of allocations do not say which nodes they took, and without the REST API
        nobody can be asked.
        """

    async def _adopt(self) -> None:
        async for rows in pages_of(self._store, self._membership.name, self._page, needs="read"):
            await self._writer.change({row.id: self._adopted for row in rows})

    def _adopted(self, row: NodeRow) -> NodeRow:
        return seen(row) if _is_owned(row, self._membership) else row
