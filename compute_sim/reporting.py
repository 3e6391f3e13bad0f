"""Reports the trees of hosts and pools to placement: completely at first, then only differences.

A report is repeated until placement answers it. Sequence numbers are taken from the clock, so that they keep rising after a restart without being stored.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from bus.message import Message
from bus.messages.books import ConsumerMoved
from bus.messages.hosts import (
    AskHostShape,
    CheckHost,
    HostHolder,
    HostImages,
    HostMetrics,
    HostReshaped,
    HostsAlive,
    HostShapeFound,
    HostsMeasured,
    HostsReported,
    ImagesCached,
    ReshapeHost,
    in_messages,
)
from bus.messages.placement import (
    InventoryInUse,
    ReportAccepted,
    ReportAnswered,
    ReportInventory,
    ReportOutdated,
)
from bus.workers.connections import Station
from bus.workers.heartbeats import HostAnnouncer
from bus.workers.publisher import Outgoing, Publisher
from compute_sim.core.hosts import facts_of, holdings
from compute_sim.core.trees import (
    Accepted,
    Allocations,
    CannotReshape,
    MustReportAll,
    MustReshape,
    ProviderTree,
    ReportRefused,
    ReportState,
    after_answer,
    flaw_of,
    flaw_of_answer,
    known_tree,
    moved,
    report_of_changes,
    whole_report,
    with_made_by_name,
)
from compute_sim.drivers import Driver
from compute_sim.handlers import ComputeStore, Fleet
from compute_sim.settings import USUAL_PACE, ComputePace, ComputeSettings
from engine.inventories import CellName, ConsumerId, ProviderId, ProviderState, ResourceAmount
from engine.refusals import DoesNotFit, ShapeMoved
from kit.errors import Operational, WrongAnswer
from kit.parts import Background, PartGroup, Pauses, Periodic, Status, Supervised

log = logging.getLogger(__name__)

# Brings a host into a new shape while instances live there, after placement has refused its report for what they hold.
#
# It asks placement for the tree and its holders, asks the driver for their new places, and sends both in one order. If something
# changed in between, for instance since a boot claimed something there, it begins again.


# A host where boots claim all the time moves a few times; more is no race.
TRIES_MAX = 10


class HostReshaper:
    def __init__(self, station: Station, cell: CellName, again_s: float) -> None:
        self._station = station
        self._cell = cell
        self._again_s = again_s

    async def reshape(self, driver: Driver, tree: ProviderTree, sequence: int) -> Accepted | ReportRefused:
        """Have placement take this tree, with what is held of it at its new places. Raises `Operational` if placement does not
        answer.
        """
        refused = ReportRefused("")
        for number in range(TRIES_MAX):
            if number:
                await asyncio.sleep(self._again_s)
            found = await self._try(driver, tree, sequence + number)
            if not isinstance(found, str):
                return found
            log.info("reshape of host %s: %s; it is tried again", driver.host.name, found)
            refused = ReportRefused(f"after {TRIES_MAX} tries of a reshape: {found}")
        return refused

    async def _try(self, driver: Driver, tree: ProviderTree, sequence: int) -> Accepted | ReportRefused | str:
        """What became of it; a text says what has changed since placement was asked, so that it is to be tried again."""
        states, generations, before = await self._shape_of(tree)
        if not states:
            return ReportRefused(
                "placement has no tree of this host in this cell, so there is nothing to reshape"
            )
        known, new = known_tree(tree.root, states), with_made_by_name(tree, states)
        after = driver.reshape(known, new, before)
        if isinstance(after, CannotReshape):
            return ReportRefused(f"the host cannot get its new shape: {after.reason}")
        if flaw := flaw_of_answer(new, before, after):
            return ReportRefused(f"the driver breaks its contract: {flaw}")
        moving = moved(before, after)
        report = whole_report(tree, self._cell, sequence)
        order = ReshapeHost(
            cell=self._cell,
            root=tree.root,
            shape=states[0].shape,
            providers=report.providers,
            sequence=report.sequence,
            moved=tuple(
                [HostHolder(consumer=one, generation=generations[one], amounts=after[one]) for one in moving]
            ),
        )
        answer = await self._station.ask(order)
        if not isinstance(answer, HostReshaped):
            raise WrongAnswer(f"placement answered a reshape by {answer!r}")
        match answer.verdict:
            case ReportAccepted():
                log.warning(
                    "host %s has another shape now: %d providers were %d, and %d consumers hold what they held of others of them",
                    *(driver.host.name, len(new.providers), len(known.providers), len(moving)),
                )
                driver.reshaped(after)
                return Accepted(ReportState(tree, sequence))
            case ShapeMoved() | ConsumerMoved() | InventoryInUse() | DoesNotFit() | ReportOutdated():
                return f"placement answered {answer.verdict}"
            case verdict:
                return ReportRefused(str(verdict))

    async def _shape_of(
        self, tree: ProviderTree
    ) -> tuple[tuple[ProviderState, ...], dict[ConsumerId, int], Allocations]:
        """The host's providers, and what each consumer holds of them, with its generation."""
        states: tuple[ProviderState, ...] = ()
        generations: dict[ConsumerId, int] = {}
        held: dict[ConsumerId, tuple[ResourceAmount, ...]] = {}
        after: ConsumerId | None = None
        while True:
            question = AskHostShape(cell=self._cell, root=tree.root, after=after)
            answer = await self._station.ask(question)
            if not isinstance(answer, HostShapeFound):
                raise WrongAnswer(f"placement answered a question for a host's shape by {answer!r}")
            states = states or answer.providers
            for each in answer.holders:
                generations[each.consumer], held[each.consumer] = each.generation, each.amounts
            if answer.next is None:
                return states, generations, held
            after = answer.next


