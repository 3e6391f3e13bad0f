"""At the dashboard of a running cloud nobody reads or orders in another's name: all that a stranger, a reader, a member and one whose login was
revoked try, while Keystone is away for a time, changes and shows nothing that they had no right to.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
from msgspec import Struct

from engine.flavors import InstanceId
from kit.health import Listen
from moor.client import Client, Flavor
from moor.dashboard.service import DashboardOptions, DashboardService
from placement_worker.api.auth import (
    REMEMBERED_S,
    Authentication,
    KeystoneAuthentication,
    NoAuthentication,
)
from tests.api.fake_keystone import FakeKeystone
from tests.api.test_auth import ACCOUNT
from tests.running import running
from tests.stories.cloud import Cloud, cloud_on
from tests.stories.layouts import one_broker_with_users
from tests.unit.moor.dashboard_visits import NO_AUTHORITIES, SETTINGS, hidden
from tests.waiting import Clock, until

HOST = "vault-1"
DOWN = f"/orders/set-host?host={HOST}&mode=down"
EVIL = "evil.example"
# What no member of a project sees.
OF_OPERATORS = (
    *("/", "/live", "/hosts", f"/hosts/c1/{HOST}", "/moves", "/waiting", "/dead", "/dead/api/x"),
    f"/orders/drain?host={HOST}",
)
PROJECTS = {"ann": "shop", "sue": "shop", "bob": "garden"}


class Stage(Struct):
    """A cloud with an instance of each project; and its dashboard, in front of which each opens a browser of their own."""

    setup: Cloud
    moor: Client
    keystone: FakeKeystone
    clock: Clock[float]
    url: str
    ids: Mapping[str, InstanceId]
    stack: AsyncExitStack

    async def browser(
        self, token: str = "", *, cookies: Mapping[str, str] = {}, then: str = "/"
    ) -> httpx.AsyncClient:
        """Logged in by this token, if one is given; `cookies` were in the browser before."""
        client = await self.stack.enter_async_context(a_browser(self.url))
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

    def token(self, user: str, role: str = "member") -> str:
        project = PROJECTS.get(user, "")
        return self.keystone.issue(
            user={"id": user, "name": user, "domain": {"id": "d", "name": "D"}},
            project={"id": project, "name": project} if project else {},
            roles=[{"id": role, "name": role}],
        )

    async def logged_in(self, user: str, role: str = "member") -> httpx.AsyncClient:
        return await self.browser(self.token(user, role))

    async def has_changed_nothing(self) -> None:
        assert (await self.moor.show_host(HOST)).setting.mode == "up"
        states = {each.id: each.state async for each in self.moor.list_instances()}
        assert states == dict.fromkeys(self.ids.values(), "active")


def a_browser(url: str) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=url, timeout=60, verify=NO_AUTHORITIES, headers={"accept": "text/html"})


@asynccontextmanager
async def a_dashboard(setup: Cloud, auth: Authentication) -> AsyncIterator[tuple[str, list[str]]]:
    """Where it is served, and what its process has printed."""

    def connect() -> Client:
        return Client(setup.brokers.at_api("operator"), project="")

    printed: list[str] = []
    options = DashboardOptions(listen=Listen("127.0.0.1", 0), auth=auth)
    service = DashboardService(connect, connect, SETTINGS, options, printed.append)
    async with running((service,)):
        await until(lambda: service.parts, "it is served")
        yield service.url, printed


@asynccontextmanager
async def a_cloud() -> AsyncIterator[Cloud]:
    async with (
        one_broker_with_users("memory") as brokers,
        cloud_on(brokers, "memory") as setup,
        setup.scheduling(HOST),
    ):
        yield setup


@asynccontextmanager
async def a_stage() -> AsyncIterator[Stage]:
    keystone, clock = FakeKeystone(), Clock(time.time())
    async with AsyncExitStack() as stack:
        setup = await stack.enter_async_context(a_cloud())
        moor = await stack.enter_async_context(Client(setup.brokers.at_api("operator"), project=""))
        ids = {}
        for project in ("shop", "garden"):
            theirs = moor.of_project(project)
            booted = await theirs.boot(Flavor(vcpus=1))
            (ids[project],) = [each.id for each in await booted.until_done()]
            await theirs.create_group("affinity", name=f"of-{project}")
        auth = KeystoneAuthentication(ACCOUNT, keystone.client(), clock)
        url, _ = await stack.enter_async_context(a_dashboard(setup, auth))
        yield Stage(setup, moor, keystone, clock, url, ids, stack)


async def shows(client: httpx.AsyncClient, path: str, *said: str, status: int = 200) -> str:
    page = await client.get(path)
    missing = [each for each in said if each not in page.text]
    assert (page.status_code, missing) == (status, []), (path, page.text)
    return page.text


async def test_the_printed_address_opens_one_browser() -> None:
    async with a_cloud() as setup, a_dashboard(setup, NoAuthentication()) as (url, printed):
        (address,) = re.findall(r"http://\S+/open\?token=\S+", "".join(printed))
        async with a_browser(url) as first, a_browser(url) as second:
            assert (await first.get(address)).status_code == 303
            assert (await second.get(address)).status_code == 403
            assert (await second.get(DOWN)).status_code == 403


async def test_a_forged_form_does_not_count_and_a_planted_session_opens_nothing() -> None:
    async with a_stage() as stage:
        root = await stage.browser(stage.token("root", "admin"), then=f"/\\{EVIL}")
        own = hidden(await root.get(DOWN))
        other = hidden(await (await stage.logged_in("root", "admin")).get(DOWN))
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

        attacker = await stage.logged_in("bob")
        victim = await stage.browser(stage.token("root", "admin"), cookies=dict(attacker.cookies))
        assert (await victim.get("/hosts")).status_code == 200
        assert (await attacker.get("/instances")).status_code == 303
        await stage.has_changed_nothing()


async def test_members_and_readers_do_and_see_only_what_is_of_their_project() -> None:
    async with a_stage() as stage:
        ann, sue, bob = [
            await stage.logged_in(name, role)
            for name, role in (("ann", "member"), ("sue", "reader"), ("bob", "member"))
        ]
        delete = f"/orders/delete?instance={stage.ids['shop']}"
        form = hidden(await ann.get(delete))
        origin = {"origin": stage.url}
        assert (await sue.get(delete)).status_code == 403
        theirs = {**form, **hidden(await sue.get("/instances"))}
        assert (await sue.post("/orders/delete", data=theirs, headers=origin)).status_code == 403
        foreign = {**form, "instance": str(stage.ids["garden"])}
        assert (await ann.post("/orders/delete", data=foreign, headers=origin)).status_code == 404
        for client in (ann, bob):
            assert (await client.get(DOWN)).status_code == 403
        down = {**form, "host": HOST, "mode": "down"}
        assert (await ann.post("/orders/set-host", data=down, headers=origin)).status_code == 403
        for client, own, other in ((ann, "shop", "garden"), (bob, "garden", "shop")):
            listed = await shows(client, "/instances", str(stage.ids[own]))
            assert str(stage.ids[other]) not in listed
            await shows(client, f"/instances/{stage.ids[other]}", status=404)
            await shows(client, f"/instances/{stage.ids[other]}?now=1", status=404)
            for path in OF_OPERATORS:
                await shows(client, path, status=403)
            groups = await shows(client, "/groups", f"of-{own}")
            assert f"of-{other}" not in groups
            (group,) = re.findall(r"/groups/([0-9a-f-]{36})", groups)
            await shows(client, f"/groups/{group}")
            await shows(bob if client is ann else ann, f"/groups/{group}", status=404)
        await stage.has_changed_nothing()


async def test_what_would_fit_is_told_of_the_members_project_and_without_names_of_hosts() -> None:
    async with a_stage() as stage:
        await stage.moor.set_quota("shop", {"instances": 3})
        root, ann = await stage.logged_in("root", "admin"), await stage.logged_in("ann")

        await shows(root, "/why?vcpus=1000", HOST)
        told = await shows(ann, "/why?vcpus=1000&project=garden", "quota allows 2 more")

        assert HOST not in told


async def test_only_who_keystone_knows_of_a_project_gets_in() -> None:
    async with a_stage() as stage:
        nobody, late = await stage.browser(), await stage.browser()
        origin = {"origin": stage.url}
        fields = {**hidden(await nobody.get("/login")), "token": stage.token("nobody")}
        assert (await nobody.post("/login", data=fields, headers=origin)).status_code == 403
        assert (await nobody.get("/instances")).status_code == 303
        stage.keystone.is_down = True
        fields = {**hidden(await late.get("/login")), "token": stage.token("root", "admin")}
        assert (await late.post("/login", data=fields, headers=origin)).status_code == 503
        assert (await late.get("/hosts")).status_code == 303


@pytest.fixture
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moor.dashboard.resource_pages.LOOK_S", 0.05)


@pytest.mark.usefixtures("_looks_often")
async def test_a_login_ends_with_its_logout_or_its_token() -> None:
    async with a_stage() as stage:
        gone = await stage.logged_in("root", "admin")
        form, cookies = hidden(await gone.get(DOWN)), dict(gone.cookies)
        assert (await gone.post("/logout", data=form, headers={"origin": stage.url})).status_code == 303
        assert (await (await stage.browser(cookies=cookies)).get("/hosts")).status_code == 303

        token = stage.token("root", "admin")
        revoked = await stage.browser(token)
        async with revoked.stream("GET", "/instances/live") as stream, asyncio.TaskGroup() as tasks:
            parts = stream.aiter_text()
            assert str(stage.ids["shop"]) in await anext(parts)
            del stage.keystone.tokens[token]
            stage.clock.pass_s(REMEMBERED_S + 1)
            page = tasks.create_task(end_of(parts))
            await until(page.done, "the open page ends with the token")
        assert (await revoked.get("/hosts")).status_code == 303


@pytest.mark.usefixtures("_looks_often")
async def test_what_was_ordered_is_for_who_ordered_it() -> None:
    async with a_stage() as stage:
        ann, bob = await stage.logged_in("ann"), await stage.logged_in("bob")
        sue = await stage.logged_in("sue", "reader")
        origin = {"origin": stage.url}
        form = hidden(await ann.get(f"/orders/delete?instance={stage.ids['shop']}"))
        ordered = await ann.post("/orders/delete", data=form, headers=origin)
        job = ordered.headers["location"]
        assert re.fullmatch(r"/jobs/[0-9a-f-]{36}", job)
        await shows(ann, job)
        for other in (sue, bob):
            await shows(other, job, status=404)
        form = hidden(await bob.get(f"/orders/delete?instance={stage.ids['garden']}"))
        assert (await bob.post(f"{job}/stop", data=form, headers=origin)).status_code == 404

        shop, garden = str(stage.ids["shop"]), str(stage.ids["garden"])
        told = await read_live(ann, "deleted</span>")
        assert (shop in told, garden in told) == (True, False)
        told = await read_live(bob, garden)
        assert (shop in told, garden in told) == (False, True)
        history = await stage.moor.history(stage.ids["shop"]).first(10)
        assert [each.by for each in history if each.what == "delete"] == ["moor-operator for ann"]


async def end_of(parts: AsyncIterator[str]) -> None:
    async for _ in parts:
        """It goes on."""


async def read_live(client: httpx.AsyncClient, said: str) -> str:
    """What the live list of instances tells until it says this."""
    told = ""
    async with client.stream("GET", "/instances/live") as stream:
        async for part in stream.aiter_text():
            told += part
            if said in told:
                break
    return told
