"""Clients in other AMQP libraries: the programs of docs/bus.md, with the rights of their users, on the real servers."""

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from bus.messages.stored_names import SetApplication
from bus.topology import objects_of_application
from engine.flavors import RequestId, instance_id_of
from tests.adversity.real_cloud import RealCloud, real_cloud
from tests.contracts.broker_under_test import ADMIN, SHOP
from tests.contracts.stage import dead_letters
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(240)]

PAGE = Path(__file__).parents[2] / "docs" / "bus.md"
PROGRAMS = {
    name: text for text, name in re.findall(r"```python\n(# (\w+\.py).*?)```", PAGE.read_text(), re.DOTALL)
}
SMALL = {"name": "small", "vcpus": 1, "ram_mb": 1024, "root_gb": 1}
ID = str(UUID(int=77))
CELL = "harbour"


@asynccontextmanager
async def a_cloud(**sizes: str) -> AsyncIterator[RealCloud]:
    """Two hosts in one cell, and a user for each role."""
    async with real_cloud(CELL, has_nodes=False, HOSTS_PER_CELL="2", **sizes) as setup:
        await setup.start("placement-1", "scheduler-1", f"conductor-{CELL}", f"compute-{CELL}")
        await setup.until_up(2)
        yield setup


async def start(
    program: str, url: str, *arguments: str, project: str = "", **more: str
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        PROGRAMS[program],
        *arguments,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "MOOR_BUS_URL": url, "MOOR_PROJECT": project, **more},
    )


async def run(
    program: str, url: str, *arguments: str, stdin: object = None, project: str = "", **more: str
) -> str:
    """Run a program of the page to its end; returns what it printed."""
    process = await start(program, url, *arguments, project=project, **more)
    async with asyncio.timeout(PATIENCE_S):
        out, _ = await process.communicate(json.dumps(stdin).encode())
    assert process.returncode == 0
    return out.decode()


async def ask(setup: RealCloud, message: dict[str, Any], user: str = ADMIN.user, **more: str) -> Any:
    return json.loads(await run("ask.py", setup.under_test.url(user), stdin=message, **more))


@asynccontextmanager
async def listening(
    setup: RealCloud, user: str = ADMIN.user, project: str = ""
) -> AsyncIterator[list[dict[str, Any]]]:
    """The output of the listening program of the page."""
    process = await start("listen.py", setup.under_test.url(user), project=project)
    assert process.stdout is not None
    assert await process.stdout.readline() == b"listening\n"
    heard: list[dict[str, Any]] = []

    async def hear(out: asyncio.StreamReader) -> None:
        while line := await out.readline():
            heard.append(json.loads(line))

    hearing = asyncio.create_task(hear(process.stdout))
    try:
        yield heard
    finally:
        process.kill()
        await process.wait()
        await hearing


async def shop_is_fed(setup: RealCloud) -> None:
    """Register the application, and wait until the schedulers publish its feed."""
    await setup.under_test.add_users((SHOP.user,), (CELL,))
    await setup.under_test.declare(objects_of_application(SHOP))
    await setup.client.ask(SetApplication(name="shop", projects=SHOP.projects))
    async with listening(setup, SHOP.user, "shop") as heard:

        async def is_fed() -> bool:
            wrong = {"type": "build.request", "project": "shop", "request_id": str(uuid4())}
            assert (await ask(setup, wrong, SHOP.user))["type"] == "build.rejected"
            return bool(heard)

        await until(is_fed, "the schedulers know of it")


async def test_one_plain_message_becomes_an_instance() -> None:
    async with a_cloud() as setup, listening(setup) as heard:
        request = (await run("boot.py", setup.under_test.url(ADMIN.user))).strip()

        active = await setup.until_state(instance_id_of(RequestId(UUID(request)), 0), "active")

        assert (active.name, active.cell) == ("web-1", CELL)
        await until(lambda: any(message["type"] == "instance.active" for message in heard), "heard as active")
        assert [message["type"] for message in heard] == [
            "build.accepted",
            "instance.placed",
            "instance.active",
        ]
        assert heard[-1]["instance"]["host"] == active.host


