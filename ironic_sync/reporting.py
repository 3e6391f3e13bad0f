"""Tells placement what nodes offer: as soon as a row is written, and again for rows that a daemon left unreported.

A report is numbered by its row's version under its owner's epoch, so placement refuses a report that is older than the last
one, whichever daemon sends it. Acceptances are written on the rows a moment later and in batches, since nothing waits for
them. Refusals are written at once.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from msgspec import structs

from bus.messages.hosts import HostsReported, in_messages
from bus.messages.placement import InventoryInUse, ReportAccepted, ReportAnswered
from bus.workers.connections import Station
from bus.workers.heartbeats import HostAnnouncer
from bus.workers.publisher import Publisher
from engine.hosts import NODE, HostFacts
from engine.inventories import CellName, ProviderId
from ironic_sync.applying import EVENT_TO_SCHEDULABLE, REPORTS_ACCEPTED, Change, NodeWriter
from ironic_sync.core.reports import ReportUnderWay, after_verdict, report_of
from ironic_sync.core.ring import Owned
from ironic_sync.core.rows import NodeRow
from ironic_sync.membership import Membership
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import IronicStore, pages_of
from kit.errors import Operational, WrongAnswer
from kit.metrics import Histogram, Readings
from kit.parts import Background, PartGroup, Periodic, Status, Supervised

log = logging.getLogger(__name__)

Rows = dict[ProviderId, NodeRow]
# How many nodes are reported at once: the answers of more would come late.
REPORTS_AT_ONCE = 100
# How many batches of reports may wait for their answers.
BATCHES_MAX = 4
# How long acceptances gather before they are written: a row that changes again is reported again, whatever is noted of it.
NOTES_GATHER_S = 0.2


class Reporter(PartGroup):
    """Tells placement what nodes offer: those whose rows this daemon writes, and those of its own that were left
    unreported.
    """

    def __init__(
        self,
        writer: NodeWriter,
        store: IronicStore,
        station: Station,
        rules: DaemonRules,
        *,
        daemon: str,
        overtake: Callable[[Mapping[ProviderId, int]], None],
        chance: random.Random | None = None,
    ) -> None:
        """`overtake` is called with this daemon's nodes whose epochs are behind those that placement knows."""
        self._reporting = Supervised("report nodes", self._report_until_stopped, chance=chance)
        self._asking = Status("ask placement to take reports", chance=chance)
        self._noting = Supervised("note what placement took", self._note_until_stopped, chance=chance)
        super().__init__(
            self._reporting,
            self._noting,
            Periodic(
                "report what is left",
                self._find_unreported,
                rules.report_again_s,
                is_cut_short=True,
                chance=chance,
            ),
            statuses=(self._asking,),
        )
        self._writer = writer
        self._store = store
        self._station = station
        self._rules = rules
        self._daemon = daemon
        self._touched: Rows = {}
        self._overtake = overtake
        # Nodes that were just refused a trial: until the next look at what is left, only their offers are reported.
        self._refused_trials: set[ProviderId] = set()
        self._woken = asyncio.Event()
        # Acceptances that are not written yet, of each node the last.
        self._accepted: dict[ProviderId, Change] = {}
        self._has_notes = asyncio.Event()
        # The versions of rows that placement was asked to take, until its answer is written: these are not left unreported.
        self._asked: dict[ProviderId, int] = {}
        self._batches = Background()
        self.accepted = 0
        # When the events happened that placement has not heard of yet, of each node the first one, and the version that it
        # made.
        self._events: dict[ProviderId, tuple[int, int]] = {}
        self._heard_of = Histogram(EVENT_TO_SCHEDULABLE)

    @property
    def readings(self) -> Readings:
        return (self._heard_of, REPORTS_ACCEPTED.numbers({(): self.accepted}))

    def touch(self, rows: Iterable[NodeRow]) -> None:
        """Report those of the written rows that placement must hear of."""
        for row in rows:
            if row.needs_report:
                known = self._touched.get(row.id)
                if known is None or known.version <= row.version:
                    self._touched[row.id] = row
                    self._woken.set()
            else:
                self._events.pop(row.id, None)

    def await_offers(self, rows: Iterable[NodeRow]) -> None:
        """Measure how long it takes until placement has what an event has just changed in these rows."""
        for row in rows:
            if row.needs_report:
                self._events.setdefault(row.id, (row.version, row.heard_at_us))

    def _measure(self, accepted: ReportUnderWay) -> None:
        version, happened_at_us = self._events.get(accepted.report.root, (0, 0))
        if happened_at_us and accepted.version >= version:
            del self._events[accepted.report.root]
            self._heard_of.observe((self._writer.clock_us() - happened_at_us) / 1_000_000)

    def try_foreign(self, rows: Iterable[NodeRow]) -> None:
        """Report the nodes again that are left alone because another program keeps their providers: it may have let
        go of them, or an operator wants them taken over (`foreign_providers`).
        """
        self.touch(structs.replace(row, is_foreign=False) for row in rows if row.is_foreign)

    async def _report_until_stopped(self) -> None:
        async with self._batches:
            while True:
                await self._woken.wait()
                await self._batches.until_fewer_than(BATCHES_MAX)
                if reports := await self._take():
                    self._batches.start(self._ask(reports))
                self._reporting.status.well()

    async def _take(self) -> list[ReportUnderWay]:
        batch = [*self._touched.values()][:REPORTS_AT_ONCE]
        for row in batch:
            del self._touched[row.id]
        if not self._touched:
            self._woken.clear()
        behind = {row.id: row.epoch_ahead for row in batch if row.is_behind and row.owner == self._daemon}
        if behind:
            self._overtake(behind)
        traits, foreign = self._writer.policy.standard_traits, self._rules.foreign_providers
        reports: list[ReportUnderWay] = []
        for row in self._writer.rows.awake(batch, lambda row: row.id):
            may_try = row.id not in self._refused_trials
            async with self._writer.rows.trying(row.id):
                if sent := report_of(row, traits, foreign=foreign, may_try=may_try):
                    reports.append(sent)
        self._asked |= {each.report.root: each.version for each in reports}
        return reports

    async def _ask(self, sent: Sequence[ReportUnderWay]) -> None:
        """Send reports to placement and take its answers. Reports that fail here are found again as unreported rows."""
        versions = {each.report.root: each.version for each in sent}
        try:
            answers = await self._station.ask_all([each.report for each in sent])
            changes: dict[ProviderId, Change] = {}
            for each, answer in zip(sent, answers, strict=True):
                if not isinstance(answer, ReportAnswered):
                    raise WrongAnswer(f"placement answered a report by {answer!r}")
                change = self._change_by(each, answer)
                if isinstance(answer.verdict, ReportAccepted) and not each.is_trial:
                    self._measure(each)
                    self._accepted[each.report.root] = change
                    self._has_notes.set()
                else:
                    changes[each.report.root] = change
            await self._writer.change_each(changes)
            self._forget({node: versions[node] for node in changes})
        except Operational as problem:
            self._forget(versions)
            self._asking.left(problem)
        else:
            self._asking.well()

    async def _note_until_stopped(self) -> None:
        while True:
            await self._has_notes.wait()
            await asyncio.sleep(NOTES_GATHER_S)
            self._has_notes.clear()
            notes, self._accepted = self._accepted, {}
            versions = {node: self._asked[node] for node in notes if node in self._asked}
            try:
                # A note that is lost is found out again: the row is reported once more.
                await self._writer.change_each(notes, is_lazy=True)
            except Operational:
                self._accepted = notes | self._accepted
                self._has_notes.set()
                raise
            self._forget(versions)
            self._noting.status.well()

    def _forget(self, versions: Mapping[ProviderId, int]) -> None:
        """Mark these versions of rows as no longer under way to placement. A node of which a later version was sent
        since stays marked.
        """
        for node, version in versions.items():
            if self._asked.get(node) == version:
                del self._asked[node]

    def _change_by(self, sent: ReportUnderWay, answer: ReportAnswered) -> Change:
        def change(row: NodeRow) -> NodeRow:
            after = after_verdict(row, sent, answer.verdict)
            if after.report_note and after.report_note != row.report_note:
                log.warning("report of node %s: %s", row.id, after.report_note)
            if isinstance(answer.verdict, InventoryInUse):
                self._refused_trials.add(row.id)
                self.touch((after,))
            return after

        self.accepted += isinstance(answer.verdict, ReportAccepted)
        return change

    async def _find_unreported(self) -> None:
        """Find unreported rows of this daemon's nodes, and repeat refused reports."""
        self._refused_trials.clear()
        await self._forget_events()
        async for rows in pages_of(self._store, self._daemon, self._rules.page, needs="report"):
            self.touch(row for row in rows if self._asked.get(row.id) != row.version)

    async def _forget_events(self) -> None:
        """Forget the events of nodes that another daemon has reported since, or that have no row any more."""
        left = self._events.keys() - self._asked.keys() - self._touched.keys()
        rows = await self._store.read(left) if left else {}
        for node in left:
            if (row := rows.get(node)) is None or not row.needs_report:
                self._events.pop(node, None)


