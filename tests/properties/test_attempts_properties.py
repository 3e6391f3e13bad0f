"""Any orders about the attempts on a host, in any order, repeated, in any batches, end as the rules of attempts say."""

import asyncio
from typing import cast
from uuid import UUID

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from bus.message import Message
from bus.messages.cell import (
    AdoptGuest,
    AttemptMessage,
    DestroyInstance,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    InstanceStopped,
    LeaveGuest,
    ReceiveInstance,
    RespawnInstance,
    SpawnFailed,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from bus.workers.handling import ReadOnly, Received, Tell, Weighed
from bus.workers.publisher import Outgoing, Publisher
from compute_sim.core.attempts import AttemptRecord, AttemptState, HostOrder, Work
from compute_sim.handlers import ComputeStore, Finisher, Fleet, handlers
from compute_sim.settings import ComputePace
from engine.flavors import Flavor, Image
from engine.inventories import ConsumerId, ResourceAmount, Share
from laboratory.computes.driver import SimulatedDriver, root_of
from laboratory.computes.faults import (
    FailsToBuild,
    FailsToReceive,
    FailsToStart,
    FailsToStop,
    Fault,
    FaultScript,
)
from laboratory.computes.hosts import SimulatedHost
from tests.properties.bounds import BOUNDED, THOROUGH

HOST = root_of("h1")
SHARE = Share(host=HOST, amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=1),))
BUILDS_AT_ONCE_MAX = 1
PACE = ComputePace(drain_s=0.0)
# Both attempts of an instance on one host: the second one is received from the first one, as for a resize in place.
ATTEMPTS = (1, 2)
INSTANCES = tuple(ConsumerId(UUID(int=number)) for number in (1, 2))
Attempt = tuple[ConsumerId, int]


def spawn(instance: ConsumerId, attempt: int) -> SpawnInstance:
    return SpawnInstance(
        cell="c1", instance=instance, attempt=attempt, host=HOST, flavor=Flavor(), share=SHARE
    )


def receive(instance: ConsumerId, attempt: int, *, live: bool = False) -> ReceiveInstance:
    return ReceiveInstance(
        cell="c1",
        instance=instance,
        attempt=attempt,
        host=HOST,
        flavor=Flavor(),
        share=SHARE,
        source=HOST,
        source_attempt=1,
        live=live,
    )


def stop(attempt: Attempt, number: int) -> StopInstance:
    return StopInstance(cell="c1", instance=attempt[0], attempt=attempt[1], host=HOST, number=number)


def start(attempt: Attempt, number: int) -> StartInstance:
    return StartInstance(cell="c1", instance=attempt[0], attempt=attempt[1], host=HOST, number=number)


def respawn(attempt: Attempt, number: int) -> RespawnInstance:
    return RespawnInstance(
        cell="c1",
        instance=attempt[0],
        attempt=attempt[1],
        host=HOST,
        number=number,
        flavor=Flavor(),
        share=SHARE,
        image=Image(source=f"image-{number}"),
    )


def destroy(attempt: Attempt) -> DestroyInstance:
    return DestroyInstance(cell="c1", instance=attempt[0], attempt=attempt[1], host=HOST)


instances = st.sampled_from(INSTANCES)
attempts = st.tuples(instances, st.sampled_from(ATTEMPTS))
# Moves and rebuilds have one sequence of numbers.
numbers = st.sampled_from([1, 3, 5])
orders: st.SearchStrategy[HostOrder] = st.one_of(
    instances.map(lambda instance: spawn(instance, 1)),
    st.builds(receive, instances, st.just(2), live=st.booleans()),
    *(st.builds(kind, attempts, numbers) for kind in (stop, stop, start, start)),
    st.builds(respawn, attempts, st.sampled_from([2, 4])),
    attempts.map(destroy),
)
FAULTS: list[Fault] = [
    fault(probability=0.5) for fault in (FailsToBuild, FailsToReceive, FailsToStop, FailsToStart)
]
some_faults = st.lists(st.sampled_from(FAULTS), max_size=2)


class Batch(Struct, frozen=True):
    """Orders that arrive together, and how much time passes then."""

    orders: tuple[HostOrder, ...]
    pause_s: float


batches = st.lists(
    st.builds(
        Batch, orders=st.lists(orders, max_size=3).map(tuple), pause_s=st.sampled_from([0.0, 0.03, 0.1, 1.0])
    ),
    max_size=12,
)


class Begun(Struct, frozen=True):
    order: HostOrder
    work: Work


class Watched(SimulatedDriver):
    """Notes all work that it begins."""

    def __init__(self, script: FaultScript) -> None:
        super().__init__(SimulatedHost(name="h1"), script)
        self.begun: list[Begun] = []

    def begin(self, order: HostOrder, at_s: float) -> Work:
        work = super().begin(order, at_s)
        self.begun.append(Begun(order, work))
        return work


