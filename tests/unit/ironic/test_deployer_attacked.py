"""Clocks that jump, strangers on the node, orders in any order, and brokers that are away: what a deploying daemon makes of it."""

import asyncio
import random
from collections.abc import Awaitable, Callable

import httpx
import pytest
from msgspec import structs

from bus.messages.cell import DeployProgressed, InstanceDestroyed
from ironic_sync.core.settling import Order  # noqa: TC001 - like every other import
from tests.unit.ironic.deployer_stand import Stand
from tests.unit.ironic.deploys import OURS, an_order, an_undeploy

pytestmark = pytest.mark.asyncio

PORTS = ("port-1", "port-2")
Go = Callable[[], Awaitable[httpx.Response]]


async def test_a_daemon_that_loses_a_node_breaks_off_what_it_asks_and_what_it_says() -> None:
    stand = Stand(hears=False)
    stand.takes = lambda message: isinstance(message, DeployProgressed)
    broken_off = asyncio.Event()

    async def stand_still(_: Go) -> httpx.Response:
        try:
            return await asyncio.Future[httpx.Response]()
        finally:
            broken_off.set()

    async with stand.running(), stand.daemon() as place:
        await stand.order(an_order(host=stand.id))
        await stand.until(lambda: bool(stand.unsaid), "an answer waits for the broker")
        stand.wire.events |= dict.fromkeys(range(1, 1000), stand_still)
        await stand.order(an_undeploy(host=stand.id))
        await stand.until(lambda: len(stand.wire.events) < 999, "Ironic does not answer")

        place.lose(stand.id)

        await asyncio.wait_for(broken_off.wait(), 60)
        await stand.until(lambda: all(each.cancelled() for each in stand.unsaid), "nothing is said any more")


# Strangers


# Orders


@pytest.mark.parametrize("seed", range(12))
async def test_orders_that_are_doubled_and_out_of_order_leave_at_most_the_last_attempt(seed: int) -> None:
    chance = random.Random(seed)
    orders: list[Order] = []
    for attempt in (1, 2, 3):
        orders += [an_order(attempt=attempt, ports=PORTS[:1])] * chance.choice((1, 2))
        orders += [an_undeploy(attempt=attempt)] * chance.choice((1, 2))
    # Each may come later than it was sent.
    late = {number: number + chance.uniform(0, 4) for number in range(len(orders))}
    orders = [orders[number] for number in sorted(late, key=late.__getitem__)]
    stand = Stand(hears=bool(seed % 2))
    async with stand.running(), stand.daemon():
        for order in orders:
            await stand.order(structs.replace(order, host=stand.id))
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.003, 0.02)))
        await stand.until(lambda: stand.row.deploy is None and not stand.row.answers, "nothing is left to do")
        # A conductor that is told of an attempt it has given up orders it off.
        for attempt in (1, 2, 3):
            await stand.order(an_undeploy(attempt=attempt, host=stand.id))
        await stand.until(lambda: stand.row.deploy is None and not stand.row.answers, "nothing is left to do")
        await stand.until_available()
        asked = len(stand.wire.requests)
        for order in orders:
            await stand.order(structs.replace(order, host=stand.id))
        await stand.until_looked(20)
        assert stand.node.instance_uuid is None
        assert len(stand.wire.requests) == asked, "what is over is not done again"

    ended = [each.attempt for each in stand.answers if isinstance(each, InstanceDestroyed)]
    assert {1, 2, 3} <= {*ended}, "each undeploy is answered"
    assert all(each.instance == OURS for each in stand.answers)
