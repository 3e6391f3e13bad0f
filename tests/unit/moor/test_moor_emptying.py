"""What `moor host drain` and `moor evacuate` order, and when; in simulated time."""

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from uuid import UUID

from msgspec import structs

from bus.message import Message
from bus.messages.build import (
    AskInstances,
    BuildRejected,
    InstanceActive,
    InstancesFound,
    InstanceState,
    Move,
    Waiting,
)
from bus.messages.hosts import HostSet, SetHost
from bus.messages.moves import MOVES_PER_CELL, MoveInstance
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostState
from engine.inventories import ProviderId
from kit.process import stopped_by_signals
from moor.client import Emptied
from tests.asking import client_of
from tests.simulation.loop import run_simulated, simulated
from tests.unit.conductor.cell import NOON

AN_HOUR_S = 3600.0


class Asking:
    """A client of a host with these instances. Each move takes so many seconds, or is refused for a reason."""

    def __init__(self, count: int, takes_s: Callable[[int], float] = lambda _: 10.0) -> None:
        self.refusal: Callable[[], str] = lambda: ""
        self.room: Callable[[], int] = lambda: count
        # The numbers of the instances whose moves wait for room, each so many seconds.
        self.wait_s: dict[int, float] = {}
        # Those that wait until their time is up.
        self.in_vain: set[int] = set()
        self.kinds: list[str] = []
        self.hosts: set[tuple[str, ...]] = set()
        # The numbers of the instances whose moves were taken, and when.
        self.taken: list[tuple[int, float]] = []
        self.refused = 0
        self.under_way: set[InstanceId] = set()
        self._takes_s = takes_s
        self._states = {InstanceId(UUID(int=number)): a_state(number) for number in range(1, count + 1)}
        self._events = asyncio.Queue[InstanceState]()

    async def ask(self, question: Message) -> Message:
        if isinstance(question, SetHost):
            return HostSet(host=HostState(id=ProviderId(UUID(int=1)), name="h1", cell="c1", up=True))
        assert isinstance(question, AskInstances)
        return InstancesFound(instances=tuple(self._states.values()))

    async def ask_all(self, orders: Sequence[MoveInstance]) -> list[Message]:
        return [self._answer(order) for order in orders]

    def _answer(self, order: MoveInstance) -> Message:
        self.kinds.append(order.kind)
        self.hosts.add(order.hosts)
        if order.instance.int not in self.wait_s and len(self.under_way) >= self.room():
            self.refused += 1
            return BuildRejected(
                request_id=order.request_id, field=MOVES_PER_CELL, value="2", reason="ask again later"
            )
        if reason := self.refusal():
            return BuildRejected(request_id=order.request_id, field="instance", value="", reason=reason)
        loop, number = asyncio.get_running_loop(), order.instance.int
        self.taken.append((number, loop.time()))
        move = Move(
            request_id=order.request_id, number=2, kind=order.kind, source="h1", ends_by=NOON, confirm_s=0
        )
        if (wait_s := self.wait_s.get(number)) is not None:
            move = structs.replace(move, waits_until=NOON)
            self._change(
                order.instance, move=move, waiting=Waiting(until=NOON, since=NOON, reason="all full")
            )
            goes_on = self._fail if number in self.in_vain else self._begin
            loop.call_later(wait_s, goes_on, order.instance, move)
            return InstancesFound(instances=(self._states[order.instance],))
        self.under_way.add(order.instance)
        self._change(order.instance, state="moving", move=move)
        loop.call_later(self._takes_s(number), self._end, order.instance, move)
        return InstancesFound(instances=(self._states[order.instance],))

    def _begin(self, instance: InstanceId, move: Move) -> None:
        self.under_way.add(instance)
        self._change(instance, state="moving", waiting=None)
        self._events.put_nowait(self._states[instance])
        asyncio.get_running_loop().call_later(self._takes_s(instance.int), self._end, instance, move)

    def _fail(self, instance: InstanceId, move: Move) -> None:
        failed = structs.replace(move, outcome="failed", failure="no valid host: it waited in vain")
        self._change(instance, waiting=None, move=failed)
        self._events.put_nowait(self._states[instance])

    def _end(self, instance: InstanceId, move: Move) -> None:
        self.under_way.discard(instance)
        self._change(
            instance, state="active", host="h2", move=structs.replace(move, outcome="confirmed", number=3)
        )
        self._events.put_nowait(self._states[instance])

    def _change(self, instance: InstanceId, **changes: object) -> None:
        before = self._states[instance]
        self._states[instance] = structs.replace(before, sequence=before.sequence + 1, **changes)

    async def listen(self, *_: str, project: str) -> AsyncGenerator[Sequence[Message], None]:
        assert project == ""
        yield ()
        while True:
            yield [InstanceActive(cell="c1", instance=await self._events.get())]

    async def instances(self, ids: Iterable[InstanceId], _: str) -> list[InstanceState]:
        return [self._states[each] for each in ids]


