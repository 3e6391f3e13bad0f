"""Placement over HTTP as operators run it: processes of their own on one database."""

import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import bcrypt
import httpx
import pytest

from tests.contracts.sql_stores import empty_database
from tests.stories.moor.moor_process import Process, started

pytestmark = pytest.mark.asyncio

NEWEST = {"openstack-api-version": "placement 1.39"}


class Api:
    def __init__(self, process: Process, client: httpx.AsyncClient) -> None:
        self.process = process
        self.client = client


@asynccontextmanager
async def api(*options: str, **environment: str) -> AsyncIterator[Api]:
    async with started("run", "placement-api", *options, **environment) as process:
        line = await process.until_printed_to_stderr("placement is served at ")
        url = line.rstrip().rpartition(" ")[2]
        async with httpx.AsyncClient(base_url=url, headers=NEWEST) as client:
            yield Api(process, client)


@pytest.mark.parametrize("kind", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgresql)])
async def test_each_of_two_servers_sees_at_once_what_was_written_through_the_other(kind: str) -> None:
    async with empty_database(kind) as url, api("--db", url) as one, api("--db", url) as other:
        for turn in range(10):
            writer, reader = (one, other) if turn % 2 else (other, one)
            written = await writer.client.post("/resource_providers", json={"name": f"host-{turn}"})
            found = await reader.client.get("/resource_providers", params={"name": f"host-{turn}"})
            assert [provider["uuid"] for provider in found.json()["resource_providers"]] == [
                written.json()["uuid"]
            ]


async def test_a_server_stops_when_told_and_its_writes_are_there_for_the_next(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'books.db'}"
    async with api("--db", url) as server:
        await server.client.put("/traits/CUSTOM_KEPT")
        server.process.send_signal(signal.SIGTERM)
        assert (await server.process.ended()).code == 0

    async with api("--db", url) as server:
        assert (await server.client.get("/traits/CUSTOM_KEPT")).status_code == 204


async def test_basic_authentication_accepts_the_users_of_its_file(tmp_path: Path) -> None:
    users = tmp_path / "users"
    users.write_text(f"ann:{bcrypt.hashpw(b'open sesame', bcrypt.gensalt(4)).decode()}\n")
    url = f"sqlite:///{tmp_path / 'books.db'}"
    async with api("--db", url, "--auth", "basic", MOOR_USERS=str(users)) as server:
        refused = await server.client.get("/traits", auth=("ann", "guessed"))
        let_in = await server.client.get("/traits", auth=("ann", "open sesame"))

    assert (refused.status_code, let_in.status_code) == (401, 200)
