"""Workers that start before their servers are in order: each reports what is wrong, waits, and becomes ready when it is
repaired.

On real servers; each worker is a process.
"""

import asyncio
import json
import os
import secrets
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import httpx
import pytest
from sqlalchemy.engine import make_url

from bus.rabbit import RabbitBroker
from bus.topology import objects_of
from tests.contracts.rabbitmq_under_test import Proxy, RabbitMQUnderTest, ctl
from tests.contracts.sql_stores import VARIABLE, administer, empty_database
from tests.servers.free_places import free_port
from tests.waiting import PATIENCE_S, until

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(400)]

ANSWERED = (httpx.codes.OK, httpx.codes.SERVICE_UNAVAILABLE)


class Process:
    """One worker process, seen through its health page and its log."""

    def __init__(self, process: asyncio.subprocess.Process, url: str, log: Path) -> None:
        self.process = process
        self._url = url
        self._log = log

    async def until_ready(self) -> None:
        await self._until(lambda told: told["status"] == "ready", "ready")

    async def until_it_says(self, what: str) -> None:
        """Wait until it reports that it is not ready, and why. It still runs, and its log has such a line."""
        await self._until(lambda told: any(what in why for why in told["awaits"].values()), what)
        async with httpx.AsyncClient(base_url=self._url) as client:
            assert (await client.get("/healthz")).status_code == httpx.codes.OK
        assert any(what in line["message"] for line in self.lines()), self._log.read_text()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._log.read_text().splitlines()]

    async def _until(self, holds: Callable[[dict[str, Any]], bool], what: str) -> None:
        async def told() -> dict[str, Any] | None:
            assert self.process.returncode is None, self._log.read_text()
            # It does not listen at once; and another test's server may have this port before it.
            with suppress(httpx.TransportError):
                answer = await client.get("/readyz")
                return dict(answer.json()) if answer.status_code in ANSWERED else None
            return None

        async with httpx.AsyncClient(base_url=self._url) as client:
            await until(told, what, holds)


@asynccontextmanager
async def worker(room: str, **environment: str) -> AsyncIterator[Process]:
    port = free_port()
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory) / "log"
        with log.open("wb") as file:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", room, "--health-listen", str(port), "--log-format", "json"),
                env={"PATH": os.environ["PATH"], **environment},
                stderr=file,
            )
        seen = Process(process, f"http://127.0.0.1:{port}", log)
        try:
            yield seen
            process.terminate()
            assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0, log.read_text()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def control(*arguments: str) -> None:
    await asyncio.to_thread(ctl, *arguments)


async def test_a_broker_that_is_mended_step_by_step() -> None:
    """A missing virtual host, a wrong password, and an undeclared topology."""
    under_test = await RabbitMQUnderTest.start()
    host = f"late-{secrets.token_hex(4)}"
    user = f"late-{secrets.token_hex(4)}"
    port = urlsplit(under_test.url()).port
    url = f"amqp://{user}:as-it-should-be@127.0.0.1:{port}/{quote(host)}"
    try:
        async with empty_database("postgresql") as database:
            await control("add_user", user, "another")
            async with worker("placement_worker", MOOR_BUS_URL=url, MOOR_DB_URL=database) as placement:
                await placement.until_it_says("wrong password")
                await control("change_password", user, "as-it-should-be")
                await placement.until_it_says("virtual host")
                await control("add_vhost", host)
                await control("set_permissions", "-p", host, user, ".*", ".*", ".*")
                await placement.until_it_says("moor broker declare")
                connection = await RabbitBroker(url).connect()
                await connection.declare(objects_of(("c1",)))
                await connection.close()
                await placement.until_ready()

                text = json.dumps(placement.lines())
                assert "as-it-should-be" not in text
                first = placement.lines()[0]
                assert "placement starts" in first["message"]
                assert f"{user}:***@127.0.0.1" in first["message"]

                # Parts that no request needs may fail once more, and say only then that they work again.
                await until(
                    lambda: placement.lines()[-1]["message"],
                    "the last line says that all works",
                    lambda told: told == "placement is ready" or "works again" in told,
                )
    finally:
        await under_test.close()
        await control("delete_user", user)
        await control("eval", f'rabbit_vhost:delete(<<"{host}">>, <<"tests">>).')


async def test_a_database_that_is_mended_step_by_step() -> None:
    """A server that starts late, a missing role, a missing database; for a conductor and a scheduler."""
    under_test = await RabbitMQUnderTest.start()
    name = f"moor_test_late_{secrets.token_hex(4)}"
    server = make_url(os.environ[VARIABLE])
    port = free_port()
    proxy = Proxy(server.host or "127.0.0.1", server.port or 5432)
    url = server.set(
        drivername="postgresql+asyncpg", host="127.0.0.1", port=port, username=name, database=name, query={}
    ).render_as_string(hide_password=False)
    try:
        await under_test.declare(objects_of(("c1",)))
        bus_url = under_test.url()
        async with (
            worker("cell_conductor", MOOR_CELL="c1", MOOR_BUS_URL=bus_url, MOOR_DB_URL=url) as conductor,
            worker("placement_worker", MOOR_BUS_URL=bus_url, MOOR_DB_URL=url) as placement,
            worker("scheduler_worker", MOOR_BUS_URL=bus_url, MOOR_DB_URL=url) as scheduler,
        ):
            workers = (conductor, placement, scheduler)
            for each in workers:
                await each.until_it_says("cannot connect")
            await proxy.start(port)
            for each in workers:
                await each.until_it_says(f'role "{name}" does not exist')
            await administer(f'CREATE ROLE "{name}" LOGIN')
            for each in workers:
                await each.until_it_says(f'database "{name}" does not exist')
            await administer(f'CREATE DATABASE "{name}" OWNER "{name}"')
            for each in workers:
                await each.until_ready()
    finally:
        await proxy.close()
        await under_test.close()
        await administer(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)', f'DROP ROLE IF EXISTS "{name}"')