class Answers:
    """The answers of the host, in place of the broker."""

    def __init__(self) -> None:
        self.all: list[AttemptMessage] = []

    async def send_all(self, answers: list[Outgoing]) -> None:
        for each in answers:
            self.add(each.message)

    def add(self, message: Message) -> None:
        assert isinstance(message, AttemptMessage)
        self.all.append(message)


class World:
    """One host, and its clock."""

    def __init__(self, faults: list[Fault]) -> None:
        self.at_s = 0.0
        self.driver = Watched(FaultScript(seed=1, faults=tuple(faults)))
        self.fleet = Fleet([self.driver], lambda: self.at_s)
        self.store = ComputeStore(lambda: self.at_s)
        self.answers = Answers()
        handler = handlers(self.fleet, BUILDS_AT_ONCE_MAX)[SpawnInstance]
        assert not isinstance(handler, ReadOnly | Weighed)
        self._handle = handler

    async def order(self, *orders: HostOrder) -> None:
        items = [
            Received(message=order, id="order", trace="", sender="", reply_to="", attempts=1)
            for order in orders
        ]
        async with self.store.transaction() as tx:
            for said in await self._handle(items, tx):
                assert isinstance(said, Tell)
                self.answers.add(said.message)

    async def move_clock(self, by_s: float) -> None:
        until_s = self.at_s + by_s
        while (next_s := await self.store.next_due_s()) is not None and next_s <= until_s:
            self.at_s = max(self.at_s, next_s)
            finisher = Finisher(
                self.fleet, self.store, cast("Publisher", self.answers), BUILDS_AT_ONCE_MAX, pace=PACE
            )
            # It ends what is due now.
            await finisher.stop()
            await finisher.run()
        self.at_s = until_s

    async def record(self, attempt: Attempt) -> AttemptRecord | None:
        key = (HOST.int, attempt[0].int, attempt[1])
        async with self.store.transaction() as tx:
            return (await tx.load([key])).get(key)

    def begun(self, attempt: Attempt) -> list[Begun]:
        return [each for each in self.driver.begun if (each.order.instance, each.order.attempt) == attempt]


def last_state(begun: list[Begun]) -> AttemptState | None:
    """The state that this work leads to, when all of it is over."""
    if not begun:
        return None
    match begun[-1].order, bool(begun[-1].work.failure):
        case ((DestroyInstance() | LeaveGuest()), _):
            return AttemptState.DESTROYED
        case ((SpawnInstance() | ReceiveInstance() | AdoptGuest()), fails):
            return AttemptState.FAILED if fails else AttemptState.BUILT
        case StopInstance(), fails:
            return AttemptState.BUILT if fails else AttemptState.STOPPED
        case StartInstance(), fails:
            return AttemptState.STOPPED if fails else AttemptState.BUILT
        case RespawnInstance(), fails:
            return AttemptState.BROKEN if fails else AttemptState.BUILT


def assert_lawful(begun: list[Begun]) -> None:
    """The attempt is built once, stopped, started and rebuilt in the order of its moves and rebuilds, and left alone when it
    was destroyed.
    """
    kinds = [type(each.order) for each in begun]
    if DestroyInstance in kinds:
        destroyed_at = kinds.index(DestroyInstance)
        assert set(kinds[destroyed_at:]) == {DestroyInstance}
        begun, kinds = begun[:destroyed_at], kinds[:destroyed_at]
    if kinds:
        # What waits to be built may be rebuilt at once.
        assert kinds[0] in (SpawnInstance, ReceiveInstance, RespawnInstance)
        assert set(kinds[1:]) <= {StopInstance, StartInstance, RespawnInstance}
        assert len(kinds) == 1 or kinds[0] is RespawnInstance or not begun[0].work.failure
    ranks = [
        (each.order.number, isinstance(each.order, StartInstance))
        for each in begun
        if isinstance(each.order, StopInstance | StartInstance | RespawnInstance)
    ]
    assert ranks == sorted(ranks)
    rebuilds = [each.order.number for each in begun if isinstance(each.order, RespawnInstance)]
    assert len(rebuilds) == len(set(rebuilds))


async def check_host(world: World) -> None:
    records = [await world.record((instance, attempt)) for instance in INSTANCES for attempt in ATTEMPTS]
    there = [record for record in records if record is not None and not record.state.is_over]
    load = (await world.store.loads([HOST]))[HOST]
    assert sum(record.state.takes_slot for record in there) <= BUILDS_AT_ONCE_MAX
    assert load.instances == len({record.instance for record in there})
    assert load.io_ops == sum(
        record.state.takes_slot or record.state is AttemptState.WAITING for record in there
    )


