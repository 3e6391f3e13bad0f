"""Reports the trees of hosts and pools to placement: completely at first, then only differences.

A report is repeated until placement answers it. Sequence numbers are taken from the clock, so that they keep rising after a restart without being stored.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Sequence

from bus.errors import Operational, WrongAnswer
from bus.message import Message, ProviderId
from bus.messages.placement import ReportAnswered, ReportInventory
from bus.parts import Background, PartGroup, Status, Supervised
from bus.workers.station import Station
from compute_sim.core.tree import ProviderTree, flaw_of
from compute_sim.core.tree_diff import (
    Accepted,
    MustReportAll,
    MustReshape,
    ReportRefused,
    ReportState,
    after_answer,
    report_of_changes,
)
from compute_sim.drivers import Driver
from compute_sim.fleet import Fleet
from compute_sim.host_reshaping import HostReshaper
from compute_sim.settings import ComputeSettings

log = logging.getLogger(__name__)

Asked = tuple[ReportInventory, ProviderTree]


class TreeReporter(PartGroup):
    def __init__(
        self,
        fleet: Fleet,
        station: Station,
        settings: ComputeSettings,
        next_sequence: Callable[[], int],
        tell_facts: Callable[[Iterable[ProviderId]], None],
        *,
        chance: random.Random | None = None,
    ) -> None:
        """`tell_facts` has the facts about these hosts published: whether placement takes their reports is one of them."""
        self._reports = Supervised("report inventories", self._report_what_changes, chance=chance)
        self._asking = Status("ask placement to take reports", chance=chance)
        super().__init__(self._reports, statuses=(self._asking,))
        self._fleet = fleet
        self._station = station
        self._settings = settings
        self._next_sequence = next_sequence
        self._tell_facts = tell_facts
        self._reporting: dict[ProviderId, ReportState] = {}
        self._touched: dict[ProviderId, None] = {}
        # Hosts with a single report that is not answered yet. They may change meanwhile.
        self._alone = Background(lambda host: self.touch((host,)))
        # Hosts that get a new shape. Their next report has to wait.
        self._reshaping = Background(lambda host: self.touch((host,)))
        self._reshaper = HostReshaper(station, settings)
        # Hosts whose reshape was refused. They are reported again with their next change, or after a while, and not at once.
        self._unshaped: dict[ProviderId, ProviderTree] = {}
        self._woken = asyncio.Event()
        self.touch(fleet.reported())

    def touch(self, hosts: Iterable[ProviderId]) -> None:
        """Have these hosts checked for changes."""
        self._touched.update(dict.fromkeys(hosts))
        self._woken.set()

    async def run(self) -> None:
        async with self._alone, self._reshaping:
            try:
                await super().run()
            finally:
                self._alone.cancel_all()
                self._reshaping.cancel_all()

    async def _report_what_changes(self) -> None:
        while True:
            await self._woken.wait()
            batch = list(self._touched)[: self._settings.reports_at_once_max]
            for host in batch:
                del self._touched[host]
            if not self._touched:
                self._woken.clear()
            await self._report(self._different(batch))
            self._reports.status.well()

    async def _report(self, asked: Sequence[Asked]) -> None:
        """Send all reports at once. If some get no answer, send each alone, so that one does not delay the others."""
        try:
            answers = await self._station.ask_all([report for report, _ in asked])
        except Operational as problem:
            self._asking.failed(problem)
            for report, tree in asked:
                self._alone.start(self._until_answered(report, tree), report.root)
            return
        for (report, tree), answer in zip(asked, answers, strict=True):
            self._answered(report, tree, answer)

    async def _until_answered(self, report: ReportInventory, tree: ProviderTree) -> None:
        """Repeat the same report until it is answered: perhaps it was accepted and only the answer was lost."""
        answer: Message | None = None
        while answer is None:
            await asyncio.sleep(self._settings.again_s)
            try:
                answer = await self._station.ask(report)
            except Operational as problem:
                self._asking.failed(problem)
        self._answered(report, tree, answer)

    def _different(self, hosts: Sequence[ProviderId]) -> list[Asked]:
        """The reports of those of these hosts that have changed and can send. Hosts that are silent are checked again
        when they come back.
        """
        at_s, sequence = self._fleet.clock_s(), self._next_sequence()
        asked = []
        free = [host for host in hosts if host not in self._alone and host not in self._reshaping]
        for host in self._fleet.well(free, at_s):
            reporting = self._reporting.setdefault(host, ReportState(ProviderTree(host), 0))
            tree = self._fleet.tree_of(host, reporting.accepted, at_s)
            if flaw := flaw_of(reporting.accepted, tree):
                log.error(
                    "the driver of host %s breaks its contract, the host is not reported: %s", host, flaw
                )
            elif self._unshaped.get(host) == tree:
                # Nothing has changed since the reshape was refused.
                continue
            elif report := report_of_changes(reporting, tree, self._settings.cell, sequence):
                asked.append((report, tree))
            else:
                # The host is again as placement has it.
                self._note_refusal(host, "")
        return asked

    def _answered(self, report: ReportInventory, tree: ProviderTree, answer: Message) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(answer, ReportAnswered):
            self._asking.failed(WrongAnswer(f"placement answered a report by {answer!r}"))
            loop.call_later(self._settings.again_s, self.touch, (report.root,))
            return
        self._asking.well()
        match after_answer(report, tree, answer.verdict):
            case Accepted(reporting):
                self._reporting[report.root] = reporting
                self._note_refusal(report.root, "")
            case MustReportAll(reporting):
                log.warning("another reporter has reported host %s: reporting it completely", report.root)
                self._reporting[report.root] = reporting
                loop.call_later(self._settings.again_s, self.touch, (report.root,))
            case MustReshape(reason):
                self._must_reshape(report, tree, reason)
            case ReportRefused(reason):
                self._note_refusal(report.root, reason)
                log.error(
                    "report of host %s refused, sent again with its next change: %s", report.root, reason
                )

    def _must_reshape(self, report: ReportInventory, tree: ProviderTree, reason: str) -> None:
        """Have what is held of the host move with its inventories, if its driver can say where it goes."""
        driver = self._fleet.get(report.root)
        if driver is None:
            log.error("report of pool %s refused, sent again with its next change: %s", report.root, reason)
            return
        log.warning("host %s has another shape: %s; it is to be reshaped", driver.host.name, reason)
        # The task of an unanswered report ends with this answer. The reshape is a task of its own.
        self._reshaping.start(self._reshape(driver, tree, report.sequence + 1), report.root)

    async def _reshape(self, driver: Driver, tree: ProviderTree, sequence: int) -> None:
        answer: Accepted | ReportRefused | None = None
        while answer is None:
            try:
                answer = await self._reshaper.reshape(driver, tree, sequence)
            except Operational as problem:
                self._asking.failed(problem)
                await asyncio.sleep(self._settings.again_s)
        self._asking.well()
        self._unshaped.pop(driver.root, None)
        match answer:
            case Accepted(reporting):
                self._reporting[driver.root] = reporting
                self._note_refusal(driver.root, "")
            case ReportRefused(reason):
                self._unshaped[driver.root] = tree
                again_s = self._settings.reshape_again_s
                # What it needs may leave the host meanwhile.
                asyncio.get_running_loop().call_later(again_s, self._reshape_again, driver.root)
                if self._note_refusal(driver.root, reason):
                    log.error(
                        "reshape of host %s refused, tried again with its next change and every %g s: %s",
                        *(driver.host.name, again_s, reason),
                    )

    def _reshape_again(self, host: ProviderId) -> None:
        if self._unshaped.pop(host, None) is not None:
            self.touch((host,))

    def _note_refusal(self, root: ProviderId, reason: str) -> bool:
        """Have the host tell why placement has refused its report, or that it has not. Returns whether that is news."""
        refused = self._fleet.refused_reports
        if self._fleet.get(root) is None or refused.get(root, "") == reason:
            return False
        refused[root] = reason
        if not reason:
            del refused[root]
        self._tell_facts((root,))
        return True
