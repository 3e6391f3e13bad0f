"""A daemon that deploys many nodes: how many at once, and which of them wait for others."""

import asyncio
import time
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from uuid import UUID

import httpx
import pytest
from msgspec import structs

from bus.messages.cell import DeployProgressed, InstanceDestroyed
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId
from ironic_sync.applying import NodeWriter
from ironic_sync.core.offers import CellMap
from ironic_sync.core.rows import AT_ONCE, Answer, NodeDeploy, NodeRow
from ironic_sync.core.settling import NodePolicy
from ironic_sync.deploying import Deployer, Say
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import DaemonRules
from kit.process import run_until
from laboratory.ironic import (
    IronicSimSettings,
    IronicTransport,
    SimulatedIronic,
    available_nodes,
)
from tests.contracts.stage import until
from tests.unit.ironic.deployer_stand import DELAYS, QUICK, REST, Place, Rows
from tests.unit.ironic.deploys import an_order

pytestmark = pytest.mark.asyncio

# Nothing is reported of nodes without a cell, so that a deploy ends when the instance is active.
NO_CELL = NodePolicy(cells=CellMap(), standard_traits=frozenset(), can_read=True)


class Gate(httpx.AsyncBaseTransport):
    """Lets requests through while it is open, and knows how many wait before it."""

    def __init__(self, ironic: SimulatedIronic) -> None:
        self._inner = IronicTransport(ironic)
        self.opened = asyncio.Event()
        self.waiting = 0
        self.waiting_max = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self.waiting += 1
        self.waiting_max = max(self.waiting_max, self.waiting)
        try:
            await self.opened.wait()
        finally:
            self.waiting -= 1
        return await self._inner.handle_async_request(request)


class Hall:
    """Many nodes of one daemon."""

    def __init__(self, count: int) -> None:
        nodes = available_nodes(count)
        self.ids = [ProviderId(UUID(each.uuid)) for each in nodes]
        self.ironic = SimulatedIronic(nodes, time.time, lambda *_: None, IronicSimSettings(delays=DELAYS))
        self.gate = Gate(self.ironic)
        self.store = Rows()
        self.writer = NodeWriter(self.store, NO_CELL, skew_us=1, clock_us=lambda: time.time_ns() // 1000)
        # Cells whose brokers take nothing.
        self.away: set[str] = set()
        self.said: list[Answer | DeployProgressed] = []
        self.deployer: Deployer
        self.say: Say = self._say

    @asynccontextmanager
    async def running(
        self, *rows: NodeRow, settings: DaemonRules = QUICK
    ) -> AsyncIterator["asyncio.Task[None]"]:
        async with self.store.transaction() as transaction:
            await transaction.save(rows)
        place = Place("d1")
        place.owned = dict.fromkeys(self.ids, 1)
        api = HttpIronicApi("http://ironic", limits=REST, transport=self.gate)
        self.deployer = Deployer(api, self.writer, self.store, place, self.say, settings)
        self.writer.listen(self.deployer.touch)
        told = asyncio.Event()
        ironic = asyncio.create_task(run_until(told, (self.ironic,), 5))
        deploying = asyncio.create_task(self.deployer.run())
        try:
            yield deploying
        finally:
            told.set()
            deploying.cancel()
            with suppress(asyncio.CancelledError):
                await deploying
            await ironic
            await api.close()

    def _say(self, message: Answer | DeployProgressed) -> "asyncio.Future[None]":
        done = asyncio.get_running_loop().create_future()
        if message.cell not in self.away:
            self.said.append(message)
            done.set_result(None)
        return done


def a_row(node: ProviderId, **fields: object) -> NodeRow:
    return structs.replace(NodeRow(id=node, owner="d1", epoch=1, seen_epoch=1, read_epoch=1), **fields)


def deploying(node: ProviderId) -> NodeRow:
    instance = instance_on(node)
    order = an_order(instance, host=node)
    return a_row(
        node,
        deploy=NodeDeploy(
            kind="deploy", cell="c1", instance=instance, attempt=1, order=order, due_at=AT_ONCE
        ),
    )


def instance_on(node: ProviderId) -> InstanceId:
    return InstanceId(ConsumerId(UUID(int=node.int ^ 1)))


async def test_so_many_nodes_are_worked_on_at_once_and_all_in_the_end() -> None:
    hall = Hall(12)
    settings = structs.replace(QUICK, deploys_at_once=4)
    async with hall.running(*map(deploying, hall.ids), settings=settings):
        await until(lambda: hall.gate.waiting == 4)
        looks = hall.store.looks
        await until(lambda: hall.store.looks > looks + 5)
        assert hall.gate.waiting_max == 4

        hall.gate.opened.set()
        await until(lambda: all(hall.store.row(node).deployed for node in hall.ids))
        assert hall.gate.waiting_max == 4


async def test_answers_that_wait_for_the_broker_of_their_cell_keep_no_other_node_waiting() -> None:
    """They are due for longer than anything else, and more than a page of them."""
    hall = Hall(8)
    hall.away.add("c2")
    hall.gate.opened.set()
    silent, (last,) = hall.ids[:7], hall.ids[7:]
    async with hall.running(
        *(a_row(node, answers=answers_for([node]), answers_at=AT_ONCE) for node in silent),
        deploying(last),
        settings=structs.replace(QUICK, page=3),
    ):
        await until(lambda: hall.store.row(last).deployed is not None)
        await until(
            lambda: [each.host for each in hall.said if not isinstance(each, DeployProgressed)] == [last]
        )
        assert all(hall.store.row(node).answers for node in silent)


def answers_for(nodes: Collection[ProviderId]) -> tuple[Answer, ...]:
    return tuple(
        InstanceDestroyed(cell="c2", instance=instance_on(node), attempt=1, host=node) for node in nodes
    )


async def test_an_answer_is_tried_again_when_the_broker_of_its_cell_is_back_and_its_order_is_kept() -> None:
    hall = Hall(1)
    (node,) = hall.ids
    (first,) = answers_for([node])
    second, third = (structs.replace(first, attempt=attempt) for attempt in (2, 3))
    waiting: list[asyncio.Future[None]] = []

    def say(message: Answer | DeployProgressed) -> "asyncio.Future[None]":
        done = asyncio.get_running_loop().create_future()
        waiting.append(done)
        hall.said.append(message)
        return done

    hall.say = say
    now = datetime.now(UTC)
    async with hall.running(a_row(node, answers=(first, second), answers_at=now)):
        await until(lambda: len(waiting) == 1)
        assert hall.said == [first], "the second is not said before the first"
        waiting[0].set_result(None)
        await until(lambda: len(waiting) == 2)
        # Another one comes meanwhile.
        await hall.writer.change(
            {node: lambda row: structs.replace(row, answers=(*row.answers, third), answers_at=now)}
        )
        assert hall.store.row(node).answers == (first, second, third), "both are kept until both are said"
        waiting[1].set_result(None)
        await until(lambda: len(waiting) == 3)
        assert hall.store.row(node).answers == (third,)
        assert hall.store.row(node).answers_at == now
        waiting[2].set_result(None)
        await until(lambda: not hall.store.row(node).answers)

    assert hall.said == [first, second, third]
    assert hall.store.row(node).answers_at is None
