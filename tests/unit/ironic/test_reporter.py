"""When placement is told of nodes: at once, and again until it has answered."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from msgspec import structs

from bus.memory.broker import MemoryBroker
from bus.message import Message
from bus.messages.placement import (
    InventoryInUse,
    ReportAccepted,
    ReportAnswered,
    ReportInventory,
    ReportOutdated,
    ReportVerdict,
)
from bus.workers.station import NoAnswer, Station
from engine.inventories import ProviderId, ReportedInventory
from ironic_sync.applying import NodeWriter
from ironic_sync.core.node import Node
from ironic_sync.core.notifications import NodeNotified
from ironic_sync.core.offers import CellMap
from ironic_sync.core.reports import offer_number
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import NodePolicy, settled
from ironic_sync.reporting import Reporter
from ironic_sync.settings import DaemonRules
from ironic_sync.store import IronicTransaction
from kit.errors import Unavailable
from kit.metrics import Histogram
from kit.parts import statuses
from tests.contracts.stage import until
from tests.stores_in_memory import MemoryIronicStore

pytestmark = pytest.mark.asyncio

ID = ProviderId(UUID(int=7))
TERMS = NodePolicy(cells=CellMap(default="c1"), standard_traits=frozenset(), can_read=True)
SETTINGS = DaemonRules(report_again_s=0.02)
TAKEN = ReportAccepted(shape=1, shape_moved=True)
Verdict = Callable[[ReportInventory], ReportVerdict | None]


class Placement(Station):
    """Answers each report by this verdict, unless it took a later one; None is no answer."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(MemoryBroker().as_user(), "d1")
        self.verdict = verdict
        self.answering = asyncio.Event()
        self.answering.set()
        self.reports: list[ReportInventory] = []
        self.taken = 0

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        answers: list[Message] = []
        for each in questions:
            assert isinstance(each, ReportInventory)
            self.reports.append(each)
        await self.answering.wait()
        for each in questions:
            assert isinstance(each, ReportInventory)
            is_old = each.sequence <= self.taken
            verdict = ReportOutdated(epoch=1, sequence=self.taken) if is_old else self.verdict(each)
            if verdict is None:
                raise NoAnswer("1 of 1 questions unanswered")
            if isinstance(verdict, ReportAccepted):
                self.taken = each.sequence
            answers.append(ReportAnswered(root=each.root, verdict=verdict))
        return answers


class Store(MemoryIronicStore):
    """Lazy commits fail while the database is away."""

    def __init__(self) -> None:
        super().__init__()
        self.is_away = False
        # How long a transaction takes to find that out.
        self.found_out = asyncio.Event()
        self.found_out.set()
        self.failed = 0

    @asynccontextmanager
    async def transaction(self, *, is_lazy: bool = False) -> AsyncIterator[IronicTransaction]:
        if is_lazy and self.is_away:
            self.failed += 1
            await self.found_out.wait()
            raise Unavailable("the database is away")
        async with super().transaction(is_lazy=is_lazy) as transaction:
            yield transaction


class Stand:
    def __init__(self, verdict: Verdict, settings: DaemonRules = SETTINGS) -> None:
        self.store = Store()
        self.overtaken: list[Mapping[ProviderId, int]] = []
        self.placement = Placement(verdict)
        self.writer = NodeWriter(self.store, TERMS, skew_us=2_000_000, clock_us=lambda: 1)
        self.reporter = Reporter(
            self.writer, self.store, self.placement, settings, daemon="d1", overtake=self.overtaken.append
        )
        self.writer.listen(self.reporter.touch)
        self.row = NodeRow(id=ID)
        self.writer.listen(lambda rows: setattr(self, "row", rows[-1]))

    async def become(self, resource_class: str) -> None:
        def change(row: NodeRow) -> NodeRow:
            assert row.node is not None
            return structs.replace(row, node=structs.replace(row.node, resource_class=resource_class))

        await self.writer.change({ID: change})

    async def looks(self, times: int = 4) -> None:
        """So often it is looked for what is left."""
        (look,) = [each for each in statuses([self.reporter]) if each.name == "report what is left"]
        runs = look.runs
        await until(lambda: look.runs > runs + times, "looks for what is left")

    @asynccontextmanager
    async def running(self, **fields: object) -> AsyncIterator[None]:
        """With a free node whose row a daemon that died has left unreported."""
        node = Node(id=ID, provision_state="available", resource_class="gold")
        row = NodeRow(id=ID, owner="d1", epoch=1, seen_epoch=1, node=node, read_at_us=1)
        async with self.store.transaction() as transaction:
            (self.row,) = (await transaction.save([settled(structs.replace(row, **fields), TERMS)])).rows
        running = asyncio.create_task(self.reporter.run())
        try:
            yield
        finally:
            await self.reporter.stop()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
            await self.placement.close()


