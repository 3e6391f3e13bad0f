"""Reads nodes from Ironic's REST API: all nodes at an interval and after a gap, single nodes that are in doubt, and
nodes that changed lately.

Ironic loses notifications, and announces some changes not at all. A REST answer is applied only if the row was not written
since the request was sent; otherwise the node is read again. While Ironic is away, rows stay as they are.

Each read of a single node or allocation fails alone. It is tried again after a pause of its own, beside the reads of other nodes.
Such a failure does not make the daemon unready, as long as Ironic answers at all.

A node counts as deleted when Ironic answers 404 for it. If these are too many at once, or an instance of ours is there by the books,
they are kept reserved instead (ironic_sync/core/ordering.py), and the part "believe what Ironic lists" fails until they return or count as deleted.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import aclosing
from datetime import datetime, timedelta
from typing import TypeVar
from uuid import UUID

from msgspec import structs

from engine.inventories import ProviderId
from ironic_sync.applying import Change, NodeWriter, SteadyClock
from ironic_sync.core.node import Node
from ironic_sync.core.notifications import AllocationNotified
from ironic_sync.core.ordering import (
    NOT_LISTED,
    decide_missing,
    held_missing,
    not_listed,
    read_again,
    read_as_gone,
)
from ironic_sync.core.ring import Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import seen
from ironic_sync.membership import Membership
from ironic_sync.rest import CHANGE_TIMES, ChangeTime, HttpIronicApi
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import IronicStore, pages_of
from kit.clock import EPOCH, moment
from kit.errors import Operational, TookTooLong
from kit.parts import PartGroup, Pauses, Periodic, Status

log = logging.getLogger(__name__)

T = TypeVar("T")
Asked = TypeVar("Asked", bound=UUID)


# The row after an answer of Ironic: of the row now, the version that was read before, and the time of the answer.
Apply = Callable[[NodeRow, int, int], NodeRow | None]
# How many nodes and allocations are read from Ironic at once.
READS_AT_ONCE = 16
# More nodes than this are read as pages of the whole list.
SINGLE_READS_MAX = 50
# Clocks of Ironic's processes may differ by so much, and a change may be visible so long after its time.
CHANGES_OVERLAP = timedelta(seconds=10)
# A single read that takes longer is tried again beside the others, which need not wait for it then.
FIRST_READ_S_MAX = 5.0
# Of single reads that fail although Ironic answers.
PAUSES = Pauses(first_s=1.0, max_s=60.0)
# After so many failures in a row an allocation is left to the sweep, which reads all nodes.
ALLOCATION_TRIES_MAX = 8


class TooManyMissing(Operational):
    """More nodes are missing in Ironic at once than the daemon takes for deleted."""


class IronicDisagrees(Operational):
    """Ironic says of nodes what cannot be so by the books: a person must look at them."""


class Sweeper(PartGroup):
    """Reads nodes from Ironic: all of them at an interval and after a gap, and those in doubt at once."""

    def __init__(
        self,
        api: HttpIronicApi,
        writer: NodeWriter,
        store: IronicStore,
        membership: Membership,
        rules: DaemonRules,
        *,
        clock_s: Callable[[], float] = time.monotonic,
        chance: random.Random | None = None,
    ) -> None:
        self._sweeping = Periodic(
            "compare all nodes with Ironic", self._sweep, rules.sweep_s, is_cut_short=True, chance=chance
        )
        self._doubting = Periodic(
            "read nodes in doubt", self._read_doubted, rules.doubts_s, is_cut_short=True, chance=chance
        )
        self._failing_again = Periodic(
            "read again what could not be read",
            self._read_failing,
            self._until_due_s,
            is_cut_short=True,
            chance=chance,
        )
        self._changing = Periodic(
            "look for changed nodes",
            self._look_for_changes,
            rules.changes_s,
            is_cut_short=True,
            chance=chance,
        )
        self._believing = Status("believe what Ironic lists", chance=chance)
        # Failures of single reads: they are logged and counted here, and do not make the daemon unready.
        self._reading = Status("read single nodes", chance=chance)
        super().__init__(
            self._sweeping,
            self._doubting,
            self._failing_again,
            self._changing,
            statuses=(self._believing, self._reading),
        )
        self._steady_us = SteadyClock(writer.clock_us, clock_s, forgets_s=rules.belief.after_s)
        # The nodes that were believed to be gone, each with the time of that.
        self._lost_at: dict[ProviderId, int] = {}
        self._api = api
        self._writer = writer
        self._store = store
        self._membership = membership
        self._rules = rules
        # Nodes to be read; those that a list lacks are read by themselves, however many they are.
        self._suspects: dict[ProviderId, None] = {}
        self._unlisted: dict[ProviderId, None] = {}
        self._allocations: dict[UUID, None] = {}
        # Nodes and allocations that could not be read: how often in a row, and when they are due again, by the loop's clock.
        self._failing: dict[UUID, tuple[int, float]] = {}
        self._chance = chance or random.Random("read single nodes")
        # The next sweep compares other daemons' nodes as well: they may not know that a notification was missed.
        self._is_for_all = False
        # The times of the last change and of the last creation of a node that was looked at; none before the first look.
        self._changed_to: dict[ChangeTime, datetime] = {}
        self.sweeps = 0

    # What others tell

    def touch(self, rows: Iterable[NodeRow]) -> None:
        """Of rows that were just written: read the nodes in doubt from Ironic at once, whichever daemon owns them."""
        self._suspect_rows(row for row in rows if row.doubts)

    def gained(self, nodes: Sequence[Owned]) -> None:
        self._suspect(each.id for each in nodes)

    def lost(self, nodes: Sequence[ProviderId]) -> None:
        for node in nodes:
            self._forget(node)

    def gap(self, why: str) -> None:
        """Have all nodes read again, since notifications may have been missed."""
        log.info("all nodes are read again: %s", why)
        self._is_for_all = True
        self._sweeping.wake()

    def look_into(self, allocations: Sequence[AllocationNotified]) -> None:
        self._allocations.update(dict.fromkeys(each.allocation for each in allocations))
        self._doubting.wake()

    def _suspect(self, nodes: Iterable[ProviderId]) -> None:
        self._add(self._suspects, nodes)

    def _suspect_rows(self, rows: Iterable[NodeRow]) -> None:
        for row in rows:
            is_unlisted = NOT_LISTED in row.doubts or row.is_deleted
            self._add(self._unlisted if is_unlisted else self._suspects, (row.id,))

    def _add(self, to_read: dict[ProviderId, None], nodes: Iterable[ProviderId]) -> None:
        before = len(to_read)
        to_read.update(dict.fromkeys(nodes))
        if len(to_read) > before:
            self._doubting.wake()

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
            for node in self._lost_at.keys() & listed:
                # It is back: its loss was a false one.
                del self._lost_at[node]
            await self._compare(page.nodes, rows, known)
        await self._handle_unlisted(listed, rows)

    async def _rows_of(self, owners: Iterable[str]) -> dict[ProviderId, NodeRow]:
        """The rows of these daemons' nodes, read before Ironic is asked. If a row is written meanwhile, Ironic's
        answer is not applied to it, and its node is read again by itself.
        """
        rows: dict[ProviderId, NodeRow] = {}
        for owner in sorted(owners):
            async for page in pages_of(self._store, owner, self._rules.page):
                rows.update((row.id, row) for row in page)
        return rows

    async def _compare(
        self, nodes: Sequence[Node], rows: dict[ProviderId, NodeRow], known: AbstractSet[ProviderId]
    ) -> None:
        changes: dict[ProviderId, Change] = {}
        for node in nodes:
            row = rows.get(node.id)
            if row is None and node.id in known:
                # Another daemon's, which compares it itself.
                continue
            if row is None or row.needs_read or row.is_deleted or row.missing_since_us or row.node != node:
                changes[node.id] = self._change_by(row.version if row else 0, _as_found(node))
        rows.update((row.id, row) for row in await self._writer.change_each(changes))

    async def _handle_unlisted(
        self, listed: AbstractSet[ProviderId], rows: Mapping[ProviderId, NodeRow]
    ) -> None:
        """Have the nodes that Ironic's list lacks read one by one, since only a 404 for the node itself says that it
        is deleted. If too many are missing, they are kept reserved instead.
        """
        known = [row for row in rows.values() if not row.is_deleted]
        gone, held = await self._decide([row for row in known if row.id not in listed], len(known))
        await self._writer.change_each(
            {row.id: self._change_by(row.version, held_missing) for row in held}
            | {row.id: not_listed for row in gone}
        )
        if held:
            self._say_missing(held, len(known))
        elif in_trouble := [row for row in known if row.trouble]:
            self._say_trouble(in_trouble)
        else:
            self._believing.well()

    async def _decide(
        self, missing: Sequence[NodeRow], known: int
    ) -> tuple[Sequence[NodeRow], Sequence[NodeRow]]:
        at_us = self._steady_us()
        since_us = at_us - self._rules.belief.after_us
        self._lost_at = {node: lost_us for node, lost_us in self._lost_at.items() if lost_us > since_us}
        lost_lately = len(self._lost_at)
        if missing and (await self._store.alarms(moment(at_us))).older:
            # They may be younger than the backup.
            return (), missing
        return decide_missing(
            missing,
            known=known + lost_lately,
            lost_lately=lost_lately,
            at_us=at_us,
            belief=self._rules.belief,
        )

    def _say_missing(self, held: Sequence[NodeRow], known: int) -> None:
        log.debug("nodes that Ironic lacks are held: too many are missing, or they were missing before")
        problem = TooManyMissing(
            f"Ironic has lost {len(held)} of {known} nodes, {held[0].id} is one: they are held, not removed. Is it the right "
            "Ironic, and may this user see all nodes? They are removed when they stay missing for "
            f"{self._rules.belief.after_s:g} s without an instance of ours, or by `moor node ring missing --remove`"
        )
        log.error("%s", problem)
        self._believing.failed(problem)

    def _say_trouble(self, rows: Sequence[NodeRow]) -> None:
        first = min(rows, key=lambda row: (row.older_than is None, row.id))
        answer = "; `moor node ring older` lists them and takes the answer" if first.older_than else ""
        problem = IronicDisagrees(
            f"Ironic and the books disagree about {len(rows)} nodes, which `moor status` names; node {first.id} is one: "
            f"{first.trouble}. Nothing is done there without a person's order{answer}"
        )
        self._believing.failed(problem)

    # Nodes that changed lately

    async def _look_for_changes(self) -> None:
        """Find nodes of this daemon that Ironic changed or created lately and that differ from their rows, and have
        them read again: their notifications were lost, or are late.
        """
        for by in CHANGE_TIMES:
            await self._look_for(by)

    async def _look_for(self, by: ChangeTime) -> None:
        """Ironic's processes and this daemon have different clocks. So the next look begins where the last one found the
        newest change, and not later than this look began.
        """
        began = moment(self._writer.clock_us())
        known_to = self._changed_to.get(by)
        since = EPOCH if known_to is None else known_to - CHANGES_OVERLAP
        newest, count = known_to or EPOCH, 0
        async with aclosing(self._api.changed_since(since, by)) as pages:
            async for page in pages:
                nodes = {each.node.id: each.node for each in page}
                rows = await self._store.read(nodes)
                self._suspect(id_ for id_, node in nodes.items() if self._is_news(rows.get(id_), node))
                newest = max([newest, *(each.at for each in page)])
                count += len(page)
                # Nodes are often created together. If the newest ones are known, so are the others.
                are_known = by == "created_at" and count > 1 and len(rows) == len(nodes)
                if known_to is None or count >= self._rules.page or are_known:
                    # The first sweep reads all nodes. And of so many changes, the next sweep finds what is missing.
                    break
        self._changed_to[by] = min(newest, began)

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
        self._suspect_rows(await self._store.page_of(self._membership.name, self._rules.page, needs="read"))
        await self._find_nodes_of(
            [each for each in self._allocations if each not in self._failing], FIRST_READ_S_MAX
        )
        suspects = [each for each in self._suspects if each not in self._failing]
        if len(suspects) > SINGLE_READS_MAX:
            log.debug("too many nodes are to be read alone: all are listed")
            # As after a takeover: a list of all nodes costs less. Other daemons' nodes are in it only if all are compared.
            self._is_for_all = self._is_for_all or any(
                node not in self._membership.owned for node in suspects
            )
            for node in suspects:
                del self._suspects[node]
            suspects = []
            self._sweeping.wake()
        suspects += [each for each in self._unlisted if each not in self._failing]
        await self._read(suspects[: self._rules.page], FIRST_READ_S_MAX)

    async def _read_failing(self) -> None:
        """Read those nodes and allocations again that could not be read and whose pauses are over."""
        now_s = asyncio.get_running_loop().time()
        wanted = {*self._allocations, *self._suspects, *self._unlisted}
        self._failing = {each: when for each, when in self._failing.items() if each in wanted}
        due = [each for each, (_, due_s) in self._failing.items() if due_s <= now_s]
        found = [each for each in due if each in self._allocations]
        await self._find_nodes_of(found)
        await self._read([ProviderId(each) for each in due if each not in found])
        if not self._failing:
            self._reading.well()

    def _until_due_s(self) -> float:
        now_s = asyncio.get_running_loop().time()
        return min((due_s - now_s for _, due_s in self._failing.values()), default=PAUSES.max_s)

    async def _find_nodes_of(self, allocations: Sequence[UUID], within_s: float | None = None) -> None:
        answers = await self._answers(allocations, self._api.node_of_allocation, within_s)
        for allocation, node in answers.items():
            if not isinstance(node, Operational):
                self._suspect(() if node is None else (node,))
            elif self._put_off(allocation, node) < ALLOCATION_TRIES_MAX:
                continue
            self._failing.pop(allocation, None)
            self._allocations.pop(allocation, None)

    async def _read(self, nodes: Sequence[ProviderId], within_s: float | None = None) -> None:
        """Read these nodes from Ironic, each by a request of its own and several at once, and apply the answers."""
        rows = await self._writer.read(nodes)
        answers = await self._answers(nodes, self._api.node, within_s)
        found = {node: answer for node, answer in answers.items() if not isinstance(answer, Operational)}
        if nodes and not found:
            await self._check_that_ironic_answers()
        for node, answer in answers.items():
            if isinstance(answer, Operational):
                self._put_off(node, answer)
                continue
            self._forget(node)
            if answer is not None:
                self._lost_at.pop(node, None)
        unfound = (rows[node] for node, answer in found.items() if answer is None)
        missing = [row for row in unfound if row.version and not row.is_deleted]
        # A daemon reads nodes of others as well.
        known = max(len(self._membership.owned), len(nodes))
        gone, held = await self._decide(missing, known)
        await self._writer.change_each(
            {node: self._change_by(rows[node].version, _as_found(answer)) for node, answer in found.items()}
            | {row.id: self._change_by(row.version, held_missing) for row in held}
        )
        self._lost_at |= {row.id: self._steady_us() for row in gone if not row.missing_since_us}
        if held:
            self._say_missing(held, known)

    async def _answers(
        self, asked: Sequence[Asked], ask: Callable[[Asked], Awaitable[T]], within_s: float | None
    ) -> dict[Asked, T | Operational]:
        """Ironic's answer about each of these, or why there is none."""
        at_once = asyncio.Semaphore(READS_AT_ONCE)

        async def answer(each: Asked) -> T | Operational:
            try:
                async with at_once, asyncio.timeout(within_s):
                    return await ask(each)
            except TimeoutError:
                return TookTooLong(f"Ironic did not answer within {within_s} s")
            except Operational as problem:
                return problem

        async with asyncio.TaskGroup() as reading:
            tasks = {each: reading.create_task(answer(each)) for each in asked}
        return {each: task.result() for each, task in tasks.items()}

    async def _check_that_ironic_answers(self) -> None:
        """Raise if Ironic is away, or refuses the daemon's user: then no single node is to blame."""
        now = moment(self._writer.clock_us())
        async with aclosing(self._api.changed_since(now)) as pages:
            await anext(pages, None)

    def _put_off(self, asked: UUID, problem: Operational) -> int:
        """Read this node or allocation again after a pause of its own. Returns how often it has failed in a row."""
        tries = self._failing.get(asked, (0, 0.0))[0] + 1
        due_s = asyncio.get_running_loop().time() + PAUSES.after(tries, self._chance)
        self._failing[asked] = tries, due_s
        self._reading.left(Operational(f"{asked} cannot be read from Ironic: {problem}"))
        self._failing_again.wake()
        return tries

    def _forget(self, node: ProviderId) -> None:
        self._suspects.pop(node, None)
        self._unlisted.pop(node, None)
        self._failing.pop(node, None)

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
        store: IronicStore,
        membership: Membership,
        rules: DaemonRules,
        *,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("adopt gained nodes", self._adopt, rules.doubts_s, is_cut_short=True, chance=chance)
        self._writer = writer
        self._store = store
        self._membership = membership
        self._page = rules.page

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
            await self._writer.change_each({row.id: self._adopted for row in rows})

    def _adopted(self, row: NodeRow) -> NodeRow:
        return seen(row) if _is_owned(row, self._membership) else row
