"""The web dashboard over a running cloud: what its pages show, what hostile input does, and that nobody reads or orders in another's name: all that a
stranger, a reader, a member and one whose login was revoked try, while Keystone is away for a time, changes nothing that they had no right to.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import httpx
import pytest
from msgspec import Struct

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


DOWN = f"/orders/set-host?host={HOST}&mode=down"
EVIL = "evil.example"
# What no member of a project sees.
OF_OPERATORS = (
    *("/", "/live", "/hosts", f"/hosts/harbour/{HOST}", "/moves", "/waiting", "/dead", "/dead/api/x"),
    f"/orders/drain?host={HOST}",
)
PROJECTS = {"ann": "shop", "sue": "shop", "bob": "garden"}


class Stage(Struct):
    """A cloud with an instance of each project, by its id; and its dashboard, in front of which each opens a browser of their own."""

    cloud: Up
    keystone: FakeKeystone
    url: str
    ids: Mapping[str, str]
    stack: AsyncExitStack

    async def browser(
        self, token: str = "", *, cookies: Mapping[str, str] = {}, then: str = "/"
    ) -> httpx.AsyncClient:
        """Logged in by this token, if one is given; `cookies` were in the browser before."""
        client = httpx.AsyncClient(base_url=self.url, timeout=60, headers={"accept": "text/html"})
        await self.stack.enter_async_context(client)
        for name, value in cookies.items():
            client.cookies.set(name, value, domain="127.0.0.1", path="/")
        if token:
            page = await client.get("/login", params={"next": then})
            fields = {**hidden(page), "next": then, "token": token}
            answer = await client.post("/login", data=fields, headers={"origin": self.url})
            assert answer.status_code == 303, answer.text
            assert answer.headers["location"] in ("/", "/instances")
            assert "HttpOnly" in answer.headers["set-cookie"].split("; ")
        return client

    def token(self, user: str, role: str = "member", lasts_s: float = 3600) -> str:
        project = PROJECTS.get(user, "")
        said = {"id": project, "name": project} if project else {}
        roles = [{"id": role, "name": role}]
        return self.keystone.issue(
            lasts_s=lasts_s,
            user={"id": user, "name": user, "domain": {"id": "d", "name": "D"}},
            project=said,
            roles=roles,
        )

    async def has_changed_nothing(self) -> None:
        assert (await self.cloud.json("host", "show", HOST))["setting"]["mode"] == "up"
        states = {each["id"]: each["state"] for each in await self.cloud.json("list")}
        assert states == dict.fromkeys(self.ids.values(), "active")


@asynccontextmanager
async def a_stage(home: Path) -> AsyncIterator[Stage]:
    keystone = FakeKeystone()
    async with keystone.served() as asks, a_cloud(home) as (cloud, client), AsyncExitStack() as stack:
        ids = {}
        for project in ("shop", "garden"):
            booted = await cloud.json("boot", "--vcpus", "1", "--project", project)
            ids[project] = booted["instances"][0]["id"]
            await cloud.json("group", "create", f"of-{project}", "--policy", "affinity", "--project", project)
        await opens_one_browser(str(client.base_url), printed_address(cloud))
        url = await stack.enter_async_context(served_beside(cloud, "--auth", "keystone", **asks))
        yield Stage(cloud, keystone, url, ids, stack)


async def opens_one_browser(url: str, address: str) -> None:
    async with httpx.AsyncClient(base_url=url) as first, httpx.AsyncClient(base_url=url) as second:
        assert (await first.get(address)).status_code == 303
        assert (await second.get(address)).status_code == 403
        assert (await second.get(DOWN)).status_code == 403


@pytest.mark.timeout(240)
async def test_at_the_dashboard_nobody_acts_for_another(home: Path) -> None:
    async with a_stage(home) as stage:
        root = await stage.browser(stage.token("root", "admin"), then=f"/\\{EVIL}")
        ann, sue, bob = [
            await stage.browser(stage.token(name, role))
            for name, role in (("ann", "member"), ("sue", "reader"), ("bob", "member"))
        ]
        await forged_forms_do_not_count(stage, root)
        await members_and_readers_do_only_what_they_may(stage, ann, sue, bob)
        await a_planted_session_opens_nothing(stage, bob)
        await while_keystone_is_away_nobody_new_gets_in(stage)
        await stage.has_changed_nothing()
        await a_login_ends_with_its_logout_or_its_token(stage)
        await what_was_ordered_is_for_who_ordered_it(stage, ann)


async def forged_forms_do_not_count(stage: Stage, root: httpx.AsyncClient) -> None:
    own = hidden(await root.get(DOWN))
    other = hidden(await (await stage.browser(stage.token("root", "admin"))).get(DOWN))
    tries: list[tuple[object, dict[str, str]]] = [
        (own, {}),
        *((own, {"origin": origin}) for origin in ("null", f"{stage.url}.{EVIL}", f"http://{EVIL}")),
        (own, {"origin": f"http://{EVIL}", "host": EVIL}),
        ({**own, "form_token": other["form_token"]}, {"origin": stage.url}),
        ({**own, "form_token": ""}, {"origin": stage.url}),
        ({**own, "mode": ["up", "down"]}, {"origin": stage.url}),
    ]
    for form, headers in tries:
        refused = await root.post("/orders/set-host", data=form, headers=headers)  # type: ignore[arg-type]
        assert refused.status_code in (400, 403), (form, headers)


async def members_and_readers_do_only_what_they_may(
    stage: Stage, ann: httpx.AsyncClient, sue: httpx.AsyncClient, bob: httpx.AsyncClient
) -> None:
    delete = f"/orders/delete?instance={stage.ids['shop']}"
    form = hidden(await ann.get(delete))
    origin = {"origin": stage.url}
    assert (await sue.get(delete)).status_code == 403
    theirs = {**form, **hidden(await sue.get("/instances"))}
    assert (await sue.post("/orders/delete", data=theirs, headers=origin)).status_code == 403
    foreign = {**form, "instance": stage.ids["garden"]}
    assert (await ann.post("/orders/delete", data=foreign, headers=origin)).status_code == 404
    for client in (ann, bob):
        assert (await client.get(DOWN)).status_code == 403
    down = {**form, "host": HOST, "mode": "down"}
    assert (await ann.post("/orders/set-host", data=down, headers=origin)).status_code == 403
    for client, own, other in ((ann, "shop", "garden"), (bob, "garden", "shop")):
        assert stage.ids[other] not in await shows(client, "/instances", stage.ids[own])
        await shows(client, f"/instances/{stage.ids[other]}", status=404)
        await shows(client, f"/instances/{stage.ids[other]}?now=1", status=404)
        for path in OF_OPERATORS:
            await shows(client, path, status=403)
        groups = await shows(client, "/groups", f"of-{own}")
        assert f"of-{other}" not in groups
        (group,) = re.findall(r"/groups/([0-9a-f-]{36})", groups)
        await shows(client, f"/groups/{group}")
        await shows(bob if client is ann else ann, f"/groups/{group}", status=404)
    nobody = await stage.browser()
    fields = {**hidden(await nobody.get("/login")), "token": stage.token("nobody")}
    assert (await nobody.post("/login", data=fields, headers=origin)).status_code == 403


async def a_planted_session_opens_nothing(stage: Stage, attacker: httpx.AsyncClient) -> None:
    victim = await stage.browser(stage.token("root", "admin"), cookies=dict(attacker.cookies))

    assert (await victim.get("/hosts")).status_code == 200
    assert (await attacker.get("/instances")).status_code == 303


async def while_keystone_is_away_nobody_new_gets_in(stage: Stage) -> None:
    token = stage.token("root", "admin")
    stage.keystone.is_down = True
    late = await stage.browser()
    fields = {**hidden(await late.get("/login")), "token": token}
    assert (await late.post("/login", data=fields, headers={"origin": stage.url})).status_code == 503
    assert (await late.get("/hosts")).status_code == 303
    stage.keystone.is_down = False


async def a_login_ends_with_its_logout_or_its_token(stage: Stage) -> None:
    gone = await stage.browser(stage.token("root", "admin"))
    form, cookies = hidden(await gone.get(DOWN)), dict(gone.cookies)
    assert (await gone.post("/logout", data=form, headers={"origin": stage.url})).status_code == 303
    assert (await (await stage.browser(cookies=cookies)).get("/hosts")).status_code == 303

    # Until then Keystone's word is remembered for some time.
    token = stage.token("root", "admin", lasts_s=6)
    revoked = await stage.browser(token)
    async with revoked.stream("GET", "/instances/live") as stream:
        del stage.keystone.tokens[token]
        async with asyncio.timeout(60):
            async for _ in stream.aiter_raw():
                """The open page ends with the token."""
    assert (await revoked.get("/hosts")).status_code == 303


async def what_was_ordered_is_for_who_ordered_it(stage: Stage, ann: httpx.AsyncClient) -> None:
    sue, bob = [await stage.browser(stage.token(*each)) for each in (("sue", "reader"), ("bob", "member"))]
    with_news = [asyncio.create_task(heard(client)) for client in (ann, bob)]
    job = (await confirmed(ann, f"/orders/delete?instance={stage.ids['shop']}")).headers["location"]
    assert re.fullmatch(r"/jobs/[0-9a-f-]{36}", job)
    await shows(ann, job)
    for other in (sue, bob):
        await shows(other, job, status=404)
    form = hidden(await bob.get(f"/orders/delete?instance={stage.ids['garden']}"))
    stopped = await bob.post(f"{job}/stop", data=form, headers={"origin": stage.url})
    assert stopped.status_code == 404
    of_ann, of_bob = [await each for each in with_news]
    assert (stage.ids["shop"] in of_ann, "deleted</span>" in of_ann, stage.ids["garden"] in of_ann) == (
        True,
        True,
        False,
    )
    assert (stage.ids["garden"] in of_bob, stage.ids["shop"] in of_bob) == (True, False)
    history = await stage.cloud.json("history", stage.ids["shop"])
    assert [each["by"] for each in history if each["what"] == "delete"] == ["moor-operator for ann"]


async def heard(client: httpx.AsyncClient) -> str:
    """What the live list of instances tells until something in it is deleted, or for a while."""
    told = ""
    async with client.stream("GET", "/instances/live") as stream:
        async for part in stream.aiter_text():
            told += part
            if "deleted</span>" in told or told.count(": quiet") > 2:
                break
    return told
