"""An audit's mend of a row at API level, a compute's pages of what its hosts have, and how findings are printed."""

from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.audit import MendInstance
from bus.messages.build import InstanceState
from compute_sim.core.attempts import AttemptRecord, AttemptState
from compute_sim.handlers import ComputeStore
from engine.flavors import InstanceId, RequestId
from laboratory.computes.driver import root_of
from scheduler_worker.core.instances.lifecycle import deleted_unseen, mended
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
