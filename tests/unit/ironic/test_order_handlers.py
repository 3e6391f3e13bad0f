"""A daemon takes a batch of orders: each is written on its node's row or answered at once, and none makes a node known."""

from collections.abc import Sequence
from datetime import UTC, datetime
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.cell import (
    DeployInstance,
    InstanceDestroyed,
    RedeployInstance,
    SpawnFailed,
    UndeployInstance,
)
from bus.workers.handling import Received, Said, Tell
from engine.inventories import ProviderId
from ironic_sync.applying import NodeWriter
from ironic_sync.core.offers import CellMap
from ironic_sync.core.rows import AT_ONCE, NodeRow
from ironic_sync.core.settling import NodePolicy, Order
from ironic_sync.deploying import HANDLERS
from kit.times import microseconds
from tests.stores_in_memory import MemoryIronicStore
from tests.unit.ironic.captured import NODE_ID, a_node
from tests.unit.ironic.deploys import OURS, THEIRS, an_order, an_undeploy

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
UNKNOWN = ProviderId(UUID(int=0xDEAD))


class Daemon:
    def __init__(self, *, can_read: bool = True) -> None:
        policy = NodePolicy(cells=CellMap(default="c1"), standard_traits=frozenset(), can_read=can_read)
        self.store = MemoryIronicStore()
        self.writer = NodeWriter(self.store, policy, skew_us=1, clock_us=lambda: microseconds(NOON))
        self.heard: list[NodeRow] = []
        self.writer.listen(self.heard.extend)

    async def knows_node(self) -> None:
        await self.writer.change({NODE_ID: lambda row: structs.replace(row, node=a_node())})
        self.heard.clear()

    async def take(self, *orders: Order) -> Sequence[Said]:
        assert HANDLERS.keys() == {DeployInstance, UndeployInstance, RedeployInstance}
        handler = HANDLERS[DeployInstance]
        assert callable(handler)
        received = [
            Received(message=each, id="m", trace="", sender="", reply_to="", attempts=0) for each in orders
        ]
        async with self.writer.transaction() as book:
            return await handler(received, book)


def told(said: Sequence[Said]) -> list[object]:
    answers = [each.message for each in said if isinstance(each, Tell)]
    return [
        (type(each), each.attempt) for each in answers if isinstance(each, SpawnFailed | InstanceDestroyed)
    ]


async def test_an_order_is_written_and_whoever_listens_hears_of_the_row() -> None:
    daemon = Daemon()
    await daemon.knows_node()

    assert await daemon.take(an_order()) == []

    (row,) = daemon.heard
    assert row.deploy is not None
    assert (row.deploy.started_at, row.due_at) == (NOON, AT_ONCE)
    assert row.offer is not None
    assert row.offer.reserved
    # It comes again.
    assert await daemon.take(an_order()) == []
    assert len(daemon.heard) == 1


async def test_the_orders_of_a_batch_for_one_node_are_folded_in_their_order() -> None:
    daemon = Daemon()
    await daemon.knows_node()

    said = await daemon.take(
        an_undeploy(attempt=1),
        an_order(attempt=1),
        an_order(attempt=2),
        an_order(THEIRS, 7),
        an_undeploy(attempt=1),
    )

    assert told(said) == [
        (InstanceDestroyed, 1),
        (SpawnFailed, 1),
        (SpawnFailed, 7),
        (InstanceDestroyed, 1),
    ]
    (row,) = daemon.heard
    assert row.deploy is not None
    assert (row.deploy.instance, row.deploy.attempt) == (OURS, 2)


async def test_orders_for_a_node_that_is_not_known_are_answered_and_do_not_make_it_known() -> None:
    daemon = Daemon()

    said = await daemon.take(an_order(host=UNKNOWN), an_undeploy(host=UNKNOWN))

    assert told(said) == [(SpawnFailed, 1), (InstanceDestroyed, 1)]
    assert await daemon.store.read([UNKNOWN]) == {}


async def test_a_daemon_without_ironics_api_refuses_and_leaves_the_node_offered() -> None:
    daemon = Daemon(can_read=False)
    await daemon.knows_node()

    (said,) = await daemon.take(an_order())

    assert isinstance(said, Tell)
    assert isinstance(said.message, SpawnFailed)
    assert "MOOR_IRONIC_URL" in said.message.reason
    row = (await daemon.store.read([NODE_ID]))[NODE_ID]
    assert row.deploy is None
    assert row.offer is not None
    assert not row.offer.reserved
