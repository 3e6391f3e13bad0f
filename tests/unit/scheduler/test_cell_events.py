"""What becomes of a cell's event about an instance: it counts for instances of that cell only, and what is repeated says
whose they are as their rows do.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed, InstanceMoved
from bus.messages.cell import RemoveFromCell
from bus.messages.stored_names import KnownApplication
from bus.workers.handling import Bury, Handlers, Received, Said, Tell
from bus.workers.station import Station
from engine.flavors import RequestId
from scheduler_worker.applications import Applications
from scheduler_worker.core.instances.lifecycle import SEQUENCE_AHEAD_MAX, CellEvent
from scheduler_worker.core.instances.rows import InstanceRow
from scheduler_worker.outbox import Outbox, OutboxNotes
from scheduler_worker.requests.cell_events import ApiLevelRepeater, cell_event_handlers
from scheduler_worker.store import NewRequest
from tests.contracts.scheduler_rows import a_placed, a_request, an_active, instance
from tests.stores_in_memory import MemorySchedulerStore

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
KINDS = (InstanceActive, InstanceMoved, InstanceFailed, InstanceDeleted)
# Instance 1 is placed in the cell c1, for this project.
THEIRS = "bank"


class Worker:
    """A scheduler's rows, and its handlers of events on the API level's broker (`here`) and on a cell's own (`apart`)."""

    def __init__(self) -> None:
        self.store = MemorySchedulerStore()
        self.outbox = Outbox(self.store, OutboxNotes(self.store, timedelta(seconds=5), lambda: NOON))
        publisher = Station(MemoryBroker().as_user(), "s").publisher
        self.applications = Applications(self.store, publisher, 5.0, lambda: NOON)
        self.here: Handlers = cell_event_handlers(lambda: NOON, skipped=(), repeater=self.applications)
        self.apart: Handlers = cell_event_handlers(lambda: NOON, skipped=(), repeater=ApiLevelRepeater())

    async def begin(self) -> None:
        new = a_placed(a_request(1))
        (row,) = new.rows
        row = structs.replace(row, told=structs.replace(row.told, project=THEIRS, name="db"))
        async with self.store.transaction() as transaction:
            await transaction.accept([NewRequest(new.id, new.digest, (row,))])
            for name in (THEIRS, "shop"):
                known = KnownApplication(name=name, projects=(name,))
                await transaction.set_application(name, NOON, known)
        await self.applications.refresh()

    async def hear(self, *events: CellEvent, handlers: Handlers | None = None) -> Sequence[Said]:
        asks = [
            Received(message=event, id="7", trace="", sender="", reply_to="", attempts=0, cell=event.cell)
            for event in events
        ]
        handler = (handlers or self.here)[type(events[0])]
        async with self.outbox.transaction() as transaction:
            return await handler(asks, transaction)  # type: ignore[operator]

    async def row(self) -> InstanceRow:
        async with self.store.transaction() as transaction:
            return (await transaction.lock([instance(1)]))[instance(1)]


async def a_worker() -> Worker:
    worker = Worker()
    await worker.begin()
    return worker


def event(
    kind: type[CellEvent] = InstanceActive,
    *,
    number: int = 1,
    cell: str = "c1",
    sequence: int = 101,
    project: str = THEIRS,
    at: datetime | None = None,
) -> CellEvent:
    said = structs.replace(an_active(number, sequence=sequence, cell=cell).instance, project=project)
    if at is not None:
        said = structs.replace(said, changed_at=at)
    return kind(cell=cell, instance=said)


@pytest.mark.parametrize("on", ["here", "apart"])
@pytest.mark.parametrize("kind", KINDS)
async def test_an_event_about_another_cells_instance_changes_nothing_and_is_not_repeated(
    kind: type[CellEvent], on: str
) -> None:
    worker = await a_worker()
    before = await worker.row()

    said = await worker.hear(
        *[event(kind, cell="c2", project=project) for project in (THEIRS, "shop", "")],
        event(kind, cell="c2", sequence=2**61),
        # Unknown instances, too.
        *[event(kind, number=99, cell=cell, project="shop") for cell in ("c1", "c2")],
        handlers=worker.apart if on == "apart" else None,
    )

    assert said == []
    assert await worker.row() == before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ahead", [SEQUENCE_AHEAD_MAX + 1, 2**40, 2**61 - 2, 2**61 + 1])