# How many trees are reported at once: more would load placement more.
REPORTS_AT_ONCE_MAX = 400
# How often all hosts tell their cached images, for schedulers that have just started; changed ones are told with facts.
IMAGES_EVERY_S = 300.0

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
        pace: ComputePace = USUAL_PACE,
        chance: random.Random | None = None,
    ) -> None:
        """`tell_facts` has the facts about these hosts published: whether placement takes their reports is one of them."""
        self._reports = Supervised("report inventories", self._report_what_changes, chance=chance)
        pauses = Pauses(pace.again_s, pace.again_s)
        self._asking = Status("ask placement to take reports", pauses=pauses, chance=chance)
        super().__init__(self._reports, statuses=(self._asking,))
        self._fleet = fleet
        self._station = station
        self._cell = settings.cell
        self._pace = pace
        self._next_sequence = next_sequence
        self._tell_facts = tell_facts
        self._reporting: dict[ProviderId, ReportState] = {}
        self._touched: dict[ProviderId, None] = {}
        # Hosts of which placement may have nothing any more, with the state from which they report next.
        self._unknown: dict[ProviderId, ReportState] = {}
        # Hosts with a single report that is not answered yet. They may change meanwhile.
        self._alone = Background(lambda host: self.touch((host,)))
        # Hosts that get a new shape. Their next report has to wait.
        self._reshaping = Background(lambda host: self.touch((host,)))
        self._reshaper = HostReshaper(station, settings.cell, pace.again_s)
        # Hosts whose reshape was refused. They are reported again with their next change, or after a while, and not at once.
        self._unshaped: dict[ProviderId, ProviderTree] = {}
        self._woken = asyncio.Event()
        self.touch(fleet.reported())

    def touch(self, hosts: Iterable[ProviderId]) -> None:
        """Have these hosts checked for changes."""
        self._touched.update(dict.fromkeys(hosts))
        self._woken.set()

    def report_whole(self, hosts: Iterable[ProviderId]) -> None:
        """Have these hosts report all of their trees, and not only what has changed."""
        for host in hosts:
            known = self._reporting.get(host)
            if known is not None:
                self._unknown[host] = ReportState(ProviderTree(host), known.sequence)
        self.touch(self._unknown)

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
            batch = list(self._touched)[:REPORTS_AT_ONCE_MAX]
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
        await asyncio.sleep(self._pace.again_s)
        answer = await self._asking.until_done(partial(self._station.ask, report))
        self._answered(report, tree, answer)

    def _different(self, hosts: Sequence[ProviderId]) -> list[Asked]:
        """The reports of those of these hosts that have changed and can send. Hosts that are silent are checked again
        when they come back.
        """
        at_s, sequence = self._fleet.clock_s(), self._next_sequence()
        asked = []
        free = [host for host in hosts if host not in self._alone and host not in self._reshaping]
        for host in self._fleet.well(free, at_s):
            if (unknown := self._unknown.pop(host, None)) is not None:
                self._reporting[host] = unknown
            reporting = self._reporting.setdefault(host, ReportState(ProviderTree(host), 0))
            tree = self._fleet.tree_of(host, reporting.accepted, at_s)
            if flaw := flaw_of(reporting.accepted, tree):
                log.error(
                    "the driver of host %s breaks its contract, the host is not reported: %s", host, flaw
                )
            elif self._unshaped.get(host) == tree:
                # Nothing has changed since the reshape was refused.
                continue
            elif report := report_of_changes(reporting, tree, self._cell, sequence):
                asked.append((report, tree))
            else:
                # The host is again as placement has it.
                self._note_refusal(host, "")
        return asked

    def _answered(self, report: ReportInventory, tree: ProviderTree, answer: Message) -> None:
        loop = asyncio.get_running_loop()
        if not isinstance(answer, ReportAnswered):
            self._asking.failed(WrongAnswer(f"placement answered a report by {answer!r}"))
            loop.call_later(self._pace.again_s, self.touch, (report.root,))
            return
        self._asking.well()
        match after_answer(report, tree, answer.verdict):
            case Accepted(reporting):
                self._reporting[report.root] = reporting
                self._note_refusal(report.root, "")
            case MustReportAll(reporting):
                log.warning("another reporter has reported host %s: reporting it completely", report.root)
                self._reporting[report.root] = reporting
                loop.call_later(self._pace.again_s, self.touch, (report.root,))
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
        answer = await self._asking.until_done(partial(self._reshaper.reshape, driver, tree, sequence))
        self._unshaped.pop(driver.root, None)
        match answer:
            case Accepted(reporting):
                self._reporting[driver.root] = reporting
                self._note_refusal(driver.root, "")
            case ReportRefused(reason):
                self._unshaped[driver.root] = tree
                again_s = self._pace.reshape_again_s
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


