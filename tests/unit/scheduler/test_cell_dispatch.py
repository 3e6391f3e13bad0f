"""What a scheduler says to a cell with a broker of its own: each row once, and no more at once than it may."""

import asyncio
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.cell import RemoveFromCell
from bus.workers.handlers import OutboxKey
from bus.workers.publisher import Outgoing
from engine.flavors import InstanceId, RequestId
from kit.parts import RowByRow
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.outbox import CellDispatch, Outbox, OutboxNotes
from scheduler_worker.store_sql import NewRequest
from tests.contracts.scheduler_rows import LATER, a_placed, a_request, accept, note
from tests.contracts.stage import SETTINGS
from tests.stores_in_memory import MemorySchedulerStore

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


def placed_in(cell: str, number: int) -> InstanceRow:
    (row,) = a_placed(a_request(number)).rows
    assert row.order is not None
    return structs.replace(
        row, told=structs.replace(row.told, cell=cell), order=structs.replace(row.order, cell=cell)
    )


async def _met_bug(row: object, bug: Exception) -> None:
    raise AssertionError(f"row {row} met a bug") from bug


@pytest.mark.hits("a note names rows of several brokers: it is replaced by one for each")
async def test_of_a_note_that_is_older_than_the_broker_of_a_cell_each_broker_says_its_own_rows() -> None:
    store, rows = MemorySchedulerStore(), [placed_in("c1", 1), placed_in("c2", 2)]
    for row in rows:
        await accept(store, NewRequest(row.told.request_id, b"same", (row,)))
    await note(store, rows)
    api: Any = Broker()
    station: Any = SimpleNamespace(publisher=Broker(), settings=SETTINGS, chance=random.Random(7))
    failed: Any = SimpleNamespace(of=lambda *_: RowByRow(_met_bug))
    notes = OutboxNotes(store, timedelta(0), lambda: LATER, failed)
    outbox = Outbox(store, notes, api, [CellDispatch(("c2",), station, api, notes, under_way_max=3)])

    # The first look replaces the note, and may find only the next one.
    said = [*await outbox.pending(), *await outbox.pending()]

    assert {getattr(message, "cell", "") for _, message in said} == {"c1"}
    left = await store.unconfirmed(LATER + timedelta(days=1), None, 10)
    assert [[row.told.cell for row in each.rows] for each in left] == [["c2"], ["c1"]]
