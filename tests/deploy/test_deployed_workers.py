"""All workers on a RabbitMQ and a PostgreSQL that speak only TLS, each with users of its own, from the environment files alone."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from uuid import uuid4

import httpx
import pytest

from tests.deploy.deployed import Servers, administer, environment, rows_of, running_servers
from tests.servers.free_places import free_port
from tests.stories.moor.moor_process import moor, moor_json, moor_says, started

pytestmark = [
    pytest.mark.rabbitmq,
    pytest.mark.postgresql,
    pytest.mark.timeout(600),
]

SETUP = Path(__file__).parents[2] / "deploy" / "container" / "setup"
CELLS = ("harbour", "island")


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with running_servers() as found:
        yield found


async def set_up(servers: Servers, etc: Path) -> None:
    """What deploy/compose.yaml runs once: the script itself, which reaches the broker by its management API."""
    if not await rows_of(servers, "SELECT 1 FROM pg_database WHERE datname = 'moorage'"):
        await administer(servers, "CREATE DATABASE moorage")
    variables = {
        "PATH": f"{SETUP.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "MOOR_BUS_URL": servers.bus,
        "MOOR_DB_URL": servers.db,
        "MOOR_CELLS": ",".join(CELLS),
        "MOOR_RABBITMQ_API": servers.api,
        "MOOR_ETC": str(etc),
        "XDG_CONFIG_HOME": str(etc),
        "COLUMNS": "200",
    }
    process = await asyncio.create_subprocess_exec(
        str(SETUP),
        env=variables,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate()
    assert process.returncode == 0, said.decode()


def texts(etc: Path) -> dict[str, str]:
    return {file.name: file.read_text() for file in etc.iterdir()}


@asynccontextmanager
async def workers(etc: Path, port: int) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        roles: list[tuple[str, str, tuple[str, ...]]] = [
            ("placement", "moor-placement", ()),
            ("scheduler", "moor-scheduler", ()),
            ("keeper", "moor-keeper", ()),
            *[("conductor", f"moor-conductor-{cell}", ()) for cell in CELLS],
            *[("compute", f"moor-compute-{cell}", ("--hosts", "3")) for cell in CELLS],
            ("placement-api", "moor-placement-api", ()),
        ]
        running = [
            await stack.enter_async_context(
                started("run", worker, *flags, **environment(etc, name), MOOR_LISTEN=f"127.0.0.1:{port}")
            )
            for worker, name, flags in roles
        ]
        for process in running:
            await process.until_printed_to_stderr("ready")
        yield


async def test_a_cloud_runs_from_the_environment_files_and_without_tls_no_role_gets_in(
    servers: Servers, tmp_path: Path
) -> None:
    await set_up(servers, tmp_path)
    before = texts(tmp_path)
    await set_up(servers, tmp_path)
    assert texts(tmp_path) == before
    operator = environment(tmp_path, "moor-operator")

    port = free_port()

    async with workers(tmp_path, port):
        await moor_says(1, "nothing was done", "host", "set", "island-host-00001", "dead", **operator)
        ids = []
        for cell in CELLS:
            booted = await moor_json("boot", "--vcpus", "1", "--host", f"{cell}-host-00001", **operator)
            assert booted["instances"][0]["state"] == "active", booted
            ids.append(booted["instances"][0]["id"])
        moved = await moor_json("migrate", ids[0], **operator)
        await moor("migration", "confirm", moved["id"], **operator)
        await moor_says(0, "", "quota", "set", "shop", "instances=3", **operator)
        await moor_says(0, "", "delete", "--wait", ids[1], **operator)
        await moor_says(0, "", "audit", "--settle", "0", **operator)
        await ask_placement(port)
        await add_and_remove_an_application(servers, tmp_path)
        sessions = await rows_of(
            servers,
            "SELECT usename, ssl FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE usename LIKE 'moor%'",
        )
        listed = servers.rabbitmq.ctl("list_connections", "--silent", "user", "ssl").splitlines()

    assert {*sessions} == {
        ("moor_placement", True),
        ("moor_placement_api", True),
        ("moor_scheduler", True),
        ("moor_keeper", True),
        ("moor_conductor_harbour", True),
        ("moor_conductor_island", True),
    }
    users = {tuple(line.split()) for line in listed}
    wanted = {f"moor-{role}" for role in ("placement", "scheduler", "keeper")}
    wanted |= {f"moor-{role}-{cell}" for role in ("conductor", "compute") for cell in CELLS}
    assert wanted <= {user for user, _ in users}
    assert {tls for _, tls in users} == {"true"}

    scheduler = environment(tmp_path, "moor-scheduler")
    plain = scheduler["MOOR_DB_URL"].partition("?")[0] + "?sslmode=disable"
    async with started("run", "scheduler", **scheduler | {"MOOR_DB_URL": plain}) as process:
        assert "no encryption" in await process.until_printed_to_stderr("no pg_hba.conf entry")


async def add_and_remove_an_application(servers: Servers, etc: Path) -> None:
    """Without rabbitmqctl, by the management API."""
    by_http = {
        **environment(etc, "moor-operator"),
        "MOOR_RABBITMQ_API": servers.api.replace("://", "://guest:guest@"),
    }
    ctl = f"{sys.executable} {SETUP.with_name('rabbitmqctl-over-http')}"
    flags = ("--credentials", str(etc / "credentials.toml"), "--ctl", ctl)
    await moor_says(0, "", "application", "create", "shop", "--project", "shop", *flags, **by_http)
    assert "moor-app-shop" in servers.rabbitmq.ctl("list_users", "--silent")
    await moor_says(0, "", "application", "delete", "shop", *flags, **by_http)
    assert "moor-app-shop" not in servers.rabbitmq.ctl("list_users", "--silent")
    assert "scheduler.requests.shop" not in servers.rabbitmq.ctl("list_queues", "--silent", "name")


async def ask_placement(port: int) -> None:
    """What clients of placement's HTTP API do: its role may do all that it needs."""
    provider, consumer = str(uuid4()), str(uuid4())
    inventory = {"total": 8, "max_unit": 8}
    headers = {"OpenStack-API-Version": "placement 1.39"}
    base = f"http://127.0.0.1:{port}"
    allocation = {
        "allocations": {provider: {"resources": {"VCPU": 2}}},
        "project_id": "shop",
        "user_id": "shop",
        "consumer_generation": None,
        "consumer_type": "INSTANCE",
    }
    async with httpx.AsyncClient(base_url=base, headers=headers, timeout=30) as client:
        asked = [
            await client.put("/traits/CUSTOM_DEPLOYED"),
            await client.put("/resource_classes/CUSTOM_DEPLOYED"),
            await client.post("/resource_providers", json={"name": provider, "uuid": provider}),
            await client.put(
                f"/resource_providers/{provider}/inventories",
                json={"resource_provider_generation": 0, "inventories": {"VCPU": inventory}},
            ),
            await client.put(
                f"/resource_providers/{provider}/traits",
                json={"resource_provider_generation": 1, "traits": ["CUSTOM_DEPLOYED"]},
            ),
            await client.put(
                f"/resource_providers/{provider}/aggregates",
                json={"resource_provider_generation": 2, "aggregates": [provider]},
            ),
            await client.put(f"/allocations/{consumer}", json=allocation),
            await client.get("/allocation_candidates?resources=VCPU:1"),
            await client.get("/usages?project_id=shop"),
            await client.delete(f"/allocations/{consumer}"),
            await client.delete(f"/resource_providers/{provider}"),
            await client.delete("/traits/CUSTOM_DEPLOYED"),
            await client.delete("/resource_classes/CUSTOM_DEPLOYED"),
        ]
    assert [each.text for each in asked if each.status_code >= 300] == []
