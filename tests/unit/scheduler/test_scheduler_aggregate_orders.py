"""Orders about aggregates that come again: after they are done, after newer ones, and after the aggregate is deleted."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from bus.message import Message
from bus.messages.build import BuildRejected
from bus.messages.hosts import AggregateDeleted, AggregateSet, AggregateState, DeleteAggregate, SetAggregate
from bus.workers.handling import Answer, ReadOnly, Received, Weighed
from engine.hosts import Aggregate
from engine.inventories import AggregateId
from engine.picture.picture import Picture
from kit.errors import Transient
from scheduler_worker.aggregates import AggregateMembership, AggregateOrders
from scheduler_worker.core.aggregates import ORDERS_KEPT
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_host, a_state, vcpus

pytestmark = pytest.mark.asyncio

RACK = AggregateId(UUID(int=1))
OTHER = AggregateId(UUID(int=2))
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
HORIZON = timedelta(hours=1)


class World:
    """A scheduler whose placement answers nothing."""

    def __init__(self) -> None:
        self.store = MemorySchedulerStore()
        self.now = NOON
        picture = Picture()
        picture.apply([a_state("h1", vcpus(8))])
        picture.put_hosts([a_host("h1")])
        self._handlers = AggregateOrders(
            self.store,
            picture,
            AggregateMembership(picture, self._ask_all, self._nothing),
            lambda: self.now,
            make_sure=self._nothing,
            multipliers=(),
            horizon=HORIZON,
        ).handlers()

    async def _nothing(self) -> None: ...

    async def _ask_all(self, _: Sequence[Message]) -> Sequence[Message]:
        raise Transient("placement is away")

    async def follow(self, id_: str, order: SetAggregate | DeleteAggregate) -> Message:
        """The answer to the order whose message has this id."""
        handler = self._handlers[type(order)]
        assert not isinstance(handler, ReadOnly | Weighed)
        ask = Received(message=order, id=id_, trace="", sender="", reply_to="me", attempts=0)
        (answer,) = [each for each in await handler([ask], None) if isinstance(each, Answer)]
        return answer.message

    async def racks(self) -> dict[str, str]:
        return {each.name: each.metadata.get("rack", "") for each in await self.store.aggregates()}


def in_rack(rack: str, name: str = "") -> SetAggregate:
    return SetAggregate(aggregate=RACK, name=name, metadata={"rack": rack})


def answered(rack: str, sequence: int) -> AggregateSet:
    state = AggregateState(id=RACK, name="r", metadata={"rack": rack}, sequence=sequence)
    return AggregateSet(aggregate=state)


async def test_an_order_that_comes_again_after_a_newer_one_does_not_undo_it() -> None:
    world = World()
    first = await world.follow("a", in_rack("one", "r"))
    assert isinstance(first, AggregateSet)
    second = await world.follow("b", in_rack("two"))
    at = first.aggregate.sequence

    again = await world.follow("a", in_rack("one", "r"))

    assert (second, again) == (answered("two", at + 1), answered("two", at + 1))
    assert await world.racks() == {"r": "two"}
    # As a new order it counts.
    await world.follow("c", in_rack("one"))
    assert await world.racks() == {"r": "one"}


async def test_the_last_order_that_comes_again_changes_nothing() -> None:
    world = World()
    first = await world.follow("a", in_rack("one", "r"))
    world.now += timedelta(seconds=5)

    assert await world.follow("a", in_rack("one", "r")) == first
    assert len(await world.store.aggregates()) == 1


async def test_a_deleted_aggregate_is_not_created_by_an_order_that_comes_again() -> None:
    world = World()
    await world.follow("a", in_rack("one", "r"))
    assert await world.follow("d", DeleteAggregate(aggregate=RACK)) == AggregateDeleted(
        aggregate=RACK, was_there=True
    )

    refused = await world.follow("a", in_rack("one", "r"))

    assert isinstance(refused, BuildRejected)
    assert (refused.field, refused.value) == ("aggregate", str(RACK))
    assert "a later order about it came" in refused.reason
    assert await world.racks() == {}
    gone_again = await world.follow("d", DeleteAggregate(aggregate=RACK))
    assert gone_again == AggregateDeleted(aggregate=RACK, was_there=True)
    assert await world.follow("e", DeleteAggregate(aggregate=RACK)) == AggregateDeleted(
        aggregate=RACK, was_there=False
    )


async def test_a_delete_that_comes_again_leaves_the_aggregate_that_was_created_since() -> None:
    world = World()
    first = await world.follow("a", in_rack("one", "r"))
    await world.follow("d", DeleteAggregate(aggregate=RACK))
    created = await world.follow("b", in_rack("two", "r"))

    gone = await world.follow("d", DeleteAggregate(aggregate=RACK))

    assert gone == AggregateDeleted(aggregate=RACK, was_there=True)
    assert await world.racks() == {"r": "two"}
    assert isinstance(first, AggregateSet)
    assert isinstance(created, AggregateSet)
    assert created.aggregate.sequence > first.aggregate.sequence + 1


async def test_the_name_of_a_deleted_aggregate_is_free_and_its_row_goes_after_the_horizon() -> None:
    world = World()
    await world.follow("a", in_rack("one", "r"))
    await world.follow("d", DeleteAggregate(aggregate=RACK))

    other = SetAggregate(aggregate=OTHER, name="r")
    assert isinstance(await world.follow("b", other), AggregateSet)
    async with world.store.transaction() as transaction:
        assert {each.id for each in await transaction.lock_aggregates()} == {RACK, OTHER}
    world.now += HORIZON + timedelta(seconds=1)
    await world.follow("c", SetAggregate(aggregate=OTHER, metadata={"rack": "two"}))

    async with world.store.transaction() as transaction:
        assert {each.id for each in await transaction.lock_aggregates()} == {OTHER}


async def test_an_order_that_was_overtaken_before_its_hosts_were_added_is_refused() -> None:
    world = World()
    await world.follow("z", in_rack("zero", "r"))
    adding = SetAggregate(aggregate=RACK, metadata={"rack": "one"}, add_hosts=("h1",))
    with pytest.raises(Transient):
        await world.follow("a", adding)
    # Alone it would go on where it was.
    with pytest.raises(Transient):
        await world.follow("a", adding)
    await world.follow("b", in_rack("two"))

    refused = await world.follow("a", adding)

    assert isinstance(refused, BuildRejected)
    assert "a later order about it came before this one was done" in refused.reason
    assert await world.racks() == {"r": "two"}


async def test_a_row_knows_a_bounded_number_of_orders() -> None:
    world = World()
    for number in range(ORDERS_KEPT + 3):
        await world.follow(f"order {number}", in_rack(f"{number}", "r"))

    async with world.store.transaction() as transaction:
        (kept,) = await transaction.lock_aggregates()
    assert [each.id for each in kept.orders] == [f"order {number}" for number in range(3, ORDERS_KEPT + 3)]
    assert kept.told == Aggregate(
        id=RACK, name="r", metadata={"rack": f"{ORDERS_KEPT + 2}"}, sequence=kept.sequence
    )
