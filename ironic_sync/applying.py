"""Changes rows of nodes: whatever is heard, read or answered becomes a change of a row, and every change is made here.

Any daemon may change any row, by compare-and-set. What follows from a change (the cell, the offer) is decided with it.
Listeners are told of the rows that were written, after the commit.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import structs

from bus.errors import Transient
from bus.message import ProviderId
from ironic_sync.core.notifications import AllocationSaid, NodeDoubted, NodeSaid, Unreadable, Word
from ironic_sync.core.ordering import Rules, after_word
from ironic_sync.core.orders import at_once_if_new
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import Terms, after_change
from ironic_sync.store import NodeStore

log = logging.getLogger(__name__)

# The row after a change; the very same row, or None, if there is nothing to change. A node without a row has an empty one.
Change = Callable[[NodeRow], NodeRow | None]
Listener = Callable[[Sequence[NodeRow]], None]
# The row as it was, and as it is stored now.
Written = tuple[NodeRow, NodeRow]
# A row is lost to another daemon only when both insert it; the next try finds it, and locks it.
TRIES_MAX = 5


class NodeKeeper:
    """What the daemon's parts share to change rows."""

    def __init__(self, store: NodeStore, terms: Terms, *, skew_us: int, clock_us: Callable[[], int]) -> None:
        self.terms = terms
        self.clock_us = clock_us
        self._store = store
        self._skew_us = skew_us
        self._listeners: list[Listener] = []
        self._comparing: list[Callable[[Sequence[Written]], None]] = []
        self.rows_written = 0

    def listen(self, listener: Listener) -> None:
        """It is called with the rows as they are stored now, and must not wait."""
        self._listeners.append(listener)

    def listen_to_changes(self, listener: Callable[[Sequence[Written]], None]) -> None:
        """Likewise, with the rows as they were before."""
        self._comparing.append(listener)

    async def read(self, nodes: Iterable[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        """The rows of these nodes, not locked. A node without a row has an empty one."""
        wanted = [*nodes]
        found = await self._store.read(wanted)
        return {each: found.get(each) or NodeRow(id=each) for each in wanted}

    async def hear(self, words: Sequence[Word]) -> None:
        """Apply notifications, in the order in which they came."""
        rules = Rules(skew_us=self._skew_us, can_read=self.terms.can_read, now_us=self.clock_us())
        said: dict[ProviderId, list[Word]] = {}
        for word in words:
            if (node := node_of(word)) is not None:
                said.setdefault(node, []).append(word)

        def change_by(own: Sequence[Word]) -> Change:
            def change(row: NodeRow) -> NodeRow:
                after = row
                for word in own:
                    after = after_word(after, word, rules)
                return at_once_if_new(row, after)

            return change

        await self.change({node: change_by(own) for node, own in said.items()})

    async def change(
        self, changes: Mapping[ProviderId, Change], *, is_lazy: bool = False
    ) -> tuple[NodeRow, ...]:
        """Make these changes, each on the row as it is then. Returns the rows that were written."""
        left: dict[ProviderId, Change] = dict(changes)
        written: list[Written] = []
        for _ in range(TRIES_MAX):
            if not left:
                break
            saved, lost = await self._tried(left, is_lazy=is_lazy)
            written += saved
            left = {node: left[node] for node in lost}
        if written:
            self.rows_written += len(written)
            rows = [row for _, row in written]
            for listener in self._listeners:
                listener(rows)
            for comparing in self._comparing:
                comparing(written)
        if left:
            raise Transient(
                f"{len(left)} nodes were written by other daemons again and again, {next(iter(left))} is one"
            )
        return tuple(row for _, row in written)

    async def _tried(
        self, changes: Mapping[ProviderId, Change], *, is_lazy: bool
    ) -> tuple[Sequence[Written], Sequence[ProviderId]]:
        async with self._store.transaction(is_lazy=is_lazy) as transaction:
            rows = await transaction.load(changes.keys())
            changed = []
            befores: dict[ProviderId, NodeRow] = {}
            for node, change in changes.items():
                before = rows.get(node) or NodeRow(id=node)
                after = change(before)
                if after is None or after is before:
                    continue
                after = after_change(before, after, self.terms)
                if after != before:
                    changed.append(structs.replace(after, version=before.version))
                    befores[node] = before
                    _log_cell(before, after)
            if not changed:
                return (), ()
            saved = await transaction.save(changed)
        return [(befores[row.id], row) for row in saved.rows], saved.lost


def _log_cell(before: NodeRow, after: NodeRow) -> None:
    if after.cell_note and after.cell_note != before.cell_note:
        log.info("node %s: %s", after.id, after.cell_note)
    if before.cell and after.cell != before.cell:
        log.info("node %s went from cell %r to %r", after.id, before.cell, after.cell)


def node_of(word: Word) -> ProviderId | None:
    """The node that a word is about, if it names one."""
    match word:
        case NodeSaid():
            return word.node.id
        case NodeDoubted():
            return word.id
        case AllocationSaid() | Unreadable():
            return word.node
