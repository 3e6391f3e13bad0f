"""Writes the rows of nodes. Every notification, REST answer and placement answer becomes a change of a row, made here.

Any daemon may change any row, by compare-and-set. The consequences of a change (the cell, the offer) are decided with it.
After the commit, listeners are called with the written rows.
"""

import logging
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

from bus.workers.set_aside import FailedRows, RowWork
from engine.inventories import ProviderId
from ironic_sync.core.notifications import (
    AllocationNotified,
    NodeDoubted,
    NodeNotified,
    Notification,
    UnreadableNotification,
)
from ironic_sync.core.offers import NO_TABLE
from ironic_sync.core.ordering import OrderingRules, after_notification
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import NodePolicy, after_change, at_once_if_new
from ironic_sync.store_sql import IronicStore
from kit.clock import SECOND_US
from kit.errors import Transient
from kit.metrics import Metric

log = logging.getLogger(__name__)

# Returns the row after a change; the same object, or None, if nothing changes. A node without a row is given an empty one.
Change = Callable[[NodeRow], NodeRow | None]
Listener = Callable[[Sequence[NodeRow]], None]
# The row as it was, and as it is stored now.
Written = tuple[NodeRow, NodeRow]
# Two notifications of different publishers that are nearer than this have no order: their clocks may differ by so much.
SKEW_US = 2 * SECOND_US
# A write fails only if another daemon inserts the same row at the same time; the next try then locks that row.
TRIES_MAX = 5


