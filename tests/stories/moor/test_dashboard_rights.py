"""At the dashboard of a running cloud nobody reads or orders in another's name. A stranger, a reader, a member and a person whose login was
revoked try it. Keystone is away for a time. Nothing changes, and they see nothing that they had no right to.
"""

import asyncio
import re
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from uuid import UUID

import httpx
import pytest
from msgspec import Struct

from engine.flavors import InstanceId
from kit.health import Listen
from moor.client import Client, Flavor
from moor.dashboard.service import DashboardOptions
from placement_worker.api.auth import (
    REMEMBERED_S,
    Authentication,
    KeystoneAuthentication,
    NoAuthentication,
)
from tests.api.fake_keystone import FakeKeystone
from tests.api.test_auth import ACCOUNT
from tests.asking import client_of
from tests.stories.cloud import Cloud, cloud_on
from tests.stories.layouts import one_broker_with_users
from tests.unit.moor.dashboard_visits import FakeBrowser, Visited
from tests.waiting import Clock, until

HOST = "vault-1"
DOWN = f"/orders/set-host?host={HOST}&mode=down"
EVIL = "evil.example"
# What no member of a project sees.
OF_OPERATORS = (
    *("/", "/live", "/hosts", f"/hosts/c1/{HOST}", "/moves", "/waiting", "/dead", "/dead/api/x"),
    *("/keeping", "/keeping/live", "/campaigns", f"/campaigns/{UUID(int=1)}", "/movements"),
    *(DOWN, f"/orders/drain?host={HOST}", f"/orders/campaign?campaign={UUID(int=1)}&to=cancel"),
)
PROJECTS = {"ann": "shop", "sue": "shop", "bob": "garden"}


class Stage(Struct):
    """A dashboard of a cloud with an instance of each project."""

    visited: Visited
    moor: Client
    keystone: FakeKeystone
    clock: Clock[float]
    ids: Mapping[str, InstanceId]

    async def logged_in(self, user: str, role: str = "member", then: str = "/") -> FakeBrowser:
        return await self.let_in(self.visited.browser(), self.token(user, role), then)

    async def let_in(self, browser: FakeBrowser, token: str, then: str = "/") -> FakeBrowser:
        answer = await browser.log_in(token=token, next=then)
        assert answer.status_code == 303, answer.text
        assert answer.headers["location"] in ("/", "/instances")
        assert "HttpOnly" in answer.headers["set-cookie"].split("; ")
        return browser

    def token(self, user: str, role: str = "member") -> str:
        project = PROJECTS.get(user, "")
        return self.keystone.issue(
            user={"id": user, "name": user, "domain": {"id": "d", "name": "D"}},
            project={"id": project, "name": project} if project else {},
            roles=[{"id": role, "name": role}],
        )

    def delete(self, project: str) -> str:
        return f"/orders/delete?instance={self.ids[project]}"

    async def has_changed_nothing(self) -> None:
        assert (await self.moor.show_host(HOST)).setting.mode == "up"
        states = {each.id: each.state async for each in self.moor.list_instances()}
        assert states == dict.fromkeys(self.ids.values(), "active")


@asynccontextmanager
async def a_dashboard(auth: Authentication) -> AsyncIterator[tuple[Cloud, Visited]]:
    async with (
        one_broker_with_users("memory") as brokers,
        cloud_on(brokers, "memory") as setup,
        setup.scheduling(HOST),
    ):
        visited = Visited(setup.client, DashboardOptions(listen=Listen("127.0.0.1", 0), auth=auth))
        async with visited.running():
            yield setup, visited


@asynccontextmanager
async def a_stage() -> AsyncIterator[Stage]:
    keystone, clock = FakeKeystone(), Clock(time.time())
    auth = KeystoneAuthentication(ACCOUNT, keystone.client(), clock)
    async with a_dashboard(auth) as (setup, visited), Client(setup.brokers.at_api("operator")) as moor:
        ids = {}
        for project in ("shop", "garden"):
            booted = await moor.boot(Flavor(vcpus=1), project=project)
            (ids[project],) = [each.id for each in await booted.until_done()]
            await moor.of_project(project).create_group("affinity", name=f"of-{project}")
        yield Stage(visited, client_of(setup.client), keystone, clock, ids)


async def shows(client: httpx.AsyncClient, path: str, *said: str, status: int = 200) -> str:
    page = await client.get(path)
    missing = [each for each in said if each not in page.text]
    assert (page.status_code, missing) == (status, []), (path, page.text)
    return page.text


async def test_the_printed_address_opens_one_browser() -> None:
    async with a_dashboard(NoAuthentication()) as (_, visited):
        address = visited.shown[0].split()[-1]
        first, second = visited.browser(), visited.browser()
        assert (await first.get(address)).status_code == 303
        for path in (address, DOWN):
            await shows(second, path, status=403)