# Reports nodes to the host registry, and sends the heartbeats of the nodes that this daemon owns. A node that Ironic
# has deleted is reported as gone.
#
# A node is up while its owner sends its heartbeats. Each report is numbered by the row's version and the owner's epoch, so the
# registry drops an older report, whichever daemon sends it.


class NodeAnnouncer(HostAnnouncer[NodeRow]):
    """Reports nodes to the host registry, and sends the heartbeats of this daemon's nodes."""

    def __init__(
        self,
        store: IronicStore,
        membership: Membership,
        publisher: Publisher,
        rules: DaemonRules,
        *,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(
            "tell of nodes",
            "vouch for nodes",
            publisher,
            every_s=rules.beat_s,
            beat_s=rules.beat_s,
            chance=chance,
        )
        self._store = store
        self._membership = membership
        self._rules = rules
        # The nodes that were reported to the registry, each with its cell.
        self._reported: dict[ProviderId, str] = {}
        self._gained: dict[ProviderId, None] = {}

    def touch(self, written: Iterable[tuple[NodeRow, NodeRow]]) -> None:
        """Report those of the written rows whose facts for the registry changed by this write.

        Each row is compared as it was before the write and after it, not with this daemon's last report: another
        daemon may have reported something else since.
        """
        self.tell_again(
            row for before, row in written if (before.cell, _facts(before)) != (row.cell, _facts(row))
        )

    def tell_again(self, rows: Iterable[NodeRow]) -> None:
        """Report the nodes of these rows, even if nothing changed: another daemon may have written the rows and died
        before its report. A deleted node is reported as gone, and gets no heartbeats any more.
        """
        for row in rows:
            if row.is_deleted:
                # No heartbeats for a deleted node, even if it is being reported.
                for known in (self._reported, self.sending):
                    known.pop(row.id, None)
            waiting = self.touched.get(row.id)
            # An older row may come late: it was read before the newer one was written.
            if row.cell and row.node is not None and (waiting is None or waiting.version <= row.version):
                self.touched[row.id] = row
                self.reporting.wake()

    def gained(self, nodes: Sequence[Owned]) -> None:
        """Report these nodes, which the daemon now owns, under their new epoch."""
        self._gained.update(dict.fromkeys(each.id for each in nodes))
        self.reporting.wake()

    def lost(self, nodes: Sequence[ProviderId]) -> None:
        for node in nodes:
            self._reported.pop(node, None)
            self._gained.pop(node, None)

    async def report(self) -> None:
        while self._gained:
            some = [*self._gained][: self._rules.page]
            self.tell_again((await self._store.read(some)).values())
            for node in some:
                self._gained.pop(node, None)
        await super().report()
        self._reported.update((row.id, row.cell) for row in self.sending.values() if not row.is_deleted)

    async def reports(self, touched: Mapping[ProviderId, NodeRow]) -> Iterator[HostsReported]:
        return _reports(touched.values())

    def alive(self) -> Mapping[CellName, Sequence[ProviderId]]:
        """The nodes to send heartbeats for, by cell: those that this daemon owns and has reported. None while its
        lease may be over.
        """
        cells: dict[CellName, list[ProviderId]] = {}
        if self._membership.may_act():
            for node in self._membership.owned:
                if (cell := self._reported.get(node)) is not None:
                    cells.setdefault(cell, []).append(node)
        return cells


def _facts(row: NodeRow) -> HostFacts | None:
    """A node's facts for the host registry; None if nothing is known of it. As in placement, its name is its id, since
    Ironic's names may be null and may change.
    """
    node = row.node
    if node is None:
        return None
    if row.is_deleted:
        return HostFacts(id=row.id, name=str(row.id), hypervisor_type=NODE, kind=NODE, is_gone=True)
    return HostFacts(
        id=row.id,
        name=str(row.id),
        instances=int(node.instance_uuid is not None),
        hypervisor_type=NODE,
        kind=NODE,
        projects=tuple(dict.fromkeys(each for each in (node.owner, node.lessee) if each)),
    )


def _reports(rows: Iterable[NodeRow]) -> Iterator[HostsReported]:
    cells: dict[str, list[HostFacts]] = {}
    for row in rows:
        facts = _facts(row)
        assert facts is not None, "only known nodes are reported"
        numbered = structs.replace(facts, epoch=row.epoch, sequence=row.version)
        cells.setdefault(row.cell, []).append(numbered)
    for cell, hosts in cells.items():
        for some in in_messages(hosts):
            yield HostsReported(cell=cell, hosts=some)