async def test_what_nobody_reported_is_found_and_what_was_not_answered_is_reported_again() -> None:
    verdicts = [None, None]
    stand = Stand(lambda _: verdicts.pop() if verdicts else TAKEN)
    async with stand.running():
        await until(lambda: stand.row.reported is not None, "the report is noted")

    assert len({each.sequence for each in stand.placement.reports[:3]}) == 1
    assert stand.row.reported == stand.row.offer
    assert not stand.row.needs_report


async def test_a_removal_that_is_refused_is_tried_again_and_the_node_stays_reserved_meanwhile() -> None:
    held = [InventoryInUse(provider=ID, resource="CUSTOM_GOLD", used=1)] * 2
    stand = Stand(lambda report: held.pop() if report.removed and held else TAKEN)
    async with stand.running(cell="c1", is_deleted=True):
        await until(lambda: stand.row.is_removed, "the provider is removed")

    first, second, *_, last = stand.placement.reports
    assert (first.removed, second.removed, last.removed) == ((ID,), (), (ID,))
    assert second.providers[0].inventories == {
        "CUSTOM_GOLD": ReportedInventory(total=1, reserved=1, max_unit=1)
    }
    assert stand.placement.taken == last.sequence
    assert not held


async def test_of_two_versions_of_a_row_the_later_is_reported_in_whatever_order_they_come() -> None:
    stand = Stand(lambda _: TAKEN)
    async with stand.running():
        await until(lambda: stand.row.reported is not None, "the first report is noted")
        stand.placement.reports.clear()
        node = Node(id=ID, provision_state="available", resource_class="silver")
        older = settled(structs.replace(stand.row, node=node, version=20), TERMS)

        stand.reporter.touch((structs.replace(older, version=21),))
        stand.reporter.touch((older,))

        await until(lambda: bool(stand.placement.reports), "it is reported")
        assert stand.placement.reports[0].sequence == offer_number(structs.replace(older, version=21))


async def test_a_report_that_is_under_way_is_not_made_again_and_a_later_one_is() -> None:
    stand = Stand(lambda _: TAKEN)
    stand.placement.answering.clear()
    async with stand.running():
        await until(lambda: len(stand.placement.reports) == 1, "it is reported")
        await stand.looks()
        assert len(stand.placement.reports) == 1

        await stand.become("silver")
        await until(lambda: len(stand.placement.reports) == 2, "what it became is reported")
        await stand.looks()
        assert len(stand.placement.reports) == 2

        stand.placement.answering.set()
        await until(lambda: stand.row.reported == stand.row.offer, "it is noted")
    assert len(stand.placement.reports) == 2


async def test_the_answer_to_an_earlier_report_does_not_have_the_later_one_made_again() -> None:
    stand = Stand(lambda _: None)
    stand.placement.answering.clear()
    async with stand.running():
        await until(lambda: len(stand.placement.reports) == 1, "it is reported")
        first, stand.placement.answering = stand.placement.answering, asyncio.Event()
        await stand.become("silver")
        await until(lambda: len(stand.placement.reports) == 2, "what it became is reported")

        # The first is not answered, and given up.
        first.set()
        await stand.looks()

        assert len(stand.placement.reports) == 2
        stand.placement.verdict = lambda _: TAKEN
        stand.placement.answering.set()
        await until(lambda: stand.row.reported == stand.row.offer, "it is noted")


async def test_an_acceptance_that_the_database_does_not_take_is_kept_and_not_reported_again() -> None:
    stand = Stand(lambda _: TAKEN)
    stand.store.is_away = True
    async with stand.running():
        await until(lambda: stand.store.failed >= 2, "it is tried again")
        await stand.looks()
        assert stand.row.reported is None

        stand.store.is_away = False
        await until(lambda: stand.row.reported == stand.row.offer, "it is noted")
    assert len(stand.placement.reports) == 1


