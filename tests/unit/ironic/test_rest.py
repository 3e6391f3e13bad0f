"""Ironic's REST API as the daemons use it, against a small server that records what it is asked and answers by a script."""

import asyncio
import base64
import json
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qsl
from uuid import UUID

import httpx
import pytest
from msgspec import Struct

from engine.inventories import ProviderId
from ironic_sync.core.node import InterfaceCheck, Node
from ironic_sync.rest import (
    FIELDS,
    CleanStep,
    HttpIronicApi,
    IronicRefused,
    NodesRead,
    PatchOperation,
)
from kit.errors import (
    CredentialsRefused,
    Locked,
    Operational,
    TookTooLong,
    Unavailable,
    VersionNotOffered,
    WrongAnswer,
)
from kit.parts import Pauses
from kit.rest import RestLimits

pytestmark = pytest.mark.asyncio

NODE = ProviderId(UUID("7464717d-6505-454d-b1f3-1bdfc8490919"))
OTHER = ProviderId(UUID("46a95f4b-c780-42fc-9dc4-9efea8b99980"))
AT = f"/v1/nodes/{NODE}"
QUICK = RestLimits(pauses=Pauses(0.001, 0.002), tries_max=4)
URL = "http://ironic.example:6385"

Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]


class Asked(Struct, frozen=True):
    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]
    body: Any

    @property
    def minor(self) -> int:
        return int(self.headers["x-openstack-ironic-api-version"].removeprefix("1."))


class Answer(Struct, frozen=True):
    body: Any = b""
    status: int = 200
    headers: Mapping[str, str] = {}


Script = Callable[[Asked], Answer]


class Server:
    """Answers by its script; `problem` is raised after a request was taken in, as when its answer is lost."""

    def __init__(self, script: Script, *, newest: int = 115) -> None:
        self.asked: list[Asked] = []
        self.problem: Exception | None = None
        self.hangs = False
        self._script = script
        self._newest = newest

    @property
    def orders(self) -> list[Asked]:
        return [each for each in self.asked if each.method != "GET"]

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        body = (await receive()).get("body", b"")
        asked = Asked(
            scope["method"],
            scope["path"],
            dict(parse_qsl(scope["query_string"].decode())),
            {name.decode(): value.decode() for name, value in scope["headers"]},
            json.loads(body) if body else None,
        )
        self.asked.append(asked)
        if self.problem is not None:
            raise self.problem
        answer = self._script(asked) if asked.minor <= self._newest else Answer(status=406)
        versions = {
            "X-OpenStack-Ironic-API-Minimum-Version": "1.1",
            "X-OpenStack-Ironic-API-Maximum-Version": f"1.{self._newest}",
        }
        headers = [(name.encode(), value.encode()) for name, value in {**versions, **answer.headers}.items()]
        if self.hangs:
            await asyncio.Event().wait()
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        raw = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
        await send({"type": "http.response.body", "body": raw})


def api_of(
    server: Server,
    limits: RestLimits = QUICK,
    url: str = URL,
    *,
    has_shards: bool = False,
) -> HttpIronicApi:
    transport = httpx.ASGITransport(server)
    return HttpIronicApi(url, has_shards=has_shards, limits=limits, transport=transport)


def told(**fields: object) -> dict[str, object]:
    """A node as Ironic shows it."""
    every = dict.fromkeys(FIELDS) | {
        "uuid": str(NODE),
        "name": "node-1",
        "provision_state": "available",
        "power_state": "power off",
        "maintenance": False,
        "retired": False,
        "resource_class": "baremetal-gold",
        "traits": ["CUSTOM_GPU"],
        "conductor_group": "",
        "properties": {"cpus": 8},
        "provision_updated_at": "2026-11-20T07:21:53+00:00",
    }
    return every | fields


def fault(text: str) -> dict[str, str]:
    return {"error_message": json.dumps({"faultcode": "Client", "faultstring": text, "debuginfo": None})}