class NodeWriter:
    """Writes changes of nodes' rows for all parts of the daemon, and calls listeners with the written rows."""

    def __init__(
        self,
        store: IronicStore,
        policy: NodePolicy,
        failed: FailedRows,
        *,
        clock_us: Callable[[], int],
        skew_us: int = SKEW_US,
    ) -> None:
        self.policy = policy
        self.clock_us = clock_us
        # Keeps the parts going that change many nodes.
        self.rows = failed.of("change nodes", RowWork(self._doubt))
        self._store = store
        self._skew_us = skew_us
        self._listeners: list[Listener] = []
        self._comparing: list[Callable[[Sequence[Written]], None]] = []
        self._hearing: list[Listener] = []

    def listen(self, listener: Listener) -> None:
        """After each commit, call `listener` with the rows as they were written. It must not block."""
        self._listeners.append(listener)

    def listen_to_changes(self, listener: Callable[[Sequence[Written]], None]) -> None:
        """After each commit, call `listener` with each written row twice: before the change, and as written. It must
        not block.
        """
        self._comparing.append(listener)

    def listen_to_events(self, listener: Listener) -> None:
        """After the commit of what notifications changed, call `listener` with these rows. It must not block."""
        self._hearing.append(listener)

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["NodeWriter"]:
        """The worker loop's transaction for a batch of orders: this writer itself, since each `change` commits on its own."""
        yield self

    async def read(self, nodes: Iterable[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        """The rows of these nodes, not locked. A node without a row has an empty one."""
        wanted = [*nodes]
        found = await self._store.read(wanted)
        return {each: found.get(each) or NodeRow(id=each) for each in wanted}

    async def hear(self, notifications: Sequence[Notification]) -> None:
        """Apply notifications to their nodes' rows in the order of arrival."""
        of_nodes: dict[ProviderId, list[Notification]] = {}
        for notification in notifications:
            if (node := node_of(notification)) is not None:
                of_nodes.setdefault(node, []).append(notification)
        written = await self.change_each({node: self._change_by(own) for node, own in of_nodes.items()})
        for listener in self._hearing:
            listener(written)

    def _change_by(self, own: Sequence[Notification]) -> Change:
        rules = OrderingRules(skew_us=self._skew_us, can_read=self.policy.can_read, now_us=self.clock_us())

        def change(row: NodeRow) -> NodeRow:
            after = row
            for notification in own:
                after = after_notification(after, notification, rules)
            return at_once_if_new(row, after)

        return change

    async def _doubt(self, row: str) -> None:
        """Have a node read from Ironic at which a daemon has met a bug; until then it is not offered."""
        doubted = NodeDoubted(id=ProviderId(UUID(row)), doubt="a daemon met a bug at it")
        await self.change({doubted.id: self._change_by((doubted,))})

    async def change_each(
        self, changes: Mapping[ProviderId, Change], *, is_lazy: bool = False
    ) -> tuple[NodeRow, ...]:
        """As `change`, for parts that know many nodes: a node at which this meets a bug does not hold up the others."""
        written: list[NodeRow] = []

        async def change(some: Sequence[tuple[ProviderId, Change]]) -> None:
            written.extend(await self.change(dict(some), is_lazy=is_lazy))

        await self.rows.each(changes.items(), change, lambda one: one[0])
        return tuple(written)

    async def change(
        self, changes: Mapping[ProviderId, Change], *, is_lazy: bool = False
    ) -> tuple[NodeRow, ...]:
        """Apply these changes, each to the current row. Return the rows that were written."""
        left: dict[ProviderId, Change] = dict(changes)
        written: list[Written] = []
        for _ in range(TRIES_MAX):
            if not left:
                break
            saved, lost = await self._tried(left, is_lazy=is_lazy)
            written += saved
            left = {node: left[node] for node in lost}
        if written:
            rows = [row for _, row in written]
            for listener in self._listeners:
                listener(rows)
            for comparing in self._comparing:
                comparing(written)
        if left:
            raise Transient(
                f"{len(left)} rows of nodes were written by other daemons in each of {TRIES_MAX} tries, for example "
                f"{next(iter(left))}"
            )
        return tuple(row for _, row in written)

    async def _tried(
        self, changes: Mapping[ProviderId, Change], *, is_lazy: bool
    ) -> tuple[Sequence[Written], Sequence[ProviderId]]:
        async with self._store.transaction(is_lazy=is_lazy) as transaction:
            rows = await transaction.load(changes.keys())
            news: dict[ProviderId, Written] = {}
            for node, change in changes.items():
                before = rows.get(node) or NodeRow(id=node)
                after = change(before)
                if after is None or after is before:
                    continue
                after = after_change(before, after, self.policy)
                if after != before:
                    news[node] = before, after
                    _log_news(before, after)
            if not news:
                return (), ()
            saved = await transaction.save([after for _, after in news.values()])
        return [(news[row.id][0], row) for row in saved.rows], saved.lost


def _log_news(before: NodeRow, after: NodeRow) -> None:
    if after.cell_note and after.cell_note != before.cell_note:
        # Without a cell the node is never offered.
        say = log.warning if NO_TABLE in after.cell_note and not after.cell else log.info
        say("node %s: %s", after.id, after.cell_note)
    if after.trouble and after.trouble != before.trouble:
        log.error("node %s: %s; nothing is done there without a person's order", after.id, after.trouble)
    if before.cell and after.cell != before.cell:
        log.info("node %s went from cell %r to %r", after.id, before.cell, after.cell)


def node_of(notification: Notification) -> ProviderId | None:
    """The node that a notification is about, if it names one."""
    match notification:
        case NodeNotified():
            return notification.node.id
        case NodeDoubted():
            return notification.id
        case AllocationNotified() | UnreadableNotification():
            return notification.node


# A clock that a jump of the wall clock does not advance. The daemon measures with it for how long nodes are missing.


# A wall clock that is set right by less than this has not jumped.
JUMP_US = SECOND_US


class SteadyClock:
    """The wall clock, but when that jumps ahead, this clock does not follow. It follows a jump back.

    Times on rows are written by the wall clock and compared with this one. So after a jump ahead nothing that was
    written before it seems older than it is. When there was no jump for `forgets_s`, this clock shows the wall
    clock's time again.
    """

    def __init__(
        self, clock_us: Callable[[], int], clock_s: Callable[[], float], *, forgets_s: float
    ) -> None:
        self._clock_us = clock_us
        self._clock_s = clock_s
        self._forgets_s = forgets_s
        self._at_us, self._at_s = clock_us(), clock_s()
        self._behind_us = 0
        self._jumped_at_s = self._at_s

    def __call__(self) -> int:
        wall_us, at_s = self._clock_us(), self._clock_s()
        ahead_us = wall_us - self._behind_us - self._at_us - round((at_s - self._at_s) * SECOND_US)
        if abs(ahead_us) > JUMP_US:
            self._jumped_at_s = at_s
            self._behind_us = max(self._behind_us + ahead_us, 0)
        elif at_s - self._jumped_at_s >= self._forgets_s:
            self._behind_us = 0
        self._at_us, self._at_s = wall_us - self._behind_us, at_s
        return self._at_us


# The metrics of bare-metal daemons.


EVENT_TO_SCHEDULABLE = Metric(
    "moor_node_event_seconds",
    "histogram",
    "From an event of Ironic, by its own time, until placement has accepted what it changed: then the node is offered to schedulers, or "
    "no longer. They hear of it by `moor_feed_seconds`.",
)
REPORTS_ACCEPTED = Metric(
    "moor_node_reports_accepted", "counter", "Reports about nodes that placement accepted."
)
NOTIFICATIONS_UNREADABLE = Metric(
    "moor_notifications_unreadable", "counter", "Notifications of Ironic that became dead letters."
)
METRICS = (EVENT_TO_SCHEDULABLE, REPORTS_ACCEPTED, NOTIFICATIONS_UNREADABLE)
