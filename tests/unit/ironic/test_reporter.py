"""When placement is told of nodes: at once, and again until it has answered."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from uuid import UUID

import pytest
from msgspec import structs

from bus.asking import NoAnswer
from bus.memory.broker import MemoryBroker
from bus.message import Message, ProviderId
from bus.messages.placement import (
    InventoryInUse,
    ReportAccepted,
    ReportAnswered,
    ReportedInventory,
    ReportInventory,
    ReportOutdated,
    ReportVerdict,
)
from bus.station import Station
from ironic_sync.applying import NodeWriter
from ironic_sync.core.cells import CellMap
from ironic_sync.core.node import Node
from ironic_sync.core.reports import offer_number
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import NodePolicy, settled
from ironic_sync.reporting import Reporter
from ironic_sync.settings import IronicSettings
from ironic_sync.store_memory import MemoryIronicStore
from tests.contracts.stage import until

pytestmark = pytest.mark.asyncio

ID = ProviderId(UUID(int=7))
TERMS = NodePolicy(cells=CellMap(default="c1"), standard_traits=frozenset(), can_read=True)
SETTINGS = IronicSettings(report_again_s=0.02)
TAKEN = ReportAccepted(shape=1, shape_moved=True)
Verdict = Callable[[ReportInventory], ReportVerdict | None]


class Placement(Station):
    """Answers each report by this verdict, unless it took a later one; None is no answer."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(MemoryBroker().as_user(), "d1")
        self.verdict = verdict
        self.reports: list[ReportInventory] = []
        self.taken = 0

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        answers: list[Message] = []
        for each in questions:
            assert isinstance(each, ReportInventory)
            self.reports.append(each)
            is_old = each.sequence <= self.taken
            verdict = ReportOutdated(epoch=1, sequence=self.taken) if is_old else self.verdict(each)
            if verdict is None:
                raise NoAnswer("1 of 1 questions unanswered")
            if isinstance(verdict, ReportAccepted):
                self.taken = each.sequence
            answers.append(ReportAnswered(root=each.root, verdict=verdict))
        return answers


class Stand:
    def __init__(self, verdict: Verdict) -> None:
        self.store = MemoryIronicStore()
        self.placement = Placement(verdict)
        self.writer = NodeWriter(self.store, TERMS, skew_us=2_000_000, clock_us=lambda: 1)
        self.reporter = Reporter(
            self.writer, self.store, self.placement, SETTINGS, daemon="d1", overtake=lambda _: None
        )
        self.writer.listen(self.reporter.touch)
        self.row = NodeRow(id=ID)
        self.writer.listen(lambda rows: setattr(self, "row", rows[-1]))

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