async def pages_of(api: HttpIronicApi) -> list[NodesRead]:
    return [page async for page in api.pages()]


async def test_nodes_are_listed_by_pages_with_the_fields_asked_for() -> None:
    def script(asked: Asked) -> Answer:
        if "marker" in asked.query:
            return Answer({"nodes": [told(uuid=str(OTHER))]})
        # As behind a proxy, which the link does not know of.
        link = f"http://10.0.0.1:6385/v1/nodes?limit=1&fields=uuid&marker={NODE}"
        return Answer({"nodes": [told()], "next": link})

    server = Server(script)
    pages = await pages_of(api_of(server))

    assert [[each.id for each in page.nodes] for page in pages] == [[NODE], [OTHER]]
    assert [(each.path, each.query["limit"], each.query.get("marker")) for each in server.asked] == [
        ("/v1/nodes", "1000", None),
        ("/v1/nodes", "1000", str(NODE)),
    ]
    for each in server.asked:
        assert {*each.query["fields"].split(",")} == {*FIELDS} - {"shard"}
        assert each.minor == 65
        assert each.headers["host"] == "ironic.example:6385"


async def test_a_node_is_read_in_ironics_words() -> None:
    node = await api_of(Server(lambda _: Answer(told(owner="p1", reservation="conductor-1")))).node(NODE)

    assert isinstance(node, Node)
    assert (node.id, node.resource_class, node.traits, node.owner) == (
        NODE,
        "baremetal-gold",
        ("CUSTOM_GPU",),
        "p1",
    )
    assert node.provision_updated_at is not None


@pytest.mark.parametrize(
    ("wrong", "reason"),
    [
        ({"maintenance": "yes"}, "maintenance is 'yes'"),
        ({"traits": "CUSTOM_GPU"}, "traits is 'CUSTOM_GPU'"),
        ({"instance_uuid": "not-one"}, "instance_uuid is 'not-one'"),
        ({"resource_class": 7}, "resource_class is 7"),
        ({"reservation": []}, "reservation is []"),
        ({"uuid": None}, "uuid is None"),
        ({"provision_updated_at": "soon"}, "provision_updated_at is 'soon'"),
    ],
)
async def test_a_node_that_is_wrong_is_named_by_its_field_and_leaves_its_neighbours(
    wrong: dict[str, object], reason: str
) -> None:
    listed = [told(uuid=str(OTHER)), told(**wrong), "no node"]
    (page,) = await pages_of(api_of(Server(lambda _: Answer({"nodes": listed}))))

    assert [each.id for each in page.nodes] == [OTHER]
    assert page.unreadable[0].reason.startswith(reason)
    assert page.unreadable[0].id == (None if "uuid" in wrong else NODE)
    assert page.unreadable[1].reason == "a node must be an object, not 'no node'"


async def test_half_a_node_is_not_taken_for_a_whole_one() -> None:
    half = {name: value for name, value in told().items() if name != "provision_state"}

    with pytest.raises(WrongAnswer, match=f"node {NODE}: provision_state is missing"):
        await api_of(Server(lambda _: Answer(half))).node(NODE)


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Answer(b"<html>"), "malformed"),
        (Answer([]), "Expected `object`"),
        (Answer({"nodes": {}}), "nodes"),
        (Answer({"nodes": [], "next": "http://x/v1/nodes?limit=1"}), "leads nowhere"),
        (Answer({"nodes": [], "next": "http://[x/v1/nodes?marker=1"}), "leads nowhere"),
        (Answer({"nodes": [], "next": "http://x/v1/nodes?marker=1"}), "the page after '1' was read already"),
        (Answer(b"<html>404</html>", 404), "404: <html>"),
        (Answer(fault("no such marker"), 400), "400: no such marker"),
        (Answer(status=301, headers={"Location": "https://elsewhere/"}), "it is at https://elsewhere/"),
        (Answer({"nodes": ["x" * 3000]}), "more than 2000 bytes"),
    ],
)
async def test_an_answer_that_is_no_page_is_an_operational_error(answer: Answer, why: str) -> None:
    limits = RestLimits(answer_bytes_max=2000)
    with pytest.raises(WrongAnswer, match=why):
        await pages_of(api_of(Server(lambda _: answer), limits))