# Publishes facts and cached images of hosts when they change, and regularly their metrics and heartbeats.
#
# One message tells of many hosts. Sequence numbers are taken from the clock, so that they keep rising after a restart without
# being stored.


class FleetAnnouncer(HostAnnouncer[None]):
    def __init__(
        self,
        fleet: Fleet,
        store: ComputeStore,
        publisher: Publisher,
        settings: ComputeSettings,
        next_sequence: Callable[[], int],
        *,
        returned: Callable[[Sequence[ProviderId]], None] = lambda _: None,
        gone_after_s: float = 60.0,
        pace: ComputePace = USUAL_PACE,
        chance: random.Random | None = None,
    ) -> None:
        """`returned` is told the hosts that are heard again after `gone_after_s`: an operator may have deleted them meanwhile."""
        measuring = Periodic(
            "tell what hosts measure",
            self._tell_metrics,
            pace.metrics_every_s,
            is_cut_short=True,
            chance=chance,
        )
        super().__init__(
            "tell of changed hosts",
            "heartbeats",
            publisher,
            every_s=settings.facts_every_s,
            beat_s=settings.beat_s,
            beside=(measuring,),
            chance=chance,
        )
        self._fleet = fleet
        self._store = store
        self._cell = settings.cell
        self._next_sequence = next_sequence
        # The cached images that each host has told since all were told.
        self._told_images: dict[ProviderId, Sequence[str]] = {}
        self._returned = returned
        self._gone_after_s = gone_after_s
        self._heard_at_s: dict[ProviderId, float] = {}
        self._all_told_at_s = 0.0
        self.touch(fleet)

    def touch(self, hosts: Iterable[ProviderId]) -> None:
        """Note these hosts, so that their facts are published."""
        self.touched.update(dict.fromkeys(hosts))

    async def report(self) -> None:
        self.touch(await self._store.take_changed())
        await super().report()
        await self._tell_images()

    async def reports(self, touched: Iterable[ProviderId]) -> Iterator[HostsReported]:
        # A host that is silent now is touched again when it comes back.
        hosts = self._well(touched)
        # Taken before the loads are read, so that later facts have a higher number.
        sequence = self._next_sequence()
        loads = await self._store.loads(hosts)
        facts = [
            facts_of(
                id_,
                self._fleet[id_].host,
                loads[id_],
                self._fleet.failed_builds.get(id_.int, 0),
                self._fleet.refused_reports.get(id_, ""),
            )
            for id_ in hosts
        ]
        return (HostsReported(cell=self._cell, hosts=some, sequence=sequence) for some in in_messages(facts))

    def heard(self, beats: Sequence[Message]) -> None:
        at_s = self._fleet.clock_s()
        there = [host for beat in beats if isinstance(beat, HostsAlive) for host in beat.hosts]
        before_s = self._heard_at_s
        if back := [host for host in there if at_s - before_s.get(host, at_s) >= self._gone_after_s]:
            self._returned(back)
        before_s.update(dict.fromkeys(there, at_s))

    def alive(self) -> Mapping[CellName, Sequence[ProviderId]]:
        return {self._cell: self._well(self._fleet)}

    def _well(self, hosts: Iterable[ProviderId]) -> list[ProviderId]:
        return self._fleet.well(hosts, self._fleet.clock_s())

    async def _tell_metrics(self) -> None:
        at_s = self._fleet.clock_s()
        measured = [
            HostMetrics(id=id_, values=dict(values))
            for id_ in self._fleet.well(self._fleet, at_s)
            if (values := self._fleet[id_].metrics(at_s))
        ]
        sequence = self._next_sequence()
        await self.send(
            HostsMeasured(cell=self._cell, hosts=some, sequence=sequence) for some in in_messages(measured)
        )

    async def _tell_images(self) -> None:
        at_s = self._fleet.clock_s()
        if at_s - self._all_told_at_s >= IMAGES_EVERY_S:
            self._told_images.clear()
            self._all_told_at_s = at_s
        told = self._told_images
        cached = {id_: images for id_ in self._fleet if (images := self._fleet[id_].images())}
        news = {id_: images for id_, images in cached.items() if told.get(id_) != images}
        hosts = [HostImages(id=id_, images=tuple(news[id_])) for id_ in self._fleet.well(news, at_s)]
        if not hosts:
            return
        sequence = self._next_sequence()
        await self.send(
            ImagesCached(cell=self._cell, hosts=some, sequence=sequence) for some in in_messages(hosts)
        )
        told.update({each.id: news[each.id] for each in hosts})


