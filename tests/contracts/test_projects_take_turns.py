"""Contract of turns on all brokers: one project's flood of requests delays another one's request by a batch, and loses nothing."""

import asyncio
from collections.abc import Sequence
from uuid import UUID

import pytest
from msgspec import structs

from bus.broker import LINES, Parcel
from bus.messages.build import DeleteInstance, InstanceId
from bus.topology import API
from bus.workers.handling import Handlers, Received, Said
from tests.contracts.broker_under_test import BrokerUnderTest
from tests.contracts.stage import SETTINGS, Remembering, declared, line, send, until, until_empty, working

pytestmark = pytest.mark.asyncio

REQUESTS = "scheduler.requests"
# Few messages in a batch, so that a flood has many.
SMALL = structs.replace(SETTINGS, batch_items_max=10)
PARCELS, PER_PARCEL = 40, 5


class Deleting(Remembering):
    """Remembers the projects of the orders that it handled. Nothing is handled before the gate opens, and nothing after the
    patient one's orders before the second gate opens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.projects: list[str] = []
        self.ids: list[int] = []
        self.first_gate, self.second_gate = asyncio.Event(), asyncio.Event()

    async def on_delete(self, orders: Sequence[Received[DeleteInstance]], _: None) -> Sequence[Said]:
        await self.first_gate.wait()
        if "patient" in self.projects:
            await self.second_gate.wait()
        self.projects += [order.message.project for order in orders]
        self.ids += [order.message.instance.int for order in orders]
        return ()

    @property
    def handlers(self) -> Handlers:
        return {DeleteInstance: self.on_delete}


def deletes(project: str, *numbers: int) -> Parcel:
    lines = [
        line(DeleteInstance(instance=InstanceId(UUID(int=number)), project=project)) for number in numbers
    ]
    return Parcel(API, f"instance.delete.{project}", b"\n".join(lines), content_type=LINES, mandatory=True)


def a_flood() -> list[Parcel]:
    return [
        deletes("greedy", *range(first, first + PER_PARCEL))
        for first in range(1, 1 + PARCELS * PER_PARCEL, PER_PARCEL)
    ]


LATE = PARCELS * PER_PARCEL + 1
ALL = range(1, LATE + PER_PARCEL)


async def test_a_flood_of_one_project_delays_anothers_request_by_one_batch(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)
    memory = Deleting()

    async with working(broker, memory, queue=REQUESTS, settings=SMALL) as worker:
        await send(broker, *a_flood(), deletes("patient", *ALL[-PER_PARCEL:]))
        await until(lambda: worker.intake.in_hand == PARCELS + 1, "the worker has all parcels")
        memory.first_gate.set()
        memory.second_gate.set()
        await until(lambda: len(memory.ids) == len(ALL))

    # The batch that was under way, and its own.
    assert memory.projects.index("patient") < 2 * SMALL.batch_items_max
    # And the orders of one project stay in order.
    assert [number for number in memory.ids if number < LATE] == list(range(1, LATE))
    await until_empty(broker)


async def test_what_another_project_sent_before_is_not_acknowledged_with_what_is_handled_first(
    under_test: BrokerUnderTest,
) -> None:
    broker = await declared(under_test)
    memory = Deleting()

    async with working(broker, memory, queue=REQUESTS, settings=SMALL) as worker:
        await send(broker, *a_flood(), deletes("patient", *ALL[-PER_PARCEL:]))
        await until(lambda: worker.intake.in_hand == PARCELS + 1, "the worker has all parcels")
        memory.first_gate.set()
        await until(lambda: memory.projects.count("patient") == PER_PARCEL)
        handled = len(memory.ids) // PER_PARCEL
        await until(lambda: worker.intake.in_hand == PARCELS + 1 - handled, "these are acknowledged")
        # The broker delivers again what is not acknowledged, and only that.
        await under_test.cut_connections()
        memory.second_gate.set()
        await until(lambda: set(memory.ids) == set(ALL), "every order is handled")

    await until_empty(broker)
