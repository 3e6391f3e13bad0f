"""What a scheduler says to a cell with a broker of its own: each row once, and no more at once than it may."""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest

from bus.messages.cell import RemoveFromCell
from bus.workers.handling import OutboxKey
from bus.workers.publisher import Outgoing
from engine.flavors import InstanceId, RequestId
from scheduler_worker.outbox import CellDispatch
from tests.contracts.stage import SETTINGS

pytestmark = pytest.mark.asyncio

Kept = tuple[OutboxKey, Sequence[Outgoing]]


class Broker:
    """Stands in for a publisher: takes all, and confirms when the test says so."""

    def __init__(self) -> None:
        self.taken: list[int] = []
        self._waiting: list[asyncio.Future[None]] = []

    def send_all(self, outgoing: Sequence[Outgoing]) -> asyncio.Future[None]:
        self.taken += [each.message.sequence for each in outgoing if isinstance(each.message, RemoveFromCell)]
        self._waiting.append(asyncio.get_running_loop().create_future())
        return self._waiting[-1]

    async def answer(self, problem: Exception | None = None) -> None:
        for each in self._waiting:
            each.set_exception(problem) if problem else each.set_result(None)
        self._waiting.clear()
        # What waits for it goes on.
        for _ in range(3):
            await asyncio.sleep(0)


def row(number: int) -> Kept:
    removal = RemoveFromCell(
        cell="c1",
        instance=InstanceId(UUID(int=number)),
        request_id=RequestId(UUID(int=number)),
        sequence=number,
        issued_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
    return OutboxKey(number), [Outgoing(removal)]


@pytest.mark.hits("rows wait in the database: too many are under way to their cell")
async def test_a_cell_hears_of_each_row_once_and_of_no_more_at_once_than_may_be_under_way() -> None:
    cell, api = Broker(), Broker()
    station: Any = SimpleNamespace(publisher=cell, settings=SETTINGS, chance=random.Random(7))
    above: Any = api
    notes: Any = SimpleNamespace()
    dispatch = CellDispatch(("c1",), station, above, notes, under_way_max=3)

    async def both(problem: Exception | None = None) -> None:
        await cell.answer(problem)
        await api.answer()

    dispatch.send([row(1), row(2)])
    # One of these is under way, and for the last one there is no room.
    dispatch.send([row(2), row(3), row(4)])
    assert cell.taken == [1, 2, 3]

    await both()
    assert {*dispatch.confirmed} == {1, 2, 3}
    # What is confirmed is not said again before its note is cleared.
    dispatch.send([row(1), row(4)])
    assert cell.taken == [1, 2, 3, 4]
    dispatch.cleared([OutboxKey(1)])
    dispatch.send([row(1)])
    assert cell.taken == [1, 2, 3, 4, 1]

    await both(ConnectionError("the broker is away"))
    assert {*dispatch.confirmed} == {2, 3}
    dispatch.send([row(4)])
    assert cell.taken == [1, 2, 3, 4, 1, 4]
