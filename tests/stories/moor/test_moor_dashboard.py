"""The web dashboard over a running cloud: what its pages show, to whom, and what hostile input does."""

import re
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID, uuid4

import bcrypt
import httpx
import pytest

from tests.stories.moor.moor_process import Process, moor, moor_json, started
from tests.waiting import until

pytestmark = pytest.mark.asyncio

SCRIPT = "<script>alert(1)</script>"


@asynccontextmanager
async def a_cloud(*flags: str) -> AsyncIterator[tuple[dict[str, str], str, Process]]:
    """A running `moor up`: the environment in which commands find it, the address of its dashboard, and the process."""
    # A short path: the path of a socket may not be long.
    with tempfile.TemporaryDirectory(prefix="moor-") as home:
        environment = {"XDG_STATE_HOME": home}
        arguments = ("up", "--cells", "harbour", "--hosts", "3", "--dashboard-listen", "127.0.0.1:0")
        async with started(*arguments, *flags, **environment) as up:
            url = (await up.until_printed("the dashboard is served at")).split()[-1]
            await up.until_printed("ready")
            yield environment, url, up


@asynccontextmanager
async def served_beside(environment: dict[str, str], *flags: str) -> AsyncIterator[httpx.AsyncClient]:
    """Another dashboard of the same cloud, with these flags."""
    bus = f"unix://{environment['XDG_STATE_HOME']}/moorage/bus.sock"
    arguments = ("run", "dashboard", "--bus", bus, "--dashboard-listen", "127.0.0.1:0", *flags)
    async with started(*arguments, **environment) as dashboard:
        line = await dashboard.until_printed_to_stderr("the dashboard is served at")
        address = re.search(r"http://[0-9.:]+", line)
        assert address is not None
        async with httpx.AsyncClient(base_url=address.group(), timeout=30) as client:
            yield client


async def page_with(client: httpx.AsyncClient, path: str, text: str) -> str:
    """The page, as soon as it has this text."""
    answer = await until(lambda: client.get(path), f"{path} has {text!r}", lambda page: text in page.text)
    return answer.text


async def test_the_pages_show_the_cloud_and_escape_what_strangers_chose() -> None:
    async with a_cloud() as (environment, url, _), httpx.AsyncClient(base_url=url, timeout=30) as client:
        booted = await moor_json("boot", "--vcpus", "2", "--name", SCRIPT, **environment)
        refused = await moor("boot", "--vcpus", "8000", "--name", "giant", **environment)
        assert refused.code == 1
        (instance,) = booted["instances"]

        overview = await page_with(client, "/", "<b>2</b> instances")
        assert "healthy" in overview
        assert 'data-tiles="' in overview
        assert re.search(r"VCPU</th><td class=\"n\">2</td>", overview)

        instances = (await client.get("/instances")).text
        assert SCRIPT not in instances
        assert "&lt;script&gt;" in instances
        one = (await client.get(f"/instances/{instance['id']}")).text
        assert SCRIPT not in one
        assert f"{instance['host']}</a> in harbour" in one
        assert re.search(r"boot requested: 2 VCPU <span class=\"by\">by moor-app-local", one)
        assert re.search(r"qualified</span><svg.*</svg><b>3</b>", one)
        assert "The same request now" in (
            now := (await client.get(f"/instances/{instance['id']}?now=1")).text
        )
        assert re.search(r"</b> would fit, on 3 of 3 hosts", now)
        only = (await client.get("/instances", params={"state": "error"})).text
        assert ("giant" in only, instance["id"] in only) == (True, False)
        (giant,) = re.findall(r"/instances/([0-9a-f-]{36})", only)
        funnel = (await client.get(f"/instances/{giant}")).text
        assert "harbour-host-00001: VCPU asked 8000, free 1" in funnel

        assert "harbour-host-00003" in (await client.get("/hosts")).text
        host = (await client.get(f"/hosts/harbour/{instance['host']}")).text
        assert instance["id"] in host
        tile = await client.get("/tiles/harbour/2")
        assert (tile.status_code, tile.headers["location"]) == (303, "/hosts/harbour/harbour-host-00003")

        why = (await client.get("/why", params={"vcpus": "100", "traits": "CUSTOM_NONE_HAS_IT"})).text
        assert "0</b> would fit, on 0 of 3 hosts" in why
        for path in ("/waiting", "/moves", "/moves?ended=1", "/groups", "/aggregates"):
            page = await client.get(path)
            assert (page.status_code, "no" in page.text) == (200, True)


