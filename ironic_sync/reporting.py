"""Tells placement what nodes offer: as soon as a row is written, and again for rows that a daemon left unreported.

A report is numbered by its row's version under its owner's epoch, so placement refuses a report that is older than the last
one, whichever daemon sends it. Acceptances are written on the rows a moment later and in batches, since nothing waits for
them. Refusals are written at once.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence

from msgspec import structs

from bus.errors import Operational, WrongAnswer
from bus.measuring import Histogram, Readings
from bus.message import ProviderId
from bus.messages.placement import InventoryInUse, ReportAccepted, ReportAnswered
from bus.parts import Background, PartGroup, Periodic, Status, Supervised
from bus.workers.station import Station
from ironic_sync.applying import Change, NodeWriter
from ironic_sync.core.reports import ReportUnderWay, after_verdict, report_of
from ironic_sync.core.rows import NodeRow
from ironic_sync.metrics import EVENT_TO_SCHEDULABLE, REPORTS_ACCEPTED
from ironic_sync.settings import IronicSettings
from ironic_sync.store import NodeStore, pages_of

log = logging.getLogger(__name__)

Rows = dict[ProviderId, NodeRow]
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
        store: NodeStore,
        station: Station,
        settings: IronicSettings,
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
                settings.report_again_s,
                is_cut_short=True,
                chance=chance,
            ),
            statuses=(self._asking,),
        )
        self._writer = writer
        self._store = store
        self._station = station
        self._settings = settings
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
                if reports := self._take():
                    self._batches.start(self._ask(reports))
                self._reporting.status.well()

    def _take(self) -> list[ReportUnderWay]:
        batch = [*self._touched.values()][: self._settings.reports_at_once]
        for row in batch:
            del self._touched[row.id]
        if not self._touched:
            self._woken.clear()
        behind = {row.id: row.epoch_ahead for row in batch if row.is_behind and row.owner == self._daemon}
        if behind:
            self._overtake(behind)
        traits, foreign = self._writer.policy.standard_traits, self._settings.foreign_providers
        tried = [
            report_of(row, traits, foreign=foreign, may_try=row.id not in self._refused_trials)
            for row in batch
        ]
        reports = [sent for sent in tried if sent is not None]
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
            await self._writer.change(changes)
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
                await self._writer.change(notes, is_lazy=True)
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
        async for rows in pages_of(self._store, self._daemon, self._settings.page, needs="report"):
            self.touch(row for row in rows if self._asked.get(row.id) != row.version)

    async def _forget_events(self) -> None:
        """Forget the events of nodes that another daemon has reported since, or that have no row any more."""
        left = self._events.keys() - self._asked.keys() - self._touched.keys()
        rows = await self._store.read(left) if left else {}
        for node in left:
            if (row := rows.get(node)) is None or not row.needs_report:
                self._events.pop(node, None)
