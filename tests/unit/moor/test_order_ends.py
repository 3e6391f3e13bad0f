"""When a build, a rebuild or a move has ended for those that follow it, whatever has been done with the instance since."""

from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import InstanceState, Move, MoveKind, Rebuild, RebuildInstance
from bus.messages.moves import MoveInstance
from engine.flavors import Image, InstanceId, RequestId
from moor.client.bus_client import has_ended, why_not_built, why_not_moved, why_not_rebuilt

BUILD, REBUILD = RequestId(UUID(int=1)), RequestId(UUID(int=2))
LATER_STATES = ("active", "stopped", "moving", "moved", "shelved", "offloaded")


def instance(state: str, rebuild: Rebuild | None = None) -> InstanceState:
    return InstanceState(
        id=InstanceId(UUID(int=3)), request_id=BUILD, sequence=9, state=state, rebuild=rebuild
    )


@pytest.mark.parametrize("state", LATER_STATES)
def test_an_instance_that_was_stopped_or_moved_after_its_build_was_built(state: str) -> None:
    assert has_ended(instance(state))
    assert why_not_built(instance(state)) == ""


# A later release may have words that this one does not know.
@pytest.mark.parametrize("state", ["accepted", "waiting", "placed", "building", "deleting", "a later word"])
def test_a_build_that_goes_on_has_not_ended_and_has_built_nothing(state: str) -> None:
    assert not has_ended(instance(state))
    assert why_not_built(instance(state))


@pytest.mark.parametrize("state", ["error", "deleted"])
def test_an_instance_that_does_not_exist_was_not_built(state: str) -> None:
    assert has_ended(instance(state))
    assert why_not_built(instance(state))


@pytest.mark.parametrize("state", LATER_STATES)
def test_an_instance_that_was_stopped_or_moved_after_its_rebuild_was_rebuilt(state: str) -> None:
    image = Image(source="http://images/debian")
    order = RebuildInstance(request_id=REBUILD, instance=InstanceId(UUID(int=3)), image=image)
    done = Rebuild(request_id=REBUILD, number=5, image=image, ends_by=datetime(2026, 11, 24, tzinfo=UTC))

    for under_way in ("rebuilding", "a later word"):
        assert not has_ended(instance(under_way, done))
        assert why_not_rebuilt(instance(under_way, done), order)
    assert has_ended(instance(state, done))
    assert why_not_rebuilt(instance(state, done), order) == ""


@pytest.mark.parametrize("kind", ["start", "reboot", "unshelve"])
def test_an_order_to_run_an_instance_that_does_not_start_has_failed(kind: MoveKind) -> None:
    order = MoveInstance(request_id=REBUILD, instance=InstanceId(UUID(int=3)), kind=kind)
    ends_by = datetime(2026, 11, 24, tzinfo=UTC)
    move = Move(request_id=REBUILD, number=5, kind=kind, source="h1", ends_by=ends_by, outcome="done")
    there = structs.replace(instance("active"), move=move)
    broken = structs.replace(there, state="error", reason="h1 could not run it again")

    assert why_not_moved(there, order) == ""
    assert why_not_moved(broken, order) == "h1 could not run it again"