async def test_a_forged_form_does_not_count_and_a_planted_session_opens_nothing() -> None:
    async with a_stage() as stage:
        root = await stage.logged_in("root", "admin", then=f"/\\{EVIL}")
        own = await root.form_of(DOWN)
        other = await (await stage.logged_in("root", "admin")).form_of(DOWN)
        tries: list[tuple[object, str | None]] = [
            *((own, origin) for origin in (None, "null", f"{root.origin}.{EVIL}", f"http://{EVIL}")),
            *(({**own, "form_token": token}, "") for token in ("", other["form_token"])),
            ({**own, "mode": ["up", "down"]}, ""),
        ]
        for form, origin in tries:
            refused = await root.send_form("/orders/set-host", form, origin)  # type: ignore[arg-type]
            assert refused.status_code in (400, 403), (form, origin)

        attacker, victim = await stage.logged_in("bob"), stage.visited.browser()
        victim.cookies.set(
            stage.visited.cookie, attacker.cookies[stage.visited.cookie], domain="127.0.0.1", path="/"
        )
        await shows(await stage.let_in(victim, stage.token("root", "admin")), "/hosts")
        await shows(attacker, "/instances", status=303)
        await stage.has_changed_nothing()


async def test_members_and_readers_do_and_see_only_what_is_of_their_project() -> None:
    async with a_stage() as stage:
        ann, bob = await stage.logged_in("ann"), await stage.logged_in("bob")
        form = await ann.form_of(stage.delete("shop"))
        await shows(await stage.logged_in("sue", "reader"), stage.delete("shop"), status=403)
        foreign = {**form, "instance": str(stage.ids["garden"])}
        assert (await ann.send_form("/orders/delete", foreign)).status_code == 404
        down = {**form, "host": HOST, "mode": "down"}
        assert (await ann.send_form("/orders/set-host", down)).status_code == 403
        for client, another, own, other in ((ann, bob, "shop", "garden"), (bob, ann, "garden", "shop")):
            listed = await shows(client, "/instances", str(stage.ids[own]))
            assert str(stage.ids[other]) not in listed
            for query in ("", "?now=1"):
                await shows(client, f"/instances/{stage.ids[other]}{query}", status=404)
            for path in OF_OPERATORS:
                await shows(client, path, status=403)
            groups = await shows(client, "/groups", f"of-{own}")
            assert f"of-{other}" not in groups
            (group,) = re.findall(r"/groups/([0-9a-f-]{36})", groups)
            await shows(client, f"/groups/{group}")
            await shows(another, f"/groups/{group}", status=404)
        await stage.has_changed_nothing()


async def test_what_would_fit_is_told_of_the_members_project_and_without_names_of_hosts() -> None:
    async with a_stage() as stage:
        await stage.moor.set_quota("shop", {"instances": 3})

        await shows(await stage.logged_in("root", "admin"), "/why?vcpus=1000", HOST)
        ann = await stage.logged_in("ann")
        told = await shows(ann, "/why?vcpus=1000&project=garden", "quota allows 2 more")

        assert HOST not in told


async def test_only_who_keystone_knows_of_a_project_gets_in() -> None:
    async with a_stage() as stage:
        late, token = stage.visited.browser(), stage.token("root", "admin")
        assert (await late.log_in(token=stage.token("nobody"))).status_code == 403
        await shows(late, "/instances", status=303)
        stage.keystone.is_down = True
        assert (await late.log_in(token=token)).status_code == 503
        await shows(late, "/hosts", status=303)


@pytest.fixture
def _looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moor.dashboard.resource_pages.LOOK_S", 0.05)


@pytest.mark.usefixtures("_looks_often")
async def test_a_login_ends_with_its_logout_or_its_token() -> None:
    async with a_stage() as stage:
        gone = await stage.logged_in("root", "admin")
        form, cookies = await gone.form_of(DOWN), dict(gone.cookies)
        assert (await gone.send_form("/logout", form)).status_code == 303
        gone.cookies.update(cookies)
        await shows(gone, "/hosts", status=303)

        token = stage.token("root", "admin")
        revoked = await stage.let_in(stage.visited.browser(), token)
        async with revoked.stream("GET", "/instances/live") as stream, asyncio.TaskGroup() as tasks:
            parts = stream.aiter_text()
            assert str(stage.ids["shop"]) in await anext(parts)
            del stage.keystone.tokens[token]
            stage.clock.pass_s(REMEMBERED_S + 1)
            page = tasks.create_task(told_until(parts))
            await until(page.done, "the open page ends with the token")
        await shows(revoked, "/hosts", status=303)


@pytest.mark.usefixtures("_looks_often")
async def test_what_was_ordered_is_for_who_ordered_it() -> None:
    async with a_stage() as stage:
        ann, bob = await stage.logged_in("ann"), await stage.logged_in("bob")
        ordered = await ann.send_form("/orders/delete", await ann.form_of(stage.delete("shop")))
        job = ordered.headers["location"]
        await shows(ann, job, "The instance is")
        for other in (bob, await stage.logged_in("sue", "reader")):
            await shows(other, job, status=404)

        shop, garden = str(stage.ids["shop"]), str(stage.ids["garden"])
        for client, own, said in ((ann, shop, "deleted</span>"), (bob, garden, garden)):
            async with client.stream("GET", "/instances/live") as stream:
                told = await told_until(stream.aiter_text(), said)
            assert [each in told for each in (shop, garden)] == [own == shop, own == garden]
        history = await stage.moor.history(stage.ids["shop"]).first(10)
        assert [each.by for each in history if each.what == "delete"] == ["moor-operator for ann"]


async def told_until(parts: AsyncIterator[str], said: str = "never said") -> str:
    """Read a live list until it says this, or ends."""
    told = ""
    async for part in parts:
        told += part
        if said in told:
            break
    return told
