"""An audit's mend of a row at API level, a compute's pages of what its hosts have, and how findings are printed."""

from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.audit import MendInstance
from bus.messages.build import InstanceActive, InstanceState
from compute_sim.core.attempts import AttemptRecord, AttemptState
from compute_sim.handlers import ComputeStore
from engine.flavors import InstanceId, RequestId
from laboratory.computes.driver import root_of
from moor.books.audit_command import Printer
from moor.books.auditing import AuditResult, Finding
from moor.books.views import Fault
from scheduler_worker.core.instances.lifecycle import deleted_unseen, heard, mended
from scheduler_worker.core.instances.rows import InstanceRow
from tests.unit.conductor.cell import NOON

ID = InstanceId(UUID(int=7))


def a_row(**told: object) -> InstanceRow:
    state = InstanceState(
        id=ID,
        request_id=RequestId(UUID(int=5)),
        sequence=9,
        state="error",
        cell="c2",
        name="web",
        project="shop",
    )
    return InstanceRow(
        told=structs.replace(state, **told), issued_at=NOON, ends_by=NOON, heard=8, unsaid=True
    )


OF_CELL = InstanceState(
    id=ID, request_id=RequestId(UUID(int=6)), sequence=4, state="active", cell="c1", host="h-1", attempt=2
)


def test_a_mended_row_has_what_its_cell_has_and_keeps_what_the_client_gave() -> None:
    row = mended(a_row(), MendInstance(seen=9, instance=OF_CELL))

    assert row is not None
    told = row.told
    assert (told.state, told.cell, told.host, told.attempt) == ("active", "c1", "h-1", 2)
    assert (told.request_id, told.name, told.project, told.sequence) == (
        RequestId(UUID(int=5)),
        "web",
        "shop",
        10,
    )
    assert not row.unsaid
    # The cell goes on with its own numbers.
    event = InstanceActive(cell="c1", instance=structs.replace(OF_CELL, sequence=5, host="h-2"))
    after = heard(row, event, NOON)
    assert after is not None
    assert after.told.host == "h-2"


def test_a_row_that_has_changed_since_or_that_no_request_made_is_not_mended() -> None:
    assert mended(a_row(sequence=10), MendInstance(seen=9, instance=OF_CELL)) is None
    assert mended(None, MendInstance(seen=9, instance=OF_CELL)) is None
    assert mended(deleted_unseen(ID, NOON), MendInstance(seen=1, instance=OF_CELL)) is None


@pytest.mark.asyncio
async def test_a_compute_pages_what_its_hosts_have_by_instance() -> None:
    store = ComputeStore(lambda: 0.0)
    host, other = root_of("h-1"), root_of("h-2")
    attempts = [
        AttemptRecord("c1", where, InstanceId(UUID(int=number)), attempt, state)
        for number, where, attempt, state in (
            (1, host, 1, AttemptState.BUILT),
            (2, host, 1, AttemptState.DESTROYED),
            (3, other, 1, AttemptState.FAILED),
            (3, host, 2, AttemptState.BUILT),
            (4, host, 1, AttemptState.BUILDING),
            (4, other, 2, AttemptState.WAITING),
            (5, other, 1, AttemptState.BUILT),
        )
    ]
    await store.save(attempts)

    first = await store.living((), None, 3)
    rest = await store.living((), first[-1].instance, 3)

    # The last instance of a page comes with all its attempts.
    assert [(each.instance.int, each.attempt) for each in first] == [(1, 1), (3, 2), (4, 1), (4, 2)]
    assert [each.instance.int for each in rest] == [5]
    some = [InstanceId(UUID(int=number)) for number in (2, 4)]
    assert [each.instance.int for each in await store.living(some, None, 10)] == [4, 4]


def test_a_follower_prints_only_what_is_new_and_what_is_gone(capsys: pytest.CaptureFixture[str]) -> None:
    printer = Printer()
    one, two = (Finding(Fault("orphan", InstanceId(UUID(int=n)), f"fault {n}")) for n in (1, 2))

    for number, found in enumerate(([one], [one, two], [one, two], [two])):
        for each in found:
            printer.tell(each)
        result = AuditResult(compared=5, in_flight=0, findings=tuple(found), unanswered=())
        printer.end(result, 0.5, is_first=number == 0)

    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [(line[0], line[-1]) for line in lines if "orphan:" in line] == [
        ("found", "1"),
        ("found", "2"),
        ("gone", "1"),
    ]
    # The third look is as the second, and says nothing.
    assert len([line for line in lines if "orphan:" not in line]) == 3
