"""Bare-metal nodes and the ring of daemons in the dashboard: what the daemons' rows and Ironic say, at little cost."""

import asyncio
from collections.abc import AsyncIterator, Collection, Mapping
from pathlib import Path

import httpx
import pytest
import pytest_asyncio
from msgspec import structs

from bus.addresses import Addresses
from engine.inventories import ProviderId
from ironic_sync.core.node import Node
from ironic_sync.core.rows import NodeRow, Offer
from ironic_sync.store_sql import SqlIronicStore
from kit.keystone import OpenStackSettings
from kit.sql import upgrade
from moor.dashboard.node_pages import MetalReader, NodeFilter
from moor.settings import Settings
from tests.contracts.sql_stores import empty_database
from tests.stories.moor.moor_process import moor, moor_json
from tests.stories.moor.test_moor_dashboard import SCRIPT, a_cloud, served_beside
from tests.stories.moor.test_moor_ring import LONG_S, node_id

pytestmark = pytest.mark.asyncio


class CountingStore(SqlIronicStore):
    """Counts the rows that are read."""

    count = 0

    async def read(self, ids: Collection[ProviderId]) -> Mapping[ProviderId, NodeRow]:
        self.count += len(ids)
        return await super().read(ids)


@pytest_asyncio.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[tuple[CountingStore, str]]:
    async with empty_database(request.param) as url:
        await upgrade(url, "ironic_sync")
        opened = CountingStore(url)
        yield opened, url
        await opened.close()


def reader_of(url: str, opened: CountingStore) -> MetalReader:
    reader = MetalReader(
        Settings(addresses=Addresses(ironic_db_url=url), data=Path("/nowhere")), OpenStackSettings, kept_s=0.0
    )
    reader.store = opened
    return reader


def a_row(number: int, owner: str = "d1", **facts: object) -> NodeRow:
    node = Node(id=node_id(number), name=f"rack-{number}", provision_state="available", resource_class="gold")
    offer = Offer(resource_class="CUSTOM_GOLD", reserved=False)
    row = NodeRow(id=node.id, owner=owner, cell="c1", epoch=1, node=node, offer=offer, reported=offer)
    return structs.replace(row, **facts)


async def test_only_rows_that_have_changed_are_read_again(store: tuple[CountingStore, str]) -> None:
    opened, url = store
    reader = reader_of(url, opened)
    async with opened.transaction() as tx:
        gone = a_row(9, is_deleted=True, is_removed=True)
        saved = await tx.save([*(a_row(number) for number in range(1, 6)), gone])

    first = await reader.nodes()
    assert first is not None
    assert ([line.name for line in first.lines], opened.count) == ([f"rack-{at}" for at in range(1, 6)], 6)
    assert await reader.nodes() is first
    assert opened.count == 6

    reserved = Offer(resource_class="CUSTOM_GOLD", reasons=("the node is in maintenance",))
    broken = structs.replace(saved.rows[1], offer=reserved, reported=reserved)
    async with opened.transaction() as tx:
        await tx.save([broken])
        await tx.forget([saved.rows[4]])
    second = await reader.nodes()
    assert second is not None
    assert (len(second.lines), second.offered, opened.count) == (4, 3, 7)
    assert second.reasons == (("the node is in maintenance", 1),)
    assert [line.name for line in second.lines if NodeFilter(only_not_offered=True).takes(line)] == ["rack-2"]


async def test_the_ring_says_how_many_nodes_each_daemon_has(store: tuple[CountingStore, str]) -> None:
    opened, url = store
    rows = [a_row(1), a_row(2, is_foreign=True), a_row(3, "lost"), a_row(4, "", missing_since_us=1)]
    async with opened.transaction() as tx:
        await tx.save(rows)
    await opened.join("d1", "a", LONG_S)

    ring = await reader_of(url, opened).ring()

    assert ring is not None
    assert {each.name: (each.state, each.nodes) for each in ring.daemons} == {
        "d1": ("alive", 2),
        "lost": ("gone", 1),
    }
    assert (ring.untaken, ring.missing, ring.foreign, ring.moving) == (1, 1, 1, 0)


async def test_the_pages_show_nodes_why_they_are_not_offered_and_who_owns_them() -> None:
    async with (
        a_cloud("--nodes", "3", "--daemons", "2") as (environment, url, _),
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        nodes = await moor_json("node", "list", **environment)
        broken = nodes[0]["id"]
        assert (await moor("node", "maintenance", "on", broken, "--reason", SCRIPT, **environment)).code == 0

        async with asyncio.timeout(30):
            while "maintenance:" not in (page := (await client.get("/nodes")).text):
                await asyncio.sleep(0.1)
        assert (SCRIPT in page, "3</b> nodes" in page, "2</b> offered" in page) == (False, True, True)
        for query, names in (
            ({"not_offered": "1"}, [True, False]),
            ({"text": nodes[1]["name"]}, [False, True]),
            ({"text": nodes[1]["id"][:8]}, [False, True]),
            ({"state": "available"}, [True, True]),
            ({"state": "active"}, [False, False]),
            ({"daemon": SCRIPT}, [False, False]),
        ):
            listed = (await client.get("/nodes", params=query)).text
            assert [f"/nodes/{each['id']}" in listed for each in nodes[:2]] == names, query
            assert SCRIPT not in listed

        one = (await client.get(f"/nodes/{broken}")).text
        assert (SCRIPT in one, "&lt;script&gt;" in one) == (False, True)
        assert f"Why {nodes[0]['daemon']} has it" in one
        ring = (await client.get("/ring")).text
        assert ("ironic-1" in ring, "ironic-2" in ring, "alive" in ring) == (True, True, True)
        host = await client.get(f"/hosts/{nodes[0]['cell']}/{broken}")
        assert host.status_code == 200

        for path, status, said in (
            ("/nodes?page=2", 400, "there are 1 pages"),
            ("/nodes?page=0", 400, "whole number from 1"),
            (f"/nodes?page={'9' * 5000}", 400, "whole number from 1"),
            ("/nodes/00000000-0000-0000-0000-000000000001", 404, "No daemon knows a node"),
            ("/nodes/x", 404, "There is no such page"),
        ):
            wrong = await client.get(path)
            assert (wrong.status_code, said in wrong.text) == (status, True), path


async def test_without_daemons_or_their_database_the_pages_say_so() -> None:
    async with a_cloud() as (environment, url, _):
        async with httpx.AsyncClient(base_url=url, timeout=30) as client:
            for path in ("/nodes", "/ring"):
                assert "There are no bare-metal daemons here" in (await client.get(path)).text
        async with served_beside(environment) as beside:
            assert "database is not named" in (await beside.get("/nodes")).text
        async with served_beside(environment, "--ironic-db", "sqlite+aiosqlite:////nowhere/x.db") as beside:
            away = await beside.get("/nodes")
            assert (away.status_code, "database" in away.text) == (503, True)
