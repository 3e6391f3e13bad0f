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

    def __init__(
        self,
        script: Script,
        *,
        newest: int = 115,
        problem: Exception | None = None,
        hangs: bool = False,
    ) -> None:
        self.asked: list[Asked] = []
        self.problem = problem
        self.hangs = hangs
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
async def test_a_busy_ironic_is_asked_again(*, is_order: bool) -> None:
    answers = [Answer(status=503)] * 3
    server = Server(lambda _: answers.pop() if answers else Answer(told()))
    api = api_of(server)

    await (api.set_power_state(NODE, "power on") if is_order else api.node(NODE))

    assert len(server.asked) == 4


HALF_A_NODE = {name: value for name, value in told().items() if name != "provision_state"}
NO_NODES: tuple[object, ...] = (b"", {}, [], {"uuid": None})
AWAY = httpx.ConnectError("refused")
Use = Callable[[HttpIronicApi], Awaitable[object]]


def a_circle(asked: Asked) -> Answer:
    following = "2" if asked.query.get("marker") == "1" else "1"
    return Answer({"nodes": [], "next": f"http://x/v1/nodes?marker={following}"})


def reads(api: HttpIronicApi) -> Awaitable[object]:
    return api.node(NODE)


def switches(api: HttpIronicApi) -> Awaitable[object]:
    return api.set_power_state(NODE, "power on")


def deploys(api: HttpIronicApi) -> Awaitable[object]:
    return api.set_provision_state(NODE, "active")


def patches(api: HttpIronicApi) -> Awaitable[object]:
    return api.patch(NODE, [PatchOperation("add", "/instance_uuid", INSTANCE)])


class Failure(Struct, frozen=True):
    """What is asked of an Ironic that answers so, how it fails, and how many requests were made."""

    use: Use
    answer: Answer
    error: type[Exception]
    words: str | None
    times: int = 1
    server: Mapping[str, Any] = {}
    api: Mapping[str, Any] = {}


FAILURES: dict[str, Failure] = {
    "half a node is not taken for a whole one": Failure(
        reads, Answer(HALF_A_NODE), WrongAnswer, f"node {NODE}: provision_state is missing"
    ),
    **{
        f"an answer that is no page is an operational error: {words}": Failure(
            pages_of, answer, WrongAnswer, words, times, api={"limits": RestLimits(answer_bytes_max=2000)}
        )
        for answer, words, times in (
            (Answer(b"<html>"), "malformed", 1),
            (Answer([]), "Expected `object`", 1),
            (Answer({"nodes": {}}), "nodes", 1),
            (Answer({"nodes": [], "next": "http://x/v1/nodes?limit=1"}), "leads nowhere", 1),
            (Answer({"nodes": [], "next": "http://[x/v1/nodes?marker=1"}), "leads nowhere$", 1),
            (
                Answer({"nodes": [], "next": "http://x/v1/nodes?marker=1"}),
                "the page after '1' was read already",
                2,
            ),
            (Answer(b"<html>404</html>", 404), "404: <html>", 1),
            (Answer(fault("no such marker"), 400), "400: no such marker", 1),
            (
                Answer(status=301, headers={"Location": "https://elsewhere/"}),
                "it is at https://elsewhere/",
                1,
            ),
            (Answer({"nodes": ["x" * 3000]}), "more than 2000 bytes", 1),
        )
    },
    "pages that lead in a circle are an error": Failure(
        pages_of,
        Answer(),
        WrongAnswer,
        "the page after '1' was read already",
        3,
        server={"script": a_circle},
    ),
    # Only Ironic itself says that a node is gone.
    **{
        f"the {what} that a proxy does not find is not gone": Failure(
            use, Answer(b"<html>404 Not Found</html>", 404), WrongAnswer, "404: <html>"
        )
        for what, use in (("node", reads), ("allocation", lambda api: api.node_of_allocation(NODE)))
    },
    # As the proxy of a network that wants a login first: it answers 200 to everything.
    **{
        f"an order is not done because something else than Ironic says so: {name}": Failure(
            order, Answer(b"<html>Welcome</html>"), WrongAnswer, "malformed"
        )
        for name, (order, *_) in ORDERS.items()
    },
    # A deploy goes on without its instance_uuid else, and nobody would ever take it off the node.
    **{
        f"a node is not patched if the answer is not the node: {body!r}": Failure(
            patches, Answer(body), WrongAnswer, None
        )
        for body in NO_NODES
    },
    "a question to an Ironic that stays busy is given up": Failure(
        reads, Answer(status=503), Unavailable, "answers 503", QUICK.tries_max
    ),
    "an order to an Ironic that stays busy is given up": Failure(
        switches, Answer(status=503), Unavailable, "answers 503", QUICK.tries_max
    ),
    "a question whose answer is lost is asked again": Failure(
        reads,
        Answer(),
        Unavailable,
        "no answer to GET",
        QUICK.tries_max,
        server={"problem": httpx.ReadError("cut")},
    ),
    "an order whose answer is lost is not made again": Failure(
        deploys, Answer(), Unavailable, "no answer to PUT", server={"problem": httpx.ReadError("cut")}
    ),
    "an order that reached nobody is made again": Failure(
        deploys, Answer(), Unavailable, "cannot be reached", QUICK.tries_max, server={"problem": AWAY}
    ),
    "an order is not made again after an error of the server": Failure(
        switches, Answer(fault("oops"), 500), Unavailable, "answers 500 to PUT"
    ),
    "a server that never answers took too long": Failure(
        reads,
        Answer(),
        TookTooLong,
        "did not answer GET",
        server={"hangs": True},
        api={"limits": RestLimits(answer_s_max=0.02)},
    ),
    "an Ironic that is too old is refused with what it offers": Failure(
        reads,
        Answer(told()),
        VersionNotOffered,
        r"offers 1\.1 to 1\.38, and 1\.46 is needed$",
        server={"newest": 38},
    ),
    "an Ironic that is too old for shards is refused with what it offers": Failure(
        switches,
        Answer(told()),
        VersionNotOffered,
        r"offers 1\.1 to 1\.65, and 1\.82 is needed for shards",
        server={"newest": 65},
        api={"has_shards": True},
    ),
    "a forbidden request is an operational error": Failure(
        switches, Answer(status=403), CredentialsRefused, "403"
    ),
}


@pytest.mark.parametrize("name", FAILURES)
async def test_what_fails_says_why_and_is_tried_so_often(name: str) -> None:
    case = FAILURES[name]
    server = Server(**{"script": lambda _: case.answer, **case.server})

    with pytest.raises(case.error, match=case.words):
        await case.use(api_of(server, **case.api))

    assert len(server.asked) == case.times


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