async def test_pages_that_lead_in_a_circle_are_an_error() -> None:
    def script(asked: Asked) -> Answer:
        following = "2" if asked.query.get("marker") == "1" else "1"
        return Answer({"nodes": [], "next": f"http://x/v1/nodes?marker={following}"})

    with pytest.raises(WrongAnswer, match="the page after '1' was read already"):
        await pages_of(api_of(Server(script)))


async def test_what_a_proxy_does_not_find_is_not_gone() -> None:
    """Only Ironic itself says that a node is gone."""
    api = api_of(Server(lambda _: Answer(b"<html>404 Not Found</html>", 404)))

    for question in (api.node(NODE), api.node_of_allocation(NODE)):
        with pytest.raises(WrongAnswer, match="404: <html>"):
            await question


@pytest.mark.parametrize("vif", ["", ".", "..", "..."])
async def test_a_port_whose_name_leads_out_of_its_address_is_refused_and_nothing_is_asked(vif: str) -> None:
    """`DELETE .../nodes/ID/vifs/..` would delete the node."""
    server = Server(lambda _: Answer(status=204))
    api = api_of(server)

    for refused in (await api.detach_vif(NODE, vif), await api.attach_vif(NODE, vif)):
        assert refused == IronicRefused(400, f"{vif!r} is no id of a port")
    assert not server.asked


@pytest.mark.parametrize("vif", ["a/../b", "a?b#c", "%2e%2e", "a b"])
async def test_a_port_stays_one_part_of_its_address_whatever_its_name(vif: str) -> None:
    server = Server(lambda _: Answer(status=204))

    assert await api_of(server).detach_vif(NODE, vif) is None

    assert [each.path for each in server.asked] == [f"{AT}/vifs/{vif}"]


async def test_what_is_not_there_is_a_value() -> None:
    api = api_of(Server(lambda _: Answer(fault("Node could not be found."), 404)))

    assert await api.node(NODE) is None
    assert await api.node_of_allocation(NODE) is None
    assert await api.vifs(NODE) == IronicRefused(404, "Node could not be found.")
    refused = await api.set_power_state(NODE, "power on")
    assert refused is not None
    assert refused.status == 404


async def test_allocations_vifs_and_checks_are_values() -> None:
    answers: dict[str, object] = {
        f"/v1/allocations/{OTHER}": {"uuid": str(OTHER), "node_uuid": str(NODE), "state": "active", "new": 1},
        f"{AT}/vifs": {"vifs": [{"id": "port-1"}, {"id": "port-2"}]},
        f"{AT}/validate": {
            "power": {"result": True},
            "deploy": {"result": False, "reason": "no image"},
            "rescue": {"result": None, "reason": "not supported"},
        },
    }
    api = api_of(Server(lambda asked: Answer(answers[asked.path])))

    assert await api.node_of_allocation(OTHER) == NODE
    assert await api.vifs(NODE) == ("port-1", "port-2")
    assert await api.validate(NODE) == {
        "deploy": InterfaceCheck(False, "no image"),
        "power": InterfaceCheck(True),
        "rescue": InterfaceCheck(None, "not supported"),
    }