async def test_an_application_boots_asks_deletes_and_hears_of_its_project() -> None:
    async with a_cloud() as setup:
        await shop_is_fed(setup)
        url = setup.under_test.url(SHOP.user)
        async with listening(setup, SHOP.user, "shop") as heard:
            other = (await run("boot.py", setup.under_test.url(ADMIN.user), project="p2")).strip()
            request = (await run("boot.py", url, project="shop", MOOR_EXCHANGE=SHOP.exchange)).strip()
            instance = str(instance_id_of(RequestId(UUID(request)), 0))
            hidden = str(instance_id_of(RequestId(UUID(other)), 0))

            def types() -> list[str]:
                return [each["type"] for each in heard if each.get("request_id", request) == request]

            await until(lambda: "instance.active" in types(), "heard as active")
            question = {"type": "instance.query", "instances": [instance, hidden], "project": "shop"}
            found = await ask(setup, question, SHOP.user, MOOR_EXCHANGE=SHOP.exchange)
            assert [each["id"] for each in found["instances"]] == [instance]
            await ask(setup, {"type": "instance.delete", "instance": instance, "project": "shop"}, SHOP.user)
            await until(lambda: "instance.deleted" in types(), "heard as deleted")

        # An event may come twice.
        assert [each for each in dict.fromkeys(types()) if each != "build.rejected"] == [
            *("build.accepted", "instance.placed", "instance.active", "instance.deleted")
        ]
        assert {each.get("project") or each["instance"]["project"] for each in heard} == {"shop"}


def of(message: dict[str, Any]) -> str:
    return str(message["instance"]["id"])


NONSENSE: list[tuple[dict[str, Any], str, str]] = [
    ({"flavor": SMALL}, "request_id", ""),
    ({"request_id": ID}, "flavor", ""),
    ({"request_id": ID, "flavor": {**SMALL, "vcpus": -4}}, "flavor.vcpus", "-4"),
    (
        {"request_id": ID, "flavor": {**SMALL, "extra_specs": {"resources:VGPUS": "1"}}},
        "flavor.extra_specs.resources:VGPUS",
        "VGPUS",
    ),
    ({"request_id": ID, "falvor": SMALL}, "falvor", json.dumps(SMALL, separators=(",", ":"))),
    ({"request_id": ID, "flavor": {**SMALL, "vcpu": 2}}, "flavor.vcpu", "2"),
    ({"request_id": ID, "flavor": {**SMALL, "vcpus": "two"}}, "flavor.vcpus", "two"),
    ({"request_id": "my-request", "flavor": SMALL}, "request_id", "my-request"),
    ({"request_id": ID, "flavor": SMALL, "count": 0}, "count", "0"),
]


async def test_an_invalid_request_is_rejected_with_field_and_value_and_leaves_nothing() -> None:
    async with a_cloud() as setup, listening(setup) as heard:
        for fields, field, value in NONSENSE:
            answer = await ask(setup, {"type": "build.request", **fields})

            reason = answer.pop("reason")
            assert reason
            known_id = fields.get("request_id") if fields.get("request_id") == ID else None
            assert answer == {
                "type": "build.rejected",
                "request_id": known_id,
                "field": field,
                "value": value,
            }

        await until(lambda: len(heard) == len(NONSENSE), "each of them is heard by whoever listens")
        assert [(message["field"], message["value"]) for message in heard] == [case[1:] for case in NONSENSE]
        assert await setup.rows("SELECT 1 FROM requested_instances") == []
        connection = await setup.under_test.broker().connect()
        assert await connection.depth("dead") == 0
        await connection.close()


async def test_bytes_that_are_no_message_are_rejected_by_an_event_and_kept_as_a_dead_letter() -> None:
    async with a_cloud() as setup, listening(setup) as heard:
        broken = PROGRAMS["boot.py"].replace('json.dumps({"message": request})', '"vcpus=1, please"')
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-c",
            broken,
            env={"PATH": os.environ["PATH"], "MOOR_BUS_URL": setup.under_test.url(ADMIN.user)},
        )
        assert await process.wait() == 0

        await until(lambda: len(heard) == 1, "the rejection is heard")
        assert (heard[0]["type"], heard[0]["field"]) == ("build.rejected", "message")
        (letter,) = await dead_letters(setup.under_test.broker(), 1)
        assert letter.parcel.body == b"vcpus=1, please"
        assert letter.reason == heard[0]["reason"]
