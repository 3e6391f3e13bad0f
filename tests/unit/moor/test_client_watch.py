"""However many callers follow instances, a client listens once, and asks about all of them together; it learns their states from events, too;
and when a build, a rebuild or a move has ended, whatever has been done with the instance since.
"""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import InstanceActive, InstanceState, Move, MoveKind, Rebuild, RebuildInstance
from bus.messages.moves import MoveInstance
from bus.topology import objects_of
from engine.flavors import Image, InstanceId, RequestId
from moor.client.bus_client import (
    LINGER_S,
    LOOK_AGAIN_S,
    BusClient,
    InstanceFollower,
    InstanceWatch,
    has_ended,
    station_on,
    why_not_built,
    why_not_moved,
    why_not_rebuilt,
)
from moor.client.errors import NotDone
from moor.client.requests import ClientSession, SentRequest
from tests.simulation.loop import simulated
from tests.unit.examples.values import STATE


class Bus:
    """A bus with instances. It counts subscriptions and questions."""

    def __init__(self) -> None:
        self.states: dict[InstanceId, InstanceState] = {}
        self.listening = 0
        self.subscriptions = 0
        self.asked: list[int] = []
        self._events = asyncio.Queue[Message]()

    async def listen(self, *_: str, project: str) -> AsyncGenerator[Sequence[Message], None]:
        assert project == "shop"
        self.subscriptions += 1
        self.listening += 1
        try:
            yield ()
            while True:
                yield (await self._events.get(),)
        finally:
            self.listening -= 1

    async def instances(self, ids: Sequence[InstanceId], project: str) -> list[InstanceState]:
        assert project == "shop"
        if ids:
            self.asked.append(len(ids))
        await asyncio.sleep(0.01)
        return [self.states[id_] for id_ in ids if id_ in self.states]

    async def until_known(self, states: Sequence[InstanceState], project: str) -> None:
        await BusClient.until_known(self, states, project)  # type: ignore[arg-type]

    def tell(self, state: InstanceState) -> None:
        self.states[state.id] = state
        self.tell_by_event(state)

    def tell_by_event(self, state: InstanceState) -> None:
        """No scheduler knows it so far."""
        self._events.put_nowait(InstanceActive(cell="c1", instance=state))

    def watch(self) -> InstanceWatch:
        return InstanceWatch(self, "shop")  # type: ignore[arg-type]


def a_state(number: int, state: str = "placed", sequence: int = 1) -> InstanceState:
    id_ = InstanceId(UUID(int=number))
    return InstanceState(
        id=id_, request_id=RequestId(UUID(int=number)), sequence=sequence, state=state, cell="c1"
    )


@simulated
async def test_a_thousand_callers_share_one_subscription_and_ask_together() -> None:
    bus = Bus()
    watch = bus.watch()

    async def follow(number: int) -> str:
        id_ = InstanceId(UUID(int=number))
        with watch.of([id_]) as told:
            while True:
                state = await told.get()
                assert isinstance(state, InstanceState)
                if state.state == "active":
                    return state.state

    following = [asyncio.create_task(follow(number)) for number in range(1000)]
    await asyncio.sleep(0.1)
    for number in range(1000):
        bus.tell(a_state(number, "active", 2))
    assert await asyncio.gather(*following) == ["active"] * 1000
    assert (bus.subscriptions, sum(bus.asked)) == (1, 1000)
    assert len(bus.asked) <= 2
    await asyncio.sleep(LINGER_S + 1)
    assert bus.listening == 0, "it listens only while somebody follows"
    await watch.close()


@simulated
async def test_an_event_that_was_missed_is_found_by_asking() -> None:
    bus = Bus()
    state = a_state(1)
    watch = bus.watch()
    bus.states[state.id] = state
    with watch.of([state.id], (state,)) as told:
        assert await told.get() == state
        bus.states[state.id] = over = structs.replace(state, state="active", sequence=2)
        async with asyncio.timeout(LOOK_AGAIN_S + 1):
            assert await told.get() == over
    await watch.close()


@simulated
async def test_an_end_is_told_when_schedulers_know_of_it_and_take_the_next_order() -> None:
    """Also the end of one that has failed."""
    bus, over = Bus(), a_state(1, "error", 2)
    bus.states[over.id] = a_state(1)
    session = ClientSession(MemoryBroker().as_user(), project="shop")
    session._opened = bus  # type: ignore[assignment]  # noqa: SLF001 - in place of a connection
    build = SentRequest(
        session,
        over.request_id,
        [over.id],
        what="the build",
        project="shop",
        is_over=has_ended,
        why_not_done=why_not_built,
    )
    ending = asyncio.create_task(build.until_done())
    await asyncio.sleep(0.1)
    bus.tell_by_event(over)
    await asyncio.sleep(0.1)
    assert (build.states, ending.done()) == ((over,), False)
    bus.states[over.id] = over
    with pytest.raises(NotDone):
        await ending
    await session.__aexit__(None, None, None)


async def test_events_of_other_projects_do_not_look_like_an_interruption() -> None:
    broker = MemoryBroker().as_user()
    connection = await broker.connect()
    await connection.declare(objects_of(("c1",)))
    ours = InstanceActive(cell="c1", instance=STATE)
    async with station_on(broker, "moor") as (station, task):
        heard = BusClient(station, task).listen("instance.#", project="p")
        assert await anext(heard) == []
        waiting = asyncio.ensure_future(anext(heard))
        await station.send(InstanceActive(cell="c1", instance=structs.replace(STATE, project="another")))
        await station.send(ours)
        assert await waiting == [ours]
        await heard.aclose()
    await connection.close()


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
    follower.take((at_api,))
    assert follower.states == {STATE.id: active}


BUILD, REBUILD = RequestId(UUID(int=1)), RequestId(UUID(int=2))
LATER_STATES = ("active", "stopped", "moving", "moved", "shelved", "offloaded")


def instance(state: str, rebuild: Rebuild | None = None) -> InstanceState:
    return InstanceState(
        id=InstanceId(UUID(int=3)), request_id=BUILD, sequence=9, state=state, rebuild=rebuild
    )


# A later release may have words that this one does not know.
BUILDING = ("accepted", "waiting", "placed", "building", "deleting", "a later word")


@pytest.mark.parametrize(
    ("state", "is_over", "is_built"),
    [
        *((state, True, True) for state in LATER_STATES),
        *((state, False, False) for state in BUILDING),
        *((state, True, False) for state in ("error", "deleted")),
    ],
)
def test_a_build_is_over_and_has_built_something_by_what_became_of_its_instance(
    state: str, *, is_over: bool, is_built: bool
) -> None:
    assert has_ended(instance(state)) is is_over
    assert (why_not_built(instance(state)) == "") is is_built


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