Order = Callable[[HttpIronicApi], Awaitable[IronicRefused | None]]
INSTANCE = "51111111-2222-3333-4444-555555555555"
ORDERS: dict[str, tuple[Order, str, str, object]] = {
    "patch": (
        lambda api: api.patch(
            NODE,
            [
                PatchOperation("add", "/instance_uuid", INSTANCE),
                PatchOperation("remove", "/instance_info/image_source"),
            ],
        ),
        "PATCH",
        AT,
        [
            {"op": "add", "path": "/instance_uuid", "value": INSTANCE},
            {"op": "remove", "path": "/instance_info/image_source"},
        ],
    ),
    "deploy": (
        lambda api: api.set_provision_state(NODE, "active", configdrive={"meta_data": {"a": 1}}),
        "PUT",
        f"{AT}/states/provision",
        {"target": "active", "configdrive": {"meta_data": {"a": 1}}},
    ),
    "undeploy": (
        lambda api: api.set_provision_state(NODE, "deleted"),
        "PUT",
        f"{AT}/states/provision",
        {"target": "deleted"},
    ),
    "clean": (
        lambda api: api.set_provision_state(
            NODE,
            "clean",
            clean_steps=[CleanStep("deploy", "erase"), CleanStep("raid", "make", {"size": 1})],
        ),
        "PUT",
        f"{AT}/states/provision",
        {
            "target": "clean",
            "clean_steps": [
                {"interface": "deploy", "step": "erase"},
                {"interface": "raid", "step": "make", "args": {"size": 1}},
            ],
        },
    ),
    "power": (
        lambda api: api.set_power_state(NODE, "soft power off"),
        "PUT",
        f"{AT}/states/power",
        {"target": "soft power off"},
    ),
    "attach": (lambda api: api.attach_vif(NODE, "port-1"), "POST", f"{AT}/vifs", {"id": "port-1"}),
    "detach": (lambda api: api.detach_vif(NODE, "port-1"), "DELETE", f"{AT}/vifs/port-1", None),
    "maintenance": (
        lambda api: api.set_maintenance(NODE, "disk swap"),
        "PUT",
        f"{AT}/maintenance",
        {"reason": "disk swap"},
    ),
    "no maintenance": (
        lambda api: api.set_maintenance(NODE, is_on=False),
        "DELETE",
        f"{AT}/maintenance",
        None,
    ),
}


# The node, as Ironic answers a patch; of other orders it says nothing.
DONE = Answer(told())


@pytest.mark.parametrize("name", ORDERS)
async def test_an_order_is_said_as_ironic_takes_it(name: str) -> None:
    order, method, path, body = ORDERS[name]
    server = Server(lambda _: DONE)

    assert await order(api_of(server)) is None

    (asked,) = server.asked
    assert (asked.method, asked.path, asked.body) == (method, path, body)
    assert ("content-type" in asked.headers) is (body is not None)


@pytest.mark.parametrize("name", ORDERS)
async def test_an_order_is_not_done_because_something_else_than_ironic_says_so(name: str) -> None:
    """As the proxy of a network that wants a login first: it answers 200 to everything."""
    server = Server(lambda _: Answer(b"<html>Welcome</html>"))

    with pytest.raises(WrongAnswer, match="malformed"):
        await ORDERS[name][0](api_of(server))

    assert len(server.asked) == 1


@pytest.mark.parametrize("body", [b"", {}, [], {"uuid": None}])
async def test_a_node_is_not_patched_if_the_answer_is_not_the_node(body: object) -> None:
    """A deploy goes on without its instance_uuid else, and nobody would ever take it off the node."""
    with pytest.raises(WrongAnswer):
        await api_of(Server(lambda _: Answer(body))).patch(
            NODE, [PatchOperation("add", "/instance_uuid", INSTANCE)]
        )


@pytest.mark.parametrize("name", ORDERS)
async def test_an_order_waits_for_the_lock_of_a_node(name: str) -> None:
    holders = ["conductor-1", "conductor-2", None]

    def script(asked: Asked) -> Answer:
        if asked.method == "GET":
            return Answer(told(reservation=holders.pop(0)))
        return Answer(fault("busy"), 409) if holders[0] is not None else DONE

    server = Server(script)

    assert await ORDERS[name][0](api_of(server)) is None
    assert len(server.orders) == 3


