"""When a build or a rebuild has ended for those that follow it, whatever has been done with the instance since."""

from datetime import UTC, datetime
from uuid import UUID

import pytest

from bus.messages.build import Image, InstanceId, InstanceState, Rebuild, RebuildInstance, RequestId
from moor.client.ends import has_ended, why_not_built, why_not_rebuilt

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


@pytest.mark.parametrize("state", ["accepted", "waiting", "placed", "building", "deleting"])
def test_a_build_that_goes_on_has_not_ended(state: str) -> None:
    assert not has_ended(instance(state))


@pytest.mark.parametrize("state", ["error", "deleted"])
def test_an_instance_that_does_not_exist_was_not_built(state: str) -> None:
    assert has_ended(instance(state))
    assert why_not_built(instance(state))


@pytest.mark.parametrize("state", LATER_STATES)
def test_an_instance_that_was_stopped_or_moved_after_its_rebuild_was_rebuilt(state: str) -> None:
    image = Image(source="http://images/debian")
    order = RebuildInstance(request_id=REBUILD, instance=InstanceId(UUID(int=3)), image=image)
    done = Rebuild(request_id=REBUILD, number=5, image=image, ends_by=datetime(2026, 11, 24, tzinfo=UTC))

    assert not has_ended(instance("rebuilding", done))
    assert has_ended(instance(state, done))
    assert why_not_rebuilt(instance(state, done), order) == ""