async def test_hostile_questions_are_refused_with_what_is_wrong() -> None:
    async with a_cloud() as (_, url, _), httpx.AsyncClient(base_url=url, timeout=30) as client:
        for path, status, said in (
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
        ):
            page = await client.get(path)
            assert (page.status_code, said in page.text) == (status, True), (path, page.text)
            assert "<script>alert" not in page.text
        for size in ("-1", "1e3", "9" * 40, "9" * 5000, "x"):
            page = await client.get("/why", params={"vcpus": size})
            assert "must be a whole number" in page.text
        assert (await client.post("/instances")).status_code == 405
        foreign = await client.get("/", headers={"host": "evil.example"})
        assert foreign.status_code == 400

        page = await client.get("/")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["cache-control"] == "no-store"
        # Nothing is loaded from elsewhere, and nothing is written inside of a page that the policy would refuse.
        assert not re.findall(r"(?:src|href)=\"https?:", page.text)
        assert not re.findall(r" style=\"| on[a-z]+=\"|<style|<script>", page.text)


async def test_members_see_their_own_project_only(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(
        "".join(
            f"{name}:{bcrypt.hashpw(b'secret', bcrypt.gensalt(4)).decode()}{project}\n"
            for name, project in (("root", ""), ("ann", ":shop"), ("bob", ":garden"))
        )
    )
    async with a_cloud() as (environment, _, _):
        booted = await moor_json("boot", "--vcpus", "1", "--project", "shop", **environment)
        id_ = booted["instances"][0]["id"]
        async with served_beside(environment, "--auth", "basic", "--users", str(users)) as client:
            assert (await client.get("/")).status_code == 401
            assert (await client.get("/", auth=("ann", "wrong"))).status_code == 401
            for path in (
                "/",
                "/live",
                "/hosts",
                "/hosts/harbour/harbour-host-00001",
                "/moves",
                "/waiting",
                "/dead",
                "/dead/api/x",
            ):
                assert (await client.get(path, auth=("ann", "secret"))).status_code == 403
            own, other = ("ann", "secret"), ("bob", "secret")
            assert id_ in (await client.get("/instances", auth=own)).text
            assert id_ not in (await client.get("/instances", auth=other)).text
            assert (await client.get(f"/instances/{id_}", auth=own)).status_code == 200
            assert (await client.get(f"/instances/{id_}", auth=other)).status_code == 404
            assert (await client.get(f"/instances/{id_}?now=1", auth=other)).status_code == 404
            for project, name in (("shop", "ours"), ("garden", "theirs")):
                created = await moor(
                    "group", "create", name, "--policy", "affinity", "--project", project, **environment
                )
                assert created.code == 0, created.err
            groups = (await client.get("/groups", auth=own)).text
            assert ("ours" in groups, "theirs" in groups) == (True, False)
            (group,) = re.findall(r"/groups/([0-9a-f-]{36})", groups)
            assert (await client.get(f"/groups/{group}", auth=own)).status_code == 200
            assert (await client.get(f"/groups/{group}", auth=other)).status_code == 404
            assert (await client.get("/", auth=("root", "secret"))).status_code == 200


async def test_without_identities_it_is_not_served_to_other_machines() -> None:
    ran = await moor("run", "dashboard", "--bus", "unix:///none", "--dashboard-listen", "0.0.0.0:0")

    assert (ran.code, "auth is none, which lets anyone in" in ran.err) == (2, True)
