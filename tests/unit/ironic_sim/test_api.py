"""The simulated Ironic's REST API: answers, errors and their form, pages, versions, authentication."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
import pytest_asyncio

from laboratory.ironic import IronicTransport, available_nodes
from tests.unit.ironic_sim.worlds import World

pytestmark = pytest.mark.asyncio
VERSION = "X-OpenStack-Ironic-API-Version"
INSTANCE = "11111111-2222-3333-4444-555555555555"
NODE = "/v1/nodes/node-00000"


class Api:
    """A client of a world's API, at version 1.82 unless a call says another."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.client = httpx.AsyncClient(transport=IronicTransport(world.ironic), base_url="http://ironic")

    async def call(
        self, method: str, path: str, body: Any = None, *, version: str | None = "1.82", **more: Any
    ) -> httpx.Response:
        headers = {} if version is None else {VERSION: version}
        return await self.client.request(method, path, json=body, headers=headers, **more)

    async def get(self, path: str, **more: Any) -> Any:
        answer = await self.call("GET", path, **more)
        assert answer.status_code == 200, answer.text
        return answer.json()

    async def refused(self, status: int, method: str, path: str, body: Any = None, **more: Any) -> str:
        """The text of a refusal in Ironic's form: JSON inside JSON."""
        answer = await self.call(method, path, body, **more)
        assert answer.status_code == status, answer.text
        fault = json.loads(answer.json()["error_message"])
        assert fault["faultcode"] == ("Client" if status < 500 else "Server")
        assert fault["debuginfo"] is None
        return str(fault["faultstring"])

    async def done(
        self, status: int, method: str, path: str, body: Any = None, **more: Any
    ) -> httpx.Response:
        answer = await self.call(method, path, body, **more)
        assert answer.status_code == status, answer.text
        self.world.settle()
        return answer


def patch(field: str, value: Any, op: str = "add") -> list[dict[str, Any]]:
    return [{"op": op, "path": f"/{field}", "value": value}]


@pytest_asyncio.fixture
async def api() -> AsyncIterator[Api]:
    api = Api(World(available_nodes(5)))
    yield api
    await api.client.aclose()


async def test_versions_are_told_and_a_wrong_one_is_not_acceptable(api: Api) -> None:
    answer = await api.call("GET", "/v1/nodes", version="1.46")
    told = {key: answer.headers[key] for key in (VERSION, "X-OpenStack-Ironic-API-Maximum-Version")}

    assert told == {VERSION: "1.46", "X-OpenStack-Ironic-API-Maximum-Version": "1.115"}
    for wrong in ("1.0", "1.9999", "2.1", "x"):
        await api.refused(406, "GET", "/v1/nodes", version=wrong)


async def test_pages_are_followed_to_the_end(api: Api) -> None:
    names, path = [], "/v1/nodes?limit=2&fields=name,uuid"
    while path:
        page = await api.get(path)
        names += [node["name"] for node in page["nodes"]]
        path = page.get("next", "")

    assert names == [f"node-0000{n}" for n in range(5)]
    await api.refused(404, "GET", f"/v1/nodes?marker={INSTANCE}")
    await api.refused(400, "GET", "/v1/nodes?limit=0")


async def test_the_node_of_an_instance_is_found_and_the_last_changed_come_first(api: Api) -> None:
    for number in (3, 1):
        api.world.pass_s(1)
        await api.done(202, "PUT", f"/v1/nodes/node-0000{number}/maintenance", {"reason": "disk"})
    api.world.pass_s(1)
    await api.done(200, "PATCH", "/v1/nodes/node-00002", patch("instance_uuid", INSTANCE))

    found = (await api.get(f"/v1/nodes?instance_uuid={INSTANCE}&limit=1"))["nodes"]
    changed = (await api.get("/v1/nodes/detail?sort_key=updated_at&sort_dir=desc&limit=3"))["nodes"]

    assert [node["name"] for node in found] == ["node-00002"]
    assert [node["name"] for node in changed] == ["node-00002", "node-00001", "node-00003"]
    await api.refused(400, "GET", "/v1/nodes?nonsense=1")
    await api.refused(400, "GET", "/v1/nodes?sort_key=name")
    await api.refused(400, "GET", "/v1/nodes?instance_uuid=x")


@pytest.mark.parametrize(
    "operations",
    [
        {"op": "add"},
        ["x"],
        [{"op": "copy", "path": "/name", "from": "/uuid"}],
        [{"op": "add", "path": "name", "value": "x"}],
        [{"op": "add", "path": "/name"}],
        patch("nonsense", 1),
        patch("uuid", INSTANCE),
        patch("provision_state", "active"),
        patch("traits", ["CUSTOM_A"]),
        patch("instance_uuid", "not-a-uuid"),
        patch("driver", "nope"),
        [{"op": "remove", "path": "/extra/nothing"}],
        [{"op": "replace", "path": "/extra/nothing", "value": 1}],
        [{"op": "add", "path": "/extra/a/b", "value": 1}],
        [{"op": "add", "path": "/name/x", "value": 1}],
    ],
)
async def test_a_patch_that_makes_no_sense_is_refused_and_changes_nothing(api: Api, operations: Any) -> None:
    before = api.world.node("node-00000")
    await api.refused(400, "PATCH", NODE, operations)

    assert api.world.node("node-00000") == before


async def test_vifs_are_attached_to_free_ports_and_leave_with_the_instance(api: Api) -> None:
    await api.done(204, "POST", f"{NODE}/vifs", {"id": "vif-1"})
    await api.refused(409, "POST", f"{NODE}/vifs", {"id": "vif-1"})
    await api.done(204, "POST", f"{NODE}/vifs", {"id": "vif-2"})
    assert "no free port" in await api.refused(400, "POST", f"{NODE}/vifs", {"id": "vif-3"})
    await api.done(204, "DELETE", f"{NODE}/vifs/vif-1")
    await api.refused(400, "DELETE", f"{NODE}/vifs/vif-1")
    assert (await api.get(f"{NODE}/vifs")) == {"vifs": [{"id": "vif-2"}]}
    await api.done(202, "PUT", f"{NODE}/states/provision", {"target": "active"})
    await api.done(202, "PUT", f"{NODE}/states/provision", {"target": "deleted"})
    assert (await api.get(f"{NODE}/vifs")) == {"vifs": []}


async def test_what_is_not_there_and_what_is_no_json_is_refused(api: Api) -> None:
    await api.refused(404, "GET", "/v1/nonsense")
    await api.refused(405, "PUT", "/v1/nodes")
    await api.refused(404, "GET", f"/v1/nodes/{INSTANCE}")
    await api.refused(400, "PATCH", NODE, content=b"{")