async def test_of_two_acceptances_the_later_is_noted_though_the_earlier_could_not_be() -> None:
    stand = Stand(lambda _: TAKEN)
    stand.store.is_away = True
    stand.store.found_out.clear()
    async with stand.running():
        await until(lambda: stand.store.failed == 1, "the first is being noted")
        await stand.become("silver")
        await until(lambda: stand.reporter.accepted == 2, "the second is accepted")

        stand.store.is_away = False
        stand.store.found_out.set()
        await until(lambda: stand.row.reported == stand.row.offer, "it is noted")
        await stand.looks()
    assert len(stand.placement.reports) == 2


async def test_a_trial_that_was_refused_is_made_again_only_when_it_is_looked_for_what_is_left() -> None:
    held = InventoryInUse(provider=ID, resource="CUSTOM_GOLD", used=1)
    rarely = structs.replace(SETTINGS, report_again_s=3600.0)
    stand = Stand(lambda report: held if report.removed else TAKEN, rarely)
    async with stand.running(cell="c1", is_deleted=True):
        await until(lambda: bool(stand.row.reported), "what it offers is noted")
        for number in range(3):
            await stand.writer.change({ID: lambda row, n=number: structs.replace(row, heard_at_us=n + 1)})  # type: ignore[misc]
        await asyncio.sleep(0.05)

        assert [bool(each.removed) for each in stand.placement.reports] == [True, False]


async def test_an_epoch_that_is_behind_is_raised_by_the_owner_alone_and_nothing_is_reported_before() -> None:
    stand = Stand(lambda _: ReportOutdated(epoch=7, sequence=1))
    async with stand.running():
        await until(lambda: bool(stand.overtaken), "the owner is asked to raise its epoch")
        assert stand.overtaken[0] == {ID: 7}
        await stand.looks()
        assert len(stand.placement.reports) == 1

    other = Stand(lambda _: TAKEN)
    async with other.running(owner="d2", epoch_ahead=7):
        other.reporter.touch([other.row])
        own = structs.replace(other.row, id=ProviderId(UUID(int=8)), epoch_ahead=0)
        other.reporter.touch([own])
        await until(lambda: bool(other.placement.reports), "the other row is reported")
        assert [each.root for each in other.placement.reports] == [own.id]
        assert other.overtaken == []


async def test_what_another_daemon_wrote_while_an_earlier_report_is_under_way_is_found_and_reported() -> None:
    stand = Stand(lambda _: TAKEN)
    stand.placement.answering.clear()
    async with stand.running():
        await until(lambda: len(stand.placement.reports) == 1, "it is reported")
        assert stand.row.node is not None
        silver = structs.replace(stand.row.node, resource_class="silver")
        async with stand.store.transaction() as transaction:
            await transaction.save([settled(structs.replace(stand.row, node=silver), TERMS)])

        await until(lambda: len(stand.placement.reports) == 2, "what it became is reported")
        stand.placement.answering.set()
        await until(lambda: stand.row.reported == stand.row.offer, "it is noted")


@pytest.mark.parametrize("by", ["this daemon", "another daemon"])
async def test_the_event_of_a_node_that_vanished_is_not_measured_when_the_node_is_back(by: str) -> None:
    stand = Stand(lambda _: TAKEN)
    stand.writer.listen_to_events(stand.reporter.await_offers)
    stand.writer.clock_us = lambda: 3_600_000_000
    heard = NodeNotified(
        node=Node(id=ID, provision_state="available", resource_class="gold"),
        at_us=2,
        publisher="ironic-api.a",
        kind="delete",
        is_deleted=True,
    )
    stand.placement.answering.clear()
    async with stand.running(cell="c1"):
        await until(lambda: len(stand.placement.reports) == 1, "it is reported")
        await stand.writer.hear([heard])
        stand.placement.verdict = lambda _: None if by == "another daemon" else TAKEN
        stand.placement.answering.set()
        if by == "another daemon":
            async with stand.store.transaction() as transaction:
                await transaction.save([structs.replace(stand.row, is_removed=True)])
        else:
            await until(lambda: stand.row.is_removed, "the provider is removed")
        await stand.looks()
        stand.placement.verdict = lambda _: TAKEN

        back = structs.replace(heard, at_us=3_599_000_000, kind="create", is_deleted=False)
        await stand.writer.hear([back])
        await until(lambda: bool(_measured(stand.reporter)), "the event is measured")
        assert _measured(stand.reporter) == [1.0]


def _measured(reporter: Reporter) -> list[float]:
    """The sum of the times from an event until placement took it, if there was one."""
    histogram, _ = reporter.readings
    assert isinstance(histogram, Histogram)
    return [each.total_s for each in histogram.by_labels.values()]