def a_state(number: int) -> InstanceState:
    return InstanceState(
        id=InstanceId(UUID(int=number)),
        request_id=RequestId(UUID(int=100)),
        sequence=1,
        state="active",
        cell="c1",
        host="h1",
        attempt=1,
    )


async def emptied(asking: Asking, timeout_s: float = AN_HOUR_S, at_once: int = 2) -> Emptied:
    with stopped_by_signals() as told:
        moor = client_of(asking)
        return await moor.drain("h1", hosts=("h2", "h3"), at_once=at_once, timeout_s=timeout_s, stop=told)


def test_what_did_not_move_by_the_first_kind_is_ordered_by_the_next_one() -> None:
    asking = Asking(3)
    asking.refusal = lambda: "no host has room"
    done = run_simulated(emptied(asking))

    assert asking.kinds[:2] == ["live-migrate"] * 2
    assert sorted(asking.kinds) == ["live-migrate"] * 3 + ["migrate"] * 3
    assert asking.hosts == {("h2", "h3")}
    assert {each.reason for each in done.stayed} == {"no host has room"}


@simulated
async def test_what_waits_for_room_does_not_count_and_the_others_go_on() -> None:
    asking = Asking(5)
    asking.wait_s = {1: 500.0, 2: 500.0, 3: 500.0}
    done, at_s = await emptied(asking), asyncio.get_running_loop().time()

    assert [number for number, _ in asking.taken] == [1, 2, 3, 4, 5]
    assert {at for _, at in asking.taken} == {0.0}
    assert (len(done.moved), done.stayed, at_s) == (5, (), 510.0)


def test_what_waited_for_room_until_its_time_was_up_does_not_wait_again_by_another_kind() -> None:
    asking = Asking(1)
    asking.wait_s, asking.in_vain = {1: 500.0}, {1}
    done = run_simulated(emptied(asking))

    assert asking.kinds == ["live-migrate"]
    assert [each.reason for each in done.stayed] == ["no valid host: it waited in vain"]


def test_as_many_moves_are_under_way_as_the_limits_allow_and_nothing_is_given_up_because_of_them() -> None:
    asking = Asking(6)
    asking.room = lambda: 2
    done = run_simulated(emptied(asking, at_once=50))

    assert [at_s for _, at_s in asking.taken] == [0.0, 0.0, 10.0, 10.0, 20.0, 20.0]
    assert (len(done.moved), done.stayed) == (6, ())
    # Four at first, and one more at most for each move that is over.
    assert asking.refused <= 4 + 6


def test_when_the_time_is_up_nothing_more_is_ordered_and_the_rest_says_so() -> None:
    asking = Asking(4)
    done = run_simulated(emptied(asking, timeout_s=15))

    assert len(asking.taken) == 4
    assert {each.reason for each in done.stayed} == {"its move goes on"}
    assert len(done.moved) == 2


@simulated
async def test_a_signal_ends_the_orders_and_what_became_of_each_instance_is_still_said() -> None:
    asking = Asking(5, lambda number: number * 10.0)
    asyncio.get_running_loop().call_at(15, os.kill, os.getpid(), signal.SIGINT)
    done = await emptied(asking)

    assert [number for number, _ in asking.taken] == [1, 2, 3]
    assert [each.id.int for each in done.moved] == [1]
    assert {each.instance.int: each.reason for each in done.stayed} == {
        2: "its move goes on",
        3: "its move goes on",
        4: "its turn did not come",
        5: "its turn did not come",
    }
