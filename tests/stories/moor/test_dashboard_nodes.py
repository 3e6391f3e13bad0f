"""Bare-metal nodes and the ring of daemons in the dashboard: what the daemons' rows and Ironic say, at little cost."""

import httpx
import pytest

from tests.stories.moor.moor_process import moor, moor_json
from tests.stories.moor.test_moor_dashboard import SCRIPT, a_cloud, page_with

pytestmark = pytest.mark.asyncio


async def test_the_pages_show_nodes_why_they_are_not_offered_and_who_owns_them() -> None:
    async with (
        a_cloud("--nodes", "3", "--daemons", "2") as (environment, url, _),
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        nodes = await moor_json("node", "list", **environment)
        broken = nodes[0]["id"]
        assert (await moor("node", "maintenance", "on", broken, "--reason", SCRIPT, **environment)).code == 0

        page = await page_with(client, "/nodes", "maintenance:")
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
