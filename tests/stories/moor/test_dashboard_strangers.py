"""Nobody reads or orders in another's name by the dashboard: all that a stranger, a reader, a member and one whose login was revoked try
at a running cloud, while Keystone is away for a time. In the end nothing has changed that they had no right to.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

import httpx
import pytest
from msgspec import Struct

from tests.api.fake_keystone import FakeKeystone
from tests.stories.moor.moor_process import moor_json
from tests.stories.moor.test_dashboard_orders_in_a_cloud import HOST, confirmed, printed_address
from tests.stories.moor.test_moor_dashboard import a_cloud, served_beside
from tests.unit.moor.dashboard_visits import hidden

pytestmark = [pytest.mark.asyncio, pytest.mark.timeout(240)]

DOWN = f"/orders/set-host?host={HOST}&mode=down"
EVIL = "evil.example"
PROJECTS = {"ann": "shop", "sue": "shop", "bob": "garden"}


class Stage(Struct):
    """A cloud with an instance of each project, by its id; and its dashboard, in front of which each opens a browser of their own."""

    environment: Mapping[str, str]
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
        host = await moor_json("host", "show", HOST, **self.environment)
        assert host["setting"]["mode"] == "up"
        states = {each["id"]: each["state"] for each in await moor_json("list", **self.environment)}
        assert states == dict.fromkeys(self.ids.values(), "active")


@asynccontextmanager
async def a_stage() -> AsyncIterator[Stage]:
    keystone = FakeKeystone()
    async with (
        keystone.served() as asks,
        a_cloud() as (environment, url, up),
        AsyncExitStack() as stack,
    ):
        ids = {}
        for project in ("shop", "garden"):
            booted = await moor_json("boot", "--vcpus", "1", "--project", project, **environment)
            ids[project] = booted["instances"][0]["id"]
        await opens_one_browser(url, printed_address(up))
        beside = await stack.enter_async_context(served_beside(environment | asks, "--auth", "keystone"))
        yield Stage(environment, keystone, str(beside.base_url).rstrip("/"), ids, stack)


async def opens_one_browser(url: str, address: str) -> None:
    async with httpx.AsyncClient(base_url=url) as first, httpx.AsyncClient(base_url=url) as second:
        assert (await first.get(address)).status_code == 303
        assert (await second.get(address)).status_code == 403
        assert (await second.get(DOWN)).status_code == 403


async def test_at_the_dashboard_nobody_acts_for_another() -> None:
    async with a_stage() as stage:
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
    listed = (await bob.get("/instances")).text
    assert (stage.ids["garden"] in listed, stage.ids["shop"] in listed) == (True, False)
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
    sent = await confirmed(ann, f"/orders/delete?instance={stage.ids['shop']}")
    job = sent.headers["location"]
    assert re.fullmatch(r"/jobs/[0-9a-f-]{36}", job)
    assert (await ann.get(job)).status_code == 200
    sue, bob = [await stage.browser(stage.token(*each)) for each in (("sue", "reader"), ("bob", "member"))]
    for other in (sue, bob):
        assert (await other.get(job)).status_code == 404
    form = hidden(await bob.get(f"/orders/delete?instance={stage.ids['garden']}"))
    stopped = await bob.post(f"{job}/stop", data=form, headers={"origin": stage.url})
    assert stopped.status_code == 404