@pytest.mark.parametrize(
    ("text", "reservation", "reads"),
    [("Node 1 is Locked by host c-1, try later.", None, 0), ("busy", "conductor-1", QUICK.tries_max)],
)
async def test_a_lock_that_lasts_is_raised_as_locked(text: str, reservation: str | None, reads: int) -> None:
    def script(asked: Asked) -> Answer:
        return Answer(told(reservation=reservation)) if asked.method == "GET" else Answer(fault(text), 409)

    server = Server(script)
    with pytest.raises(Locked, match=f"node {NODE} is locked: {text}"):
        await api_of(server).set_power_state(NODE, "power on")
    assert len(server.orders) == QUICK.tries_max
    assert len(server.asked) - len(server.orders) == reads


async def test_a_conflict_of_a_node_without_a_lock_is_a_refusal_at_the_second_time() -> None:
    """At the first, the lock may just have been released."""

    def script(asked: Asked) -> Answer:
        return Answer(told()) if asked.method == "GET" else Answer(fault("Node is associated."), 409)

    server = Server(script)
    refused = await api_of(server).patch(NODE, [PatchOperation("add", "/instance_uuid", INSTANCE)])

    assert refused == IronicRefused(409, "Node is associated.")
    assert len(server.orders) == 2


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (fault("not in this state"), "not in this state"),
        ({"error_message": {"faultstring": "not in this state"}}, "not in this state"),
        ({"error_message": {"faultstring": "disk\0full"}}, "disk\ufffdfull"),
        ({"other": 1}, '{"other": 1}'),
        (b"\xff plain", "� plain"),
    ],
)
async def test_a_refusal_has_ironics_words(body: object, message: str) -> None:
    api = api_of(Server(lambda _: Answer(body, 400)))

    assert await api.set_provision_state(NODE, "active") == IronicRefused(400, message)


@pytest.mark.parametrize("is_order", [False, True])
async def test_a_busy_ironic_is_asked_again_and_then_is_unavailable(*, is_order: bool) -> None:
    answers = [Answer(status=503)] * 3

    def script(_: Asked) -> Answer:
        return answers.pop() if answers else Answer(told())

    async def use(server: Server) -> None:
        api = api_of(server)
        await (api.set_power_state(NODE, "power on") if is_order else api.node(NODE))

    server = Server(script)
    await use(server)
    assert len(server.asked) == 4

    server = Server(lambda _: Answer(status=503))
    with pytest.raises(Unavailable, match="answers 503"):
        await use(server)
    assert len(server.asked) == QUICK.tries_max


async def test_a_question_whose_answer_is_lost_is_asked_again_and_an_order_is_not() -> None:
    server = Server(lambda _: Answer())
    server.problem = httpx.ReadError("cut")
    with pytest.raises(Unavailable, match="no answer to GET"):
        await api_of(server).node(NODE)
    assert len(server.asked) == QUICK.tries_max

    server.asked.clear()
    with pytest.raises(Unavailable, match="no answer to PUT"):
        await api_of(server).set_provision_state(NODE, "active")
    assert len(server.asked) == 1


async def test_an_order_that_reached_nobody_is_made_again() -> None:
    server = Server(lambda _: Answer())
    server.problem = httpx.ConnectError("refused")

    with pytest.raises(Unavailable, match="cannot be reached"):
        await api_of(server).set_provision_state(NODE, "active")
    assert len(server.asked) == QUICK.tries_max


async def test_an_order_is_not_made_again_after_an_error_of_the_server() -> None:
    server = Server(lambda _: Answer(fault("oops"), 500))

    with pytest.raises(Unavailable, match="answers 500 to PUT"):
        await api_of(server).set_power_state(NODE, "power on")
    assert len(server.asked) == 1


