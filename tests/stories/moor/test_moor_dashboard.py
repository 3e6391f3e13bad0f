"""The web dashboard over a running cloud: what its pages show, what hostile input does, and that one beside it asks Keystone who reads."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import httpx

from bus import message
from bus.addresses import broker_at
from bus.message import Parcel
from bus.topology import DEAD, DEAD_QUEUE
from tests.api.fake_keystone import FakeKeystone
from tests.contracts.stage import parcel, send
from tests.stories.moor.moor_process import Up, started, up
from tests.unit.moor.dashboard_visits import hidden
from tests.waiting import until

HOST = "harbour-host-00001"
SCRIPT = "<script>alert(1)</script>"
# The status of a page, and what it says.
HOSTILE = (
    ("/nowhere", 404, "There is no such page"),
    ("/instances/not-an-id", 404, "There is no such page"),
    (f"/instances/{uuid4()}", 404, "There is no instance"),
    ("/instances?state=%3Cscript%3E", 400, "state is"),
    ("/instances?after=x", 400, "after is"),
    ("/waiting?after=x", 400, "after is"),
    ("/groups?after=x", 400, "after is"),
    ("/groups/00000000-0000-0000-0000-000000000001", 404, "There is no server group"),
    ("/aggregates/%3Cscript%3Ealert(1)", 404, "There is no aggregate"),
    ("/aggregates/", 404, "There is no aggregate"),
    ("/hosts/harbour/", 404, "There is no host"),
    (f"/moves?after={uuid4()}&at=never", 400, "at is"),
    (f"/moves?after={uuid4()}&at=2026-01-01", 400, "at is"),
    (f"/instances?after={UUID(int=2**128 - 1)}", 400, "begin with the first page again"),
    (f"/groups?after={UUID(int=2**128 - 1)}", 200, "no more server groups"),
    ("/aggregates?after=zzz", 200, "no more aggregates"),
    ("/hosts?after=zzz", 200, "no more hosts"),
    ("/hosts?name=none", 200, "no hosts"),
    ("/why?specs=x", 400, "must be KEY=VALUE"),
    ("/why?specs=a%3D1+a%3D2", 400, "extra specs gives a twice, as"),
    ("/why?flavor=none", 400, "there is no flavor of this name"),
    ("/why?flavor=none&vcpus=1", 400, "give no others"),
    ("/hosts/harbour/none", 404, "There is no host"),
    (f"/hosts?after={'x' * 300}", 400, "after"),
    ("/tiles/harbour/99", 404, "has no host 99"),
    (f"/tiles/harbour/{10**30}", 400, "no number of a host"),
    (f"/tiles/harbour/{'9' * 5000}", 400, "no number of a host"),
    ("/static/../pages.py", 404, ""),
    ("/static/%2e%2e/pages.py", 404, ""),
)


@asynccontextmanager
async def a_cloud(home: Path, *flags: str) -> AsyncIterator[tuple[Up, httpx.AsyncClient]]:
    """A running `moor up`, and what visits its dashboard."""
    async with (
        up(home, "--cells", "harbour", "--hosts", "3", *flags) as cloud,
        httpx.AsyncClient(base_url=cloud.address_of("the dashboard"), timeout=60) as client,
    ):
        yield cloud, client


@asynccontextmanager
async def served_beside(cloud: Up, *flags: str, **environment: str) -> AsyncIterator[str]:
    """The address of another dashboard of the same cloud, with these flags and variables."""
    arguments = ("run", "dashboard", "--bus", cloud.url, *flags)
    async with started(*arguments, **cloud.environment | environment) as dashboard:
        line = await dashboard.until_printed_to_stderr("the dashboard is served at")
        address = re.search(r"http://[0-9.:]+", line)
        assert address is not None
        yield address.group()


async def shows(client: httpx.AsyncClient, path: str, *said: str, status: int = 200) -> str:
    """The page has all this, and no script of a stranger."""
    page = await client.get(path)
    missing = [each for each in said if each not in page.text]
    assert (page.status_code, missing, "<script>alert" in page.text) == (status, [], False), (path, page.text)
    return page.text


def printed_address(cloud: Up) -> str:
    """The address by which one browser may order, as `moor up` has printed it."""
    (found,) = re.findall(r"http://\S+/open\?token=\S+", "".join(cloud.process.told))
    return str(found)


async def confirmed(client: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    """Confirm an order as a browser does."""
    page = await client.get(path)
    assert page.status_code == 200, page.text
    origin = str(client.base_url).rstrip("/")
    form = {**hidden(page), **fields}
    return await client.post(path.partition("?")[0], data=form, headers={"origin": origin})


async def test_the_pages_show_the_cloud_escape_what_strangers_chose_and_refuse_hostile_questions(
    home: Path,
) -> None:
    async with a_cloud(home) as (cloud, client):
        (instance,) = (await cloud.json("boot", "--vcpus", "2", "--name", SCRIPT))["instances"]
        await cloud.says(1, "", "boot", "--vcpus", "8000", "--name", "giant")
        await until(lambda: client.get("/"), "it has both", lambda page: "<b>2</b> instances" in page.text)
        await shows(client, "/", "healthy", 'data-tiles="', 'VCPU</th><td class="n">2</td>')
        await shows(client, "/instances", "&lt;script&gt;")
        place = f"{instance['host']}</a> in harbour"
        by = 'boot requested: 2 VCPU <span class="by">by moor-app-local'
        one = await shows(client, f"/instances/{instance['id']}", place, by)
        assert re.search(r"qualified</span><svg.*</svg><b>3</b>", one)
        now = ("The same request now", "</b> would fit, on 3 of 3 hosts")
        await shows(client, f"/instances/{instance['id']}?now=1", *now)
        only = await shows(client, "/instances?state=error", "giant")
        assert instance["id"] not in only
        (giant,) = re.findall(r"/instances/([0-9a-f-]{36})", only)
        await shows(client, f"/instances/{giant}", "harbour-host-00001: VCPU asked 8000, free 1")

        await shows(client, "/hosts", "harbour-host-00003")
        await shows(client, f"/hosts/harbour/{instance['host']}", instance["id"])
        tile = await client.get("/tiles/harbour/2")
        assert (tile.status_code, tile.headers["location"]) == (303, "/hosts/harbour/harbour-host-00003")
        await shows(client, "/why?vcpus=100&traits=CUSTOM_NONE_HAS_IT", "0</b> would fit, on 0 of 3 hosts")
        for path in ("/waiting", "/moves", "/moves?ended=1", "/groups", "/aggregates"):
            await shows(client, path, "no")

        for path, status, said in HOSTILE:
            await shows(client, path, said, status=status)
        for size in ("-1", "1e3", "9" * 40, "9" * 5000, "x"):
            page = await client.get("/why", params={"vcpus": size})
            assert "must be a whole number" in page.text
        assert (await client.post("/instances")).status_code == 405
        assert (await client.get("/", headers={"host": "evil.example"})).status_code == 400

        page = await client.get("/")
        policy = page.headers["content-security-policy"]
        assert ("default-src 'none'" in policy, "unsafe" in policy) == (True, False)
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        # Nothing is loaded from elsewhere, and nothing is written inside of a page that the policy would refuse.
        assert not re.findall(r"(?:src|href)=\"https?:", page.text)
        assert not re.findall(r" style=\"| on[a-z]+=\"|<style|<script>", page.text)


async def test_dead_letters_are_escaped_hide_secrets_and_are_replayed(home: Path) -> None:
    async with a_cloud(home) as (cloud, client):
        await shows(client, "/dead", "No dead letters")
        broker = broker_at(cloud.url)
        odd = Parcel(
            DEAD,
            SCRIPT,
            b'{"user_data": "hush", "name": "' + SCRIPT.encode() + b'"}',
            headers={message.REASON: SCRIPT, message.SENDER: SCRIPT, message.BURIED_AT: "no time"},
        )
        await send(broker, odd, odd)

        async def until_listed(letter: str) -> None:
            """The page remembers for a while what it has read."""
            await until(lambda: client.get("/dead"), f"{letter} is listed", lambda page: letter in page.text)

        await until_listed("/dead/api/")
        handle = (await shows(client, "/dead")).partition("/dead/api/")[2].partition('"')[0]
        assert "hush" not in await shows(client, f"/dead/api/{handle}", "&lt;script&gt;")
        for path in (f"/dead/none/{handle}", "/dead/api/none", "/dead/api/%3Cscript%3E"):
            await shows(client, path, "may have been replayed or deleted", status=404)
        # A look changes nothing.
        await cloud.says(0, "deleted 2", "dead", "delete", "--all")

        await send(broker, parcel(b"{broken"))
        connection = await broker.connect()
        await until(lambda: connection.depth(DEAD_QUEUE), "it is buried")
        await client.get(printed_address(cloud))
        (letter,) = await cloud.json("dead", "list")
        await until_listed(letter["handle"])
        page = await shows(client, f"/dead/api/{letter['handle']}")
        (path,) = re.findall(r'href="(/orders/replay[^"]*)"', page)
        sent = await confirmed(client, path.replace("&amp;", "&"))
        told = f"The dead letter {letter['handle']} is back in the queue placement.work."
        await until(lambda: client.get(sent.headers["location"]), told, lambda page: told in page.text)
        # It cannot be read this time, either: it is a new dead letter.
        await until(lambda: connection.depth(DEAD_QUEUE), "it is buried again")
        await connection.close()
        (again,) = await cloud.json("dead", "list")
        assert again["handle"] != letter["handle"]
        await shows(client, path.replace("&amp;", "&"), "There is no dead letter", status=400)


async def test_the_pages_show_nodes_why_they_are_not_offered_and_who_owns_them(home: Path) -> None:
    async with a_cloud(home, "--nodes", "3", "--daemons", "2") as (cloud, client):
        nodes = await cloud.json("node", "list")
        broken = nodes[0]["id"]
        await cloud.says(0, "", "node", "maintenance", "on", broken, "--reason", SCRIPT)
        await until(
            lambda: client.get("/nodes"), "it is in maintenance", lambda page: "maintenance:" in page.text
        )
        await shows(client, "/nodes", "3</b> nodes", "2</b> offered")
        for query, names in (
            ("not_offered=1", [True, False]),
            (f"text={nodes[1]['name']}", [False, True]),
            (f"text={nodes[1]['id'][:8]}", [False, True]),
            ("state=available", [True, True]),
            ("state=active", [False, False]),
            ("daemon=%3Cscript%3Ealert(1)", [False, False]),
        ):
            listed = await shows(client, f"/nodes?{query}")
            assert [f"/nodes/{each['id']}" in listed for each in nodes[:2]] == names, query

        await shows(client, f"/nodes/{broken}", "&lt;script&gt;", f"Why {nodes[0]['daemon']} has it")
        await shows(client, "/ring", "ironic-1", "ironic-2", "alive")
        await shows(client, f"/hosts/{nodes[0]['cell']}/{broken}")
        for path, status, said in (
            ("/nodes?page=2", 400, "there are 1 pages"),
            ("/nodes?page=0", 400, "whole number from 1"),
            (f"/nodes?page={'9' * 5000}", 400, "whole number from 1"),
            ("/nodes/00000000-0000-0000-0000-000000000001", 404, "No daemon knows a node"),
            ("/nodes/x", 404, "There is no such page"),
        ):
            await shows(client, path, said, status=status)


async def test_a_dashboard_beside_the_cloud_asks_keystone_who_reads(home: Path) -> None:
    keystone = FakeKeystone()
    token = {"x-auth-token": keystone.issue(roles=[{"id": "r", "name": "admin"}])}
    async with (
        keystone.served() as asks,
        a_cloud(home) as (cloud, _),
        served_beside(cloud, "--auth", "keystone", **asks) as url,
        httpx.AsyncClient(base_url=url) as client,
    ):
        assert (await client.get("/hosts")).status_code == 401
        assert HOST in (await client.get("/hosts", headers=token)).text