@THOROUGH
@given(some_faults, batches)
def test_any_orders_end_in_a_state_that_the_rules_allow_and_a_destroyed_attempt_never_runs(
    faults: list[Fault], batches: list[Batch]
) -> None:
    async def run() -> None:
        world = World(faults)
        for batch in batches:
            await world.order(*batch.orders)
            await check_host(world)
            await world.move_clock(batch.pause_s)
            await check_host(world)
        await world.move_clock(1000.0)
        assert await world.store.next_due_s() is None
        destroyed = {
            (order.instance, order.attempt)
            for batch in batches
            for order in batch.orders
            if isinstance(order, DestroyInstance)
        }
        for attempt in [(instance, number) for instance in INSTANCES for number in ATTEMPTS]:
            begun, record = world.begun(attempt), await world.record(attempt)
            assert_lawful(begun)
            is_refused = not begun and record is not None and record.state is AttemptState.FAILED
            # The source of the second attempt may not have what is to be received.
            assert is_refused or (record.state if record else None) is last_state(begun)
            assert not is_refused or attempt[1] == ATTEMPTS[1]
            assert (attempt in destroyed) == (record is not None and record.state is AttemptState.DESTROYED)
            await check_answers(world, attempt, record.state if record else None)

    asyncio.run(run())


async def check_answers(world: World, attempt: Attempt, state: AttemptState | None) -> None:
    """Each order to an attempt in this state, at rest, gets its answer, and the same one when it comes again."""
    exists = state in (AttemptState.BUILT, AttemptState.STOPPED)

    async def answers(order: HostOrder) -> AttemptMessage:
        found = []
        for _ in range(2):
            world.answers.all.clear()
            await world.order(order)
            await world.move_clock(1.0)
            (answer,) = world.answers.all
            assert (answer.instance, answer.attempt) == attempt
            found.append(answer)
        assert found[0] == found[1]
        return found[0]

    stopped = await answers(stop(attempt, 9))
    assert isinstance(stopped, InstanceStopped)
    is_stopped = exists and not stopped.failure
    if exists and stopped.failure:
        assert stopped.failure == world.begun(attempt)[-1].work.failure
    older = await answers(start(attempt, 8))
    started = await answers(start(attempt, 9))
    if exists:
        assert isinstance(older, InstanceStopped if is_stopped else InstanceSpawned)
    if isinstance(started, SpawnFailed):
        assert not exists or started.reason == world.begun(attempt)[-1].work.failure
    else:
        assert exists
        assert isinstance(started, InstanceSpawned)
    rebuilt = await answers(respawn(attempt, 10))
    assert isinstance(rebuilt, InstanceRedeployed)
    assert rebuilt.is_active == (not rebuilt.failure)
    if exists or state is AttemptState.BROKEN:
        assert rebuilt.failure == world.begun(attempt)[-1].work.failure
    else:
        assert rebuilt.failure
    assert isinstance(await answers(destroy(attempt)), InstanceDestroyed)
    assert isinstance(await answers(spawn(*attempt)), InstanceDestroyed)
    assert isinstance(await answers(receive(*attempt)), InstanceDestroyed)


of_moves: st.SearchStrategy[StopInstance | StartInstance] = st.builds(
    lambda order, number: order((INSTANCES[0], 1), number), st.sampled_from([stop, start]), numbers
)


@BOUNDED
@given(
    st.lists(numbers, max_size=2),
    st.lists(st.tuples(st.lists(of_moves, max_size=3), st.sampled_from([0.0, 0.01, 1.0])), max_size=8),
)
def test_the_order_of_the_last_move_counts_however_the_orders_overtake_each_other(
    early: list[int], batches: list[tuple[list[StopInstance | StartInstance], float]]
) -> None:
    async def run() -> None:
        world, (instance, other) = World([]), INSTANCES
        starts = [start((instance, 1), number) for number in early]
        # It waits until the other one is built. Nothing can be stopped before it is built, but it may be started.
        await world.order(spawn(other, 1), spawn(instance, 1), *starts)
        await world.move_clock(1.0)
        for orders, pause_s in batches:
            await world.order(*orders)
            await world.move_clock(pause_s)
        await world.move_clock(1.0)

        obeyed = [*starts, *(order for orders, _ in batches for order in orders)]
        ranks = [(order.number, isinstance(order, StartInstance)) for order in obeyed]
        _, runs = max(ranks, default=(0, True))
        record = await world.record((instance, 1))
        assert record is not None
        assert record.state is (AttemptState.BUILT if runs else AttemptState.STOPPED)

    asyncio.run(run())
