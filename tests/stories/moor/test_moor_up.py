"""`moor up` and the commands, each as a process of its own, as a person has them in several terminals."""

import asyncio
import json
import os
import sqlite3
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest

from tests.stories.moor.moor_process import (
    Process,
    Result,
    moor,
    moor_anew,
    moor_json,
    started,
    started_anew,
    started_at,
)

pytestmark = pytest.mark.asyncio

REQUESTS = UUID("0b6a7c1e-1f0c-4a55-9d57-3f7d0d1c2b01")


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: the path of a socket may not be long."""
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


@asynccontextmanager
async def up(home: Path, *arguments: str) -> AsyncIterator[Process]:
    async with started_anew("up", *arguments, XDG_STATE_HOME=str(home)) as process:
        await process.until_printed("ready")
        yield process


async def test_the_commands_show_the_cloud_and_explain_mistakes(home: Path) -> None:
    async with up(home, "--cells", "harbour", "--hosts", "2"):
        first_host, other_host = "harbour-host-00001", "harbour-host-00002"
        at_home = {"XDG_STATE_HOME": str(home)}

        draining = await moor_anew("host", "set", first_host, "draining", "--reason", "new fan", **at_home)
        assert (draining.code, "draining" in draining.out, "new fan" in draining.out) == (0, True, True)
        (built,) = (await moor_json("boot", "--vcpus", "2", "--name", "web", **at_home))["instances"]
        assert (built["state"], built["host"]) == ("active", other_host)
        up_again = await moor_json("host", "set", first_host, "up", **at_home)
        assert up_again["setting"]["mode"] == "up"

        giant = await moor_anew("boot", "--vcpus", "500", "--name", "giant", **at_home)
        assert giant.code == 1
        assert "no host for giant among 2:" in giant.out
        assert "-2  capacity" in giant.out
        assert f"{first_host}  VCPU asked 500, free 128 of 128" in giant.out

        assert [each["name"] for each in await moor_json("list", "--state", "error", **at_home)] == ["giant"]
        aggregate = "00000000-0000-4000-8000-000000000002"
        apart = await moor("boot", "--name", "apart", "--vcpus", "1", "--aggregate", aggregate, **at_home)
        assert apart.code == 1
        assert f"is not in aggregate {aggregate}" in apart.out
        assert [each["name"] for each in await moor_json("list", "--host", other_host, **at_home)] == ["web"]
        shown = await moor_anew("show", built["id"], **at_home)
        assert f"{other_host} in harbour" in shown.out

        as_client = f"unix://moor-app-local@{home}/moorage/bus.sock"
        nowhere = "00000000-0000-4000-8000-000000000001"
        wrong = (
            (("boot", "--vcpus", "-1"), 1, "rejected: flavor.vcpus is '-1'"),
            (
                ("boot", "--vcpus", "1", "--resources", "FOO=1"),
                1,
                "resource class 'FOO' is neither a standard one",
            ),
            (("boot", "--resources", "VCPU"), 2, "--resources is 'VCPU'"),
            (
                (
                    "boot",
                    "--vcpus",
                    "1",
                    "--extra-spec",
                    "resources1:VGPU=1",
                    "--extra-spec",
                    "resources2:VGPU=1",
                ),
                1,
                "rejected: flavor.extra_specs.group_policy is ''",
            ),
            (("boot", "--vcpus", "1", "--count", "many"), 2, "Invalid value for '--count'"),
            (("show", nowhere), 1, f"there is no instance and no request {nowhere}"),
            (("delete", nowhere), 1, f"there is no instance and no request {nowhere}, so nothing was done"),
            (("host", "show", "nowhere"), 1, "there is no host 'nowhere'"),
            (("host", "set", "nowhere", "down"), 1, "there is no host of this name; `moor host list`"),
            (
                ("host", "set", first_host + "0", "down"),
                1,
                f"there is no host of this name; did you mean {first_host}",
            ),
            (("host", "set", first_host, "broken"), 2, "'broken'"),
            (("host", "set", first_host, "up", "--bus", as_client), 1, "'moor-app-local' may not publish"),
            (("events", "claim.#"), 2, "no event has such a key"),
            (("audit", "--remove-strays"), 2, "it says what --heal may do"),
            (("up",), 1, "stop that first"),
        )
        told = await asyncio.gather(*(moor(*arguments, **at_home) for arguments, _, _ in wrong))
        for ran, (_, code, what) in zip(told, wrong, strict=True):
            assert (ran.code, what in ran.err, "Traceback" in ran.err) == (code, True, False), ran.err

        gone = await moor("delete", built["id"], "--wait", **at_home)
        assert (gone.code, "deleted" in gone.out) == (0, True)


async def test_a_host_that_is_heard_is_set_dead_only_after_a_confirmation(home: Path) -> None:
    host = "harbour-host-00001"
    async with up(home, "--cells", "harbour", "--hosts", "1"):
        at_home = {"XDG_STATE_HOME": str(home)}

        async def mode() -> str:
            return str((await moor_json("host", "show", host, **at_home))["setting"]["mode"])

        async def answered(answer: bytes) -> Result:
            """Set it dead at a terminal, on which this answer was typed."""
            keyboard, terminal = os.openpty()
            try:
                os.write(keyboard, answer)
                async with started_at(terminal, "host", "set", host, "dead", **at_home) as process:
                    return await process.ended()
            finally:
                os.close(keyboard)
                os.close(terminal)

        for refused in (await moor("host", "set", host, "dead", **at_home), await answered(b"n\n")):
            assert (refused.code, "nothing was done" in refused.err) == (1, True)
            assert f"{host} was heard" in refused.err
            assert await mode() == "up"
        sure = await answered(b"y\n")
        assert (sure.code, await mode()) == (0, "dead")

        await moor_json("host", "set", host, "up", **at_home)
        yes = await moor_json("host", "set", host, "dead", "--yes", "--reason", "it burnt", **at_home)
        assert (yes["setting"]["mode"], yes["setting"]["reason"]) == ("dead", "it burnt")


async def test_events_are_printed_as_they_are_published(home: Path) -> None:
    async with (
        up(home, "--cells", "harbour", "--hosts", "1"),
        events(home, "build.#", "instance.#", "-o", "json") as listening,
        events(home, "build.#", "instance.#", "-o", "json", "--count", "3") as counting,
    ):
        booted = await moor_json("boot", "--vcpus", "1", XDG_STATE_HOME=str(home))
        await listening.until_printed('"instance.active"')
        counted = await counting.ended()

    # On a slow machine an event may be published once more, and is printed as often.
    said: dict[str, Any] = {}
    for event in events_in(listening.told):
        said.setdefault(event["type"], event)
    assert [*said] == ["build.accepted", "instance.placed", "instance.active"]
    assert said["build.accepted"]["request_id"] == booted["request_id"]
    assert said["instance.active"]["instance"]["id"] == booted["instances"][0]["id"]
    assert said["instance.active"]["instance"]["host"] == "harbour-host-00001"
    three = events_in(counted.out.splitlines())
    assert (counted.code, len(three)) == (0, 3)
    assert {each["type"] for each in three} <= {*said}


def events_in(lines: Sequence[str]) -> list[Any]:
    return [json.loads(line) for line in lines if line.startswith("{")]


async def test_without_a_cloud_the_commands_say_so(home: Path) -> None:
    ran = await moor("list", XDG_STATE_HOME=str(home))

    assert ran.code == 1
    assert f"no process serves a bus at {home}/moorage/bus.sock" in ran.err
    assert "moor up" in ran.err


@asynccontextmanager
async def events(home: Path, *patterns: str) -> AsyncIterator[Process]:
    async with started("events", *patterns, XDG_STATE_HOME=str(home)) as process:
        await process.until_printed_to_stderr("listening")
        yield process


async def boot(home: Path, number: int) -> Result:
    """The command waits for its instances, even if `moor up` dies meanwhile."""
    return await moor(
        "boot", "--vcpus", "1", "--ram", "512", "--disk", "1", "--count", "25",
        "--request-id", str(uuid5(REQUESTS, str(number))), "--name", f"web{number}", "-o", "json",
        XDG_STATE_HOME=str(home),
    )  # fmt: skip


def built(home: Path) -> list[str]:
    """The instances on all hosts; one that is on two hosts is in the list twice."""
    with closing(sqlite3.connect(home / "moorage" / "moor.db")) as connection:
        attempts = [json.loads(body) for (body,) in connection.execute("SELECT body FROM compute_attempts")]
    return sorted(each["instance"] for each in attempts if each["state"] == "built")