async def test_an_absurd_sequence_changes_nothing_and_becomes_a_dead_letter(
    kind: type[CellEvent], ahead: int
) -> None:
    worker = await a_worker()
    before = await worker.row()

    (said,) = await worker.hear(event(kind, sequence=2 + ahead))

    assert isinstance(said, Bury)
    assert f"instance.sequence is {2 + ahead}" in said.reason
    assert "which is at 2" in said.reason
    assert await worker.row() == before


@pytest.mark.parametrize("kind", KINDS)
async def test_a_repeated_event_names_the_project_of_the_row(kind: type[CellEvent]) -> None:
    worker = await a_worker()
    true = (await worker.row()).told
    forged = event(kind, project="shop")
    forged = structs.replace(
        forged,
        instance=structs.replace(forged.instance, name="mine", request_id=RequestId(UUID(int=77))),
    )

    for handlers in (worker.here, worker.apart):
        (said,) = await worker.hear(forged, handlers=handlers)

        assert isinstance(said, Tell)
        assert said.feed == (THEIRS if handlers is worker.here else "")
        assert isinstance(said.message, kind)
        told = said.message.instance
        assert (told.project, told.name, told.request_id) == (THEIRS, "db", true.request_id)
        assert (told.id, told.sequence, told.host) == (true.id, 101, "h8")


@pytest.mark.parametrize("sequence", [3, 101, 102])
@pytest.mark.parametrize("on", ["here", "apart"])
@pytest.mark.parametrize("kind", [InstanceActive, InstanceMoved, InstanceFailed])
async def test_a_cell_that_has_a_deleted_instance_again_is_told_to_delete_it(
    kind: type[CellEvent], on: str, sequence: int
) -> None:
    worker = await a_worker()
    handlers = worker.apart if on == "apart" else worker.here
    await worker.hear(event(InstanceDeleted, at=NOON))
    gone = await worker.row()
    later = NOON + timedelta(seconds=60)

    said = await worker.hear(
        event(kind, sequence=sequence, at=later),
        event(kind, sequence=sequence, at=later, cell="c2"),
        handlers=handlers,
    )

    (told,) = [each.message for each in said if isinstance(each, Tell) and not isinstance(each.message, kind)]
    assert told == RemoveFromCell(
        cell="c1",
        instance=gone.id,
        request_id=gone.told.request_id,
        sequence=gone.told.sequence,
        issued_at=gone.issued_at,
    )
    after = await worker.row()
    # Until the broker has the order, a sweep sends it again.
    assert after.has_to_say
    assert structs.replace(after, heard=gone.heard, unsaid=False) == gone


@pytest.mark.parametrize("kind", KINDS)
async def test_what_a_cell_sends_again_from_before_a_delete_is_not_answered(kind: type[CellEvent]) -> None:
    # The cell repeats all that it could not send whenever it is told anything: answers would go round for ever.
    worker = await a_worker()
    await worker.hear(event(InstanceDeleted, at=NOON))

    for sequence in (3, 101, 102):
        said = await worker.hear(event(kind, sequence=sequence, at=NOON))

        assert [each for each in said if isinstance(each, Tell) and not isinstance(each.message, kind)] == []
    assert not (await worker.row()).has_to_say


async def test_true_events_of_a_batch_are_repeated_beside_forged_ones() -> None:
    worker = await a_worker()

    said = await worker.hear(event(cell="c2", project="shop"), event(), event(number=99), event())

    assert [each.feed for each in said if isinstance(each, Tell)] == [THEIRS, THEIRS]
    assert len(said) == 2


async def test_without_listeners_no_row_is_read_for_a_plain_event(monkeypatch: pytest.MonkeyPatch) -> None:
    worker = await a_worker()
    async with worker.store.transaction() as transaction:
        for name in (THEIRS, "shop"):
            await transaction.set_application(name, NOON + timedelta(seconds=1), None)
    await worker.applications.refresh()

    async def lock(*_: object) -> None:
        raise AssertionError("a row was read")

    async with worker.store.transaction() as transaction:
        monkeypatch.setattr(type(transaction), "lock", lock)

    assert await worker.hear(event()) == []
