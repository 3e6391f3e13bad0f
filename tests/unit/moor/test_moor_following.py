"""A client that follows instances learns their states from events, and not only when it asks again."""

from msgspec import structs

from bus.messages.build import InstanceActive
from moor.client.bus_client import InstanceFollower
from tests.unit.examples.values import STATE


def test_an_event_of_another_cell_than_the_instances_does_not_count() -> None:
    at_api = structs.replace(STATE, cell="c1", state="placed", sequence=7)
    forged = structs.replace(STATE, cell="c2", state="active", sequence=2**61)
    active = structs.replace(at_api, state="active", sequence=8)
    follower = InstanceFollower(None, (STATE.id,))  # type: ignore[arg-type]

    # Before anything is known, any event counts: the API level's state then corrects it.
    follower.hear(InstanceActive(cell="c2", instance=forged))
    follower.take((at_api,))
    assert follower.states == {STATE.id: at_api}
    follower.hear(InstanceActive(cell="c2", instance=forged))
    assert follower.states == {STATE.id: at_api}
    follower.hear(InstanceActive(cell="c1", instance=active))
    assert follower.states == {STATE.id: active}
