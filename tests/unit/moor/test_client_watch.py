"""However many callers follow instances, a client listens once, and asks about all of them together."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from uuid import UUID

from msgspec import structs

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import InstanceActive, InstanceState
from engine.flavors import InstanceId, RequestId
from moor.client.bus_client import LINGER_S, LOOK_AGAIN_S, BusClient, InstanceWatch, has_ended, why_not_built
from moor.client.requests import ClientSession, SentRequest
from tests.simulation.loop import run_simulated


class Bus:
    """A bus with instances. It counts subscriptions and questions."""

    until_known = BusClient.until_known

    def __init__(self) -> None:
        self.states: dict[InstanceId, InstanceState] = {}
        self.listening = 0
        self.subscriptions = 0
        self.asked: list[int] = []
        self.trouble: Exception | None = None
        self._events = asyncio.Queue[Message]()

    async def listen(self, *_: str, project: str) -> AsyncGenerator[Sequence[Message], None]:
        assert project == "shop"
        self.subscriptions += 1
        self.listening += 1
        try:
            yield ()
            while True:
                if self.trouble is not None:
                    raise self.trouble
                yield (await self._events.get(),)
        finally:
            self.listening -= 1

    async def instances(self, ids: Sequence[InstanceId], project: str) -> list[InstanceState]:
        assert project == "shop"
        if ids:
            self.asked.append(len(ids))
        await asyncio.sleep(0.01)
        return [self.states[id_] for id_ in ids if id_ in self.states]

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


def test_a_thousand_callers_share_one_subscription_and_ask_together() -> None:
    async def work() -> None:
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

    run_simulated(work())


def test_an_event_that_was_missed_is_found_by_asking() -> None:
    async def work() -> None:
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

    run_simulated(work())


def test_an_end_is_told_when_schedulers_know_of_it_and_take_the_next_order() -> None:
    async def work() -> None:
        bus, over = Bus(), a_state(1, "active", 2)
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
        ending = asyncio.create_task(build.until_ended())
        await asyncio.sleep(0.1)
        bus.tell_by_event(over)
        await asyncio.sleep(0.1)
        assert (build.states, ending.done()) == ((over,), False)
        bus.states[over.id] = over
        assert await ending == (over,)
        await session.__aexit__(None, None, None)

    run_simulated(work())