# Lists to the conductors which attempts each host has, whenever answers of the host may have been lost.
#
# That is when its compute starts, and when the host can send again after it could not. The conductors order the host to destroy
# the attempts that the cell does not count on. Only the compute knows of every such moment: a conductor may be down meanwhile,
# and the silence may be shorter than a conductor notices.


# All hosts of a process may be listed at once. Then they are, one part after another.
LISTED_AT_ONCE = 200


class AttemptLister(Periodic):
    """A part of a compute that lists the attempts of its hosts without being asked."""

    def __init__(
        self,
        fleet: Fleet,
        store: ComputeStore,
        publisher: Publisher,
        settings: ComputeSettings,
        *,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__(
            "list the attempts of hosts", self._list, settings.beat_s, is_cut_short=True, chance=chance
        )
        self._fleet = fleet
        self._store = store
        self._publisher = publisher
        self._cell = settings.cell
        # Hosts whose answers may have been lost since they were last listed; at first the answers of an earlier process.
        self._unlisted: dict[ProviderId, None] = dict.fromkeys(fleet)

    def touch(self, hosts: Iterable[ProviderId]) -> None:
        """Note those of these hosts that cannot send now: they are listed when they can again."""
        named = [*hosts]
        well = {*self._fleet.well(named, self._fleet.clock_s())}
        self._unlisted.update(dict.fromkeys([host for host in named if host not in well]))

    async def _list(self) -> None:
        self.touch(self._fleet)
        hosts = self._fleet.well(self._unlisted, self._fleet.clock_s())
        if not hosts:
            return
        async with self._store.transaction() as tx:
            attempts = await tx.of_hosts(hosts)
        # A host that falls silent from here on is noted again. One that has no attempts need not be listed.
        for host in hosts:
            del self._unlisted[host]
        # As if the host had been asked.
        lists = [
            (host, holdings(CheckHost(cell=self._cell, host=host, number=0), some))
            for host, some in attempts.items()
        ]
        while lists:
            try:
                await self._publisher.send_all([Outgoing(each) for _, each in lists[:LISTED_AT_ONCE]])
            except Exception:
                self._unlisted.update(dict.fromkeys(host for host, _ in lists))
                raise
            del lists[:LISTED_AT_ONCE]
