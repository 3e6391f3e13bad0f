"""Health, readiness and metrics of a worker over HTTP, and what it logs of itself."""

import asyncio
import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from bus.health import About, Health, ReadyTeller
from bus.health_server import BadAddressError, HealthServer, read_address
from bus.memory import MemoryBroker
from bus.parts import Supervised
from bus.process import Part, run_until
from bus.running import about, with_flags
from bus.station import Station
from bus.topology import objects_of
from compute_sim.__main__ import main as compute
from moor.__main__ import command_of
from placement_worker.settings import PlacementSettings
from placement_worker.store_memory import MemoryPlacementStore
from placement_worker.wiring import placement_parts
from tests.contracts.stage import SETTINGS, until
from tests.stories.cloud import a_host


@asynccontextmanager
async def served(*parts: Part, seen: tuple[object, ...] = ()) -> AsyncIterator[httpx.AsyncClient]:
    health = Health(About("placement", "1.2"), (*parts, *seen))
    server = HealthServer("127.0.0.1:0", health)
    told = asyncio.Event()
    running = asyncio.create_task(run_until(told, (*parts, server, ReadyTeller(health)), 5))
    async with httpx.AsyncClient(base_url=server.url) as client:
        try:
            yield client
        finally:
            health.is_stopping = True
            told.set()
            await running


async def counted(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    page = (await client.get("/metrics")).text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and sample.labels.items() >= labels.items():
                return sample.value
    raise AssertionError(f"no {name} {labels} in:\n{page}")


@pytest.mark.asyncio
async def test_a_worker_is_ready_once_its_queues_are_declared_and_counts_what_it_handles(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = MemoryBroker()
    station = Station(memory.as_user(), "placement", settings=SETTINGS)
    client = Station(memory.as_user(), "client", settings=SETTINGS, asks=True)
    parts = placement_parts((station,), MemoryPlacementStore(), PlacementSettings())
    with caplog.at_level(logging.INFO):
        async with served(*parts, client, seen=(station,)) as asking:

            async def says(what: str, part: str) -> bool:
                answer = await asking.get("/readyz")
                return answer.status_code == 503 and what in answer.json()["awaits"].get(part, "")

            while not await says("moor broker declare", "placement.work: consume"):
                await asyncio.sleep(0.01)
            alive = await asking.get("/healthz")
            assert alive.status_code == 200, "it waits, and a restart would mend nothing"
            assert "placement.work: consume" in [each["part"] for each in alive.json()["failing"]]
            assert await counted(asking, "moor_ready") == 0

            connection = await memory.as_user().connect()
            await connection.declare(objects_of(("c1",)))
            await connection.close()
            while (ready := await asking.get("/readyz")).status_code != 200:
                await asyncio.sleep(0.01)

            assert ready.json() == {"status": "ready", "role": "placement", "awaits": {}}
            await client.ask(a_host("h1"))
            await until(lambda: "placement is ready" in caplog.text)
            assert await counted(asking, "moor_ready") == 1
            assert await counted(asking, "moor_worker_info", role="placement", version="1.2") == 1
            assert await counted(asking, "moor_messages_handled_total", queue="placement.work") == 1
            assert await counted(asking, "moor_part_failures_total", part="placement.work: consume") > 0
            assert await counted(asking, "moor_part_failing", part="placement.work: consume") == 0
            assert await counted(asking, "moor_parcels_sent_total") > 0
            assert await counted(asking, "process_cpu_seconds_total") > 0
            assert (await asking.get("/nothing")).status_code == 404
    await client.close()
    await station.close()
    assert "GET /readyz" not in caplog.text


@pytest.mark.asyncio
async def test_a_part_that_has_ended_makes_the_worker_unhealthy() -> None:
    async def ends() -> None:
        """It was to run for as long as the process."""

    part = Supervised("a part", ends)
    health = Health(About("placement", ""), (part,))
    server = HealthServer("127.0.0.1:0", health)
    serving = asyncio.create_task(server.run())
    async with httpx.AsyncClient(base_url=server.url) as client:
        assert (await client.get("/healthz")).status_code == 200
        await part.run()
        answer = await client.get("/healthz")
        assert answer.status_code == 503
        assert [each["part"] for each in answer.json()["failing"]] == ["a part"]
    await server.stop()
    await serving


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("9100", ("127.0.0.1", 9100)),
        (":9100", ("127.0.0.1", 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),  # noqa: S104 - what an operator may write
        ("[::1]:0", ("::1", 0)),
        ("localhost:80", ("localhost", 80)),
    ],
)
def test_a_port_alone_is_on_loopback(text: str, address: tuple[str, int]) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize("text", ["", "host", "host:", "host:99999", "1:x", "\u0661"])
def test_an_address_that_cannot_be_is_refused_with_what_may_be_written(text: str) -> None:
    with pytest.raises(BadAddressError, match="write port or host:port"):
        read_address(text)


@pytest.mark.asyncio
async def test_an_address_that_is_taken_is_told_when_the_server_is_made() -> None:
    health = Health(About("placement", ""), ())
    first = HealthServer("127.0.0.1:0", health)
    with pytest.raises(BadAddressError, match="in use"):
        HealthServer(first.url.removeprefix("http://"), health)
    serving = asyncio.create_task(first.run())
    async with httpx.AsyncClient(base_url=first.url) as client:
        assert (await client.get("/readyz")).status_code == 200
    await first.stop()
    await serving


def test_what_a_worker_says_of_itself_has_no_password() -> None:
    said = about(
        "placement",
        brokers=("amqp://u:secret@h/", "amqp://u:secret@h/"),
        database="postgresql://u:secret@h/n",
    )

    assert said.brokers == ("amqp://u:***@h/",)
    assert "secret" not in json.dumps([said.role, said.version, *said.brokers, said.database])


def test_a_flag_stands_above_the_variable(capsys: pytest.CaptureFixture[str]) -> None:
    environment = {"MOOR_HEALTH_LISTEN": "1", "MOOR_BUS_URL": "unix:///x"}

    found = with_flags(environment, ["--health-listen", "9100", "--log-format=json"], "placement_worker")

    assert found == {"MOOR_HEALTH_LISTEN": "9100", "MOOR_BUS_URL": "unix:///x", "MOOR_LOG_FORMAT": "json"}
    assert with_flags(environment, [], "placement_worker") == environment
    with pytest.raises(SystemExit):
        with_flags({}, ["--log-format", "xml"], "placement_worker")
    assert "invalid choice: 'xml'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--health-listen", "here"], "write port or host:port"),
        (["--log-format", "xml"], "MOOR_LOG_FORMAT is 'xml'"),
    ],
)
def test_a_wrong_flag_of_a_worker_is_a_line_and_exit_code_2(
    flags: list[str], said: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("MOOR_BUS_URL", "unix:///nowhere/bus.sock")
    monkeypatch.setenv("MOOR_CELL", "c1")
    monkeypatch.setenv("COLUMNS", "200")

    ended = CliRunner().invoke(command_of("run"), ["compute", *flags])

    assert ended.exit_code == 2
    assert said in ended.output
    if flags[0] == "--health-listen":
        assert compute(dict(os.environ), flags) == 2
        assert said in capsys.readouterr().err