async def test_a_server_that_never_answers_took_too_long() -> None:
    server = Server(lambda _: Answer())
    server.hangs = True

    with pytest.raises(TookTooLong, match="did not answer GET"):
        await api_of(server, RestLimits(answer_s_max=0.02)).node(NODE)
    assert len(server.asked) == 1


async def test_an_older_ironic_is_spoken_to_in_its_version_without_the_fields_it_lacks() -> None:
    young = ("owner", "lessee", "retired", "protected", "shard")
    old = {name: value for name, value in told().items() if name not in young}
    server = Server(lambda _: Answer(old), newest=46)
    api = api_of(server)

    node = await api.node(NODE)
    assert node is not None
    assert (node.owner, node.retired) == (None, False)
    await api.node(NODE)

    assert [each.minor for each in server.asked] == [65, 46, 46]
    assert not {*young} & {*server.asked[-1].query["fields"].split(",")}
    assert "conductor_group" in server.asked[-1].query["fields"]


async def test_an_ironic_that_is_too_old_is_refused_with_what_it_offers() -> None:
    with pytest.raises(VersionNotOffered, match=r"offers 1\.1 to 1\.38, and 1\.46 is needed$"):
        await api_of(Server(lambda _: Answer(told()), newest=38)).node(NODE)
    with pytest.raises(VersionNotOffered, match=r"offers 1\.1 to 1\.65, and 1\.82 is needed for shards"):
        await api_of(Server(lambda _: Answer(told()), newest=65), has_shards=True).set_power_state(NODE, "x")


async def test_shards_are_read_where_they_are_configured() -> None:
    server = Server(lambda _: Answer(told(shard="s1")))

    node = await api_of(server, has_shards=True).node(NODE)

    assert node is not None
    assert node.shard == "s1"
    assert server.asked[0].minor == 82
    assert "shard" in server.asked[0].query["fields"]


async def test_an_ironic_too_old_for_parts_of_a_config_drive_is_not_asked() -> None:
    server = Server(lambda _: Answer(told()), newest=55)
    api = api_of(server)
    await api.node(NODE)
    refused = await api.set_provision_state(NODE, "active", configdrive={"user_data": "x"})

    assert isinstance(refused, IronicRefused)
    assert "needs version 1.56" in refused.message
    assert server.orders == []


async def test_a_user_in_the_address_is_basic_authentication_and_is_never_shown() -> None:
    server = Server(lambda _: Answer(fault("no"), 401))
    with pytest.raises(CredentialsRefused, match="refuses GET") as refused:
        await api_of(server, url="http://moor:a%2Fsecret@ironic.example:6385/v1/").node(NODE)

    said = "Basic " + base64.b64encode(b"moor:a/secret").decode()
    assert {each.headers["authorization"] for each in server.asked} == {said}
    assert server.asked[0].path == AT
    assert "secret" not in str(refused.value)
    assert isinstance(refused.value, Operational)


async def test_a_forbidden_request_is_an_operational_error() -> None:
    with pytest.raises(CredentialsRefused, match="403"):
        await api_of(Server(lambda _: Answer(status=403))).set_power_state(NODE, "power on")


@pytest.mark.parametrize("url", ["ironic:6385", "ftp://ironic/", "http:///v1", ""])
async def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="the address of Ironic must be http"):
        HttpIronicApi(url)


async def test_a_service_below_a_path_is_found_there() -> None:
    server = Server(lambda _: Answer(told()))
    await api_of(server, url="https://cloud.example/baremetal").node(NODE)

    assert server.asked[0].path == f"/baremetal{AT}"


async def test_pages_may_be_left_early() -> None:
    link = f"{URL}/v1/nodes?marker={NODE}"
    server = Server(lambda _: Answer({"nodes": [told()], "next": link}))
    api = HttpIronicApi(URL, limits=QUICK, transport=httpx.ASGITransport(server))
    async with aclosing(api.pages()) as pages:
        assert len((await anext(pages)).nodes) == 1
    await api.close()
    assert len(server.asked) == 1
