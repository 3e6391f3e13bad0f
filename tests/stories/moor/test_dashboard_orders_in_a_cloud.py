"""Orders by the dashboard in a running cloud: they do what the commands do, for those who may, and the history says who it was."""

import asyncio
import re
from pathlib import Path

import bcrypt
import httpx
import pytest

from bus.addresses import broker_at
from bus.topology import DEAD_QUEUE
from tests.contracts.stage import parcel, send
from tests.stories.moor.moor_process import Process, moor, moor_json
from tests.stories.moor.test_moor_dashboard import a_cloud, served_beside
from tests.unit.moor.dashboard_visits import hidden
from tests.waiting import until

pytestmark = pytest.mark.asyncio

HOST = "harbour-host-00001"


def printed_address(up: Process) -> str:
    """The address by which one browser may order, as `moor up` has printed it."""
    (found,) = re.findall(r"http://\S+/open\?token=\S+", "".join(up.told))
    return str(found)


async def confirmed(client: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    """Confirm an order as a browser does."""
    page = await client.get(path)
    assert page.status_code == 200, page.text
    origin = str(client.base_url).rstrip("/")
    return await client.post(
        path.partition("?")[0], data={**hidden(page), **fields}, headers={"origin": origin}
    )


async def ordered(client: httpx.AsyncClient, path: str, **fields: str) -> httpx.Response:
    """Confirm an order, and wait until it has ended."""
    sent = await confirmed(client, path, **fields)
    assert sent.status_code == 303, sent.text
    return await until(
        lambda: client.get(sent.headers["location"]),
        "the order has ended",
        lambda done: "data-goes-on" not in done.text,
    )


async def logged_in(client: httpx.AsyncClient, user: str) -> None:
    page = await client.get("/login")
    fields = {**hidden(page), "user": user, "password": "secret"}
    answer = await client.post("/login", data=fields, headers={"origin": str(client.base_url).rstrip("/")})
    assert answer.status_code == 303, answer.text


async def test_a_host_is_drained_and_set_up_again_and_an_instance_deleted() -> None:
    async with a_cloud() as (environment, url, up), httpx.AsyncClient(base_url=url, timeout=60) as client:
        booted = await moor_json("boot", "--vcpus", "1", "--count", "6", "--name", "web", **environment)
        opened = await client.get(printed_address(up))
        assert opened.status_code == 303
        there = [each["id"] for each in booted["instances"] if each["host"] == HOST]
        assert there

        drained = await ordered(client, f"/orders/drain?host={HOST}", reason="a fan is loud")
        assert f"{len(there)} of {len(there)} instance" in drained.text
        assert f"have left harbour/{HOST}" in drained.text
        host = await moor_json("host", "show", HOST, **environment)
        assert (host["setting"]["mode"], host["setting"]["reason"], host["setting"]["by"]) == (
            *("draining", "a fan is loud"),
            "moor-operator for admin",
        )
        instances = await moor_json("list", **environment)
        assert all(each["host"] != HOST for each in instances)
        history = await moor_json("history", there[0], **environment)
        moves = [each for each in history if each["what"] == "live-migrate"]
        assert [each["by"] for each in moves] == ["moor-operator for admin"]
        assert "by moor-operator for admin" in (await client.get(f"/instances/{there[0]}")).text

        await ordered(client, f"/orders/set-host?host={HOST}&mode=up")
        assert (await moor_json("host", "show", HOST, **environment))["setting"]["mode"] == "up"

        await ordered(client, f"/orders/delete?instance={there[0]}")
        gone = await moor("delete", there[0], "--wait", **environment)
        assert gone.code == 0, gone.err
        history = await moor_json("history", there[0], **environment)
        assert [each["by"] for each in history if each["what"] == "delete"] == ["moor-operator for admin"]


async def test_a_dead_letter_is_replayed() -> None:
    async with a_cloud() as (environment, url, up), httpx.AsyncClient(base_url=url, timeout=60) as client:
        broker = broker_at(f"unix://{environment['XDG_STATE_HOME']}/moorage/bus.sock")
        await send(broker, parcel(b"{broken"))
        connection = await broker.connect()
        await until(lambda: connection.depth(DEAD_QUEUE), "it is buried")
        await connection.close()
        await client.get(printed_address(up))
        (letter,) = await moor_json("dead", "list", **environment)

        page = await client.get(f"/dead/api/{letter['handle']}")
        (path,) = re.findall(r'href="(/orders/replay[^"]*)"', page.text)
        done = await ordered(client, path.replace("&amp;", "&"))
        assert f"The dead letter {letter['handle']} is back in the queue placement.work." in done.text
        # It cannot be read this time, either: it is a new dead letter.
        (another,) = await until(lambda: moor_json("dead", "list", **environment), "it is buried again")
        assert another["handle"] != letter["handle"]
        again = await client.get(path.replace("&amp;", "&"))
        assert (again.status_code, "There is no dead letter" in again.text) == (400, True)


async def heard(client: httpx.AsyncClient) -> str:
    """What the live list of instances tells until something in it is deleted, or for a while."""
    told = ""
    async with client.stream("GET", "/instances/live") as stream:
        async for part in stream.aiter_text():
            told += part
            if "deleted</span>" in told or told.count(": quiet") > 2:
                break
    return told


async def test_members_of_two_projects_see_hear_and_delete_only_their_own(tmp_path: Path) -> None:
    users = tmp_path / "users"
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    users.write_text(f"root:{hashed}\nann:{hashed}:shop:member\nbob:{hashed}:garden:member\n")
    async with a_cloud() as (environment, _, _):
        ids = {}
        for project in ("shop", "garden"):
            booted = await moor_json("boot", "--vcpus", "1", "--project", project, **environment)
            ids[project] = booted["instances"][0]["id"]
        async with (
            served_beside(environment, "--auth", "basic", "--users", str(users)) as ann,
            httpx.AsyncClient(base_url=ann.base_url, timeout=60) as bob,
        ):
            await logged_in(ann, "ann")
            await logged_in(bob, "bob")
            for client, own, other in ((ann, "shop", "garden"), (bob, "garden", "shop")):
                listed = (await client.get("/instances")).text
                assert (ids[own] in listed, ids[other] in listed) == (True, False)
                assert (await client.get(f"/instances/{ids[other]}")).status_code == 404
                assert (await client.get(f"/orders/delete?instance={ids[other]}")).status_code == 404
                forged = await confirmed(client, f"/orders/delete?instance={ids[own]}", instance=ids[other])
                assert forged.status_code == 404
                for path in ("/live", "/", "/hosts", "/dead", "/moves", f"/orders/drain?host={HOST}"):
                    assert (await client.get(path)).status_code == 403, path

            with_news = [asyncio.create_task(heard(client)) for client in (ann, bob)]
            await ordered(ann, f"/orders/delete?instance={ids['shop']}")
            of_ann, of_bob = [await each for each in with_news]
            assert (ids["shop"] in of_ann, "deleted</span>" in of_ann, ids["garden"] in of_ann) == (
                True,
                True,
                False,
            )
            assert (ids["garden"] in of_bob, ids["shop"] in of_bob) == (True, False)
            gone = await moor("delete", ids["shop"], "--wait", **environment)
            assert gone.code == 0
            history = await moor_json("history", ids["shop"], **environment)
            assert [each["by"] for each in history if each["what"] == "delete"] == ["moor-operator for ann"]
            assert ids["garden"] in (await bob.get("/instances?state=active")).text
