"""What `moor node ring` shows of the daemons that share bare-metal nodes, and how it drains one."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from uuid import UUID

import pytest
import pytest_asyncio
from msgspec import structs

from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId
from ironic_sync.core.node import Node
from ironic_sync.core.rows import Deployed, NodeRow, Offer
from ironic_sync.membership import Membership
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import IronicStore
from kit.sql import upgrade
from tests.contracts.sql_stores import empty_database
from tests.stories.moor.moor_process import moor, moor_json
from tests.waiting import until

pytestmark = pytest.mark.asyncio


class Served:
    def __init__(self, url: str, store: IronicStore) -> None:
        self.url = url
        self.store = store

    async def fill(self, *owners: str) -> None:
        """The last node has an instance."""
        rows = [
            NodeRow(id=node_id(number), owner=owner, epoch=1)
            for number, owner in enumerate(owners[:-1], start=1)
        ]
        last = node_id(len(owners))
        held = NodeRow(id=last, owner=owners[-1], epoch=4, node=Node(id=last, instance_uuid=UUID(int=9)))
        async with self.store.transaction() as tx:
            await tx.save([*rows, held])


@pytest_asyncio.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def served(request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    async with empty_database(request.param) as url:
        await upgrade(url, "ironic_sync")
        store = IronicStore(url)
        yield Served(url, store)
        await store.close()


def node_id(number: int) -> ProviderId:
    return ProviderId(UUID(int=number))


async def test_nodes_of_which_a_restored_ironic_tells_an_older_state_are_listed_and_answered(
    served: Served,
) -> None:
    noon = datetime(2026, 3, 4, 12, tzinfo=UTC)
    lives = Deployed(cell="c1", instance=InstanceId(ConsumerId(UUID(int=7))), attempt=1)
    older = structs.replace(a_held_row(1, "d1"), older_than=noon, deployed=lives)
    async with served.store.transaction() as tx:
        await tx.save([older, a_held_row(2, "d2")])

    shown = await moor_json("node", "ring", "--ironic-db", served.url)
    assert (shown["older"], shown["in_trouble"]) == (1, 1)
    (listed,) = await moor_json("node", "ring", "older", "--ironic-db", served.url)
    assert listed == {
        "id": str(node_id(1)),
        "name": "rack-1",
        "cell": "c1",
        "older_than": "2026-03-04T12:00:00Z",
        "state": "none",
        "instance": None,
        "lives": str(UUID(int=7)),
    }
    assert (await served.store.alarms(noon)).older == 1

    told = await moor("node", "ring", "older", "--go-on", "--ironic-db", served.url)
    assert told.code == 0, told.err
    assert "1 nodes count again as Ironic has them" in told.out
    row = (await served.store.read([node_id(1)]))[node_id(1)]
    assert row.older_than is None
    assert row.needs_read, "its owner looks again"
    assert (await served.store.alarms(noon)).older == 0


async def test_nodes_missing_in_ironic_are_shown_and_released_by_an_operator(served: Served) -> None:
    held = structs.replace(a_held_row(1, "d1"), missing_since_us=1_700_000_000_000_000)
    moving = structs.replace(
        a_held_row(2, "d2"), cell_wanted="c2", cell_note="it moves", report_note="1 of it is held"
    )
    foreign = structs.replace(a_held_row(3, "d1"), is_foreign=True)
    async with served.store.transaction() as tx:
        await tx.save([held, moving, foreign])

    shown = await moor_json("node", "ring", "--ironic-db", served.url)
    assert (shown["missing"], shown["moving"], shown["foreign"]) == (1, 1, 1)
    assert await moor_json("node", "ring", "missing", "--ironic-db", served.url) == [
        {"id": str(node_id(1)), "name": "rack-1", "cell": "c1", "since": "2023-11-14T22:13:20Z"}
    ]
    told = await moor("node", "ring", "show", str(node_id(2)), "--ironic-db", served.url)
    assert all(each in told.out for each in ("cell: c1", "it moves", "1 of it is held")), told.out
    assert not (await served.store.read([node_id(1)]))[node_id(1)].is_deleted

    told = await moor("node", "ring", "missing", "--remove", "--ironic-db", served.url)
    assert told.code == 0, told.err
    assert "1 nodes are removed once no consumer holds them" in told.out
    (row,) = await served.store.page_of("d1", 10, needs="report")
    assert (row.id, row.is_deleted, row.missing_since_us) == (node_id(1), True, 0)
    assert await moor_json("node", "ring", "missing", "--ironic-db", served.url) == []


def a_held_row(number: int, owner: str) -> NodeRow:
    node = Node(id=node_id(number), name=f"rack-{number}")
    offer = Offer(resource_class="CUSTOM_GOLD")
    return NodeRow(
        id=node_id(number), owner=owner, epoch=1, cell="c1", node=node, offer=offer, reported=offer
    )


async def test_a_daemon_that_is_told_to_drain_hands_its_nodes_over(served: Served) -> None:
    await served.fill(*[""] * 30)
    settings = DaemonRules(look_s=0.05)
    d1, d2 = (Membership(served.store, name, name, settings) for name in ("d1", "d2"))
    running = [asyncio.create_task(each.run()) for each in (d1, d2)]
    await until(lambda: len(d1.owned) + len(d2.owned) == 30 and d1.owned, "both have their nodes")

    told = await moor("node", "ring", "drain", "d1", "--ironic-db", served.url)
    assert told.code == 0, told.err
    assert "d1 drains" in told.out
    await until(lambda: not d1.owned, "d1 has none")
    shown = await moor_json("node", "ring", "--ironic-db", served.url)
    assert [(each["state"], each["nodes"]) for each in shown["daemons"]] == [
        ("draining", 0),
        ("alive", 30),
    ]

    told = await moor("node", "ring", "drain", "d2", "--ironic-db", served.url)
    assert "no other daemon can take its 30 nodes" in " ".join(told.out.split())
    told = await moor("node", "ring", "undrain", "d1", "--ironic-db", served.url)
    assert told.code == 0, told.err
    await until(lambda: len(d1.owned) == 30, "d1 has all")
    for each in (d1, d2):
        await each.stop()
    await asyncio.gather(*running)
