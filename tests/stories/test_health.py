"""Health, readiness and metrics of a worker over HTTP, and what it logs about itself."""

import json
import logging
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from bus.memory import MemoryBroker
from bus.topology import objects_of
from bus.workers.connections import Station
from bus.workers.running import about
from compute_sim.__main__ import main as compute
from kit.errors import ConnectionLost
from kit.health import About, Health, ReadyTeller
from kit.health_server import HealthServer
from kit.parts import Pauses, Status, Supervised
from kit.process import Part
from moor.commands import command_of
from placement_worker.settings import PlacementSettings
from placement_worker.wiring import placement_parts
from tests.contracts.stage import SETTINGS
from tests.running import running
from tests.simulation.loop import simulated, until_s
from tests.stores_in_memory import MemoryPlacementStore
from tests.stories.cloud import a_host
from tests.varied import varied
from tests.waiting import until


@asynccontextmanager
async def served(*parts: Part, seen: tuple[object, ...] = ()) -> AsyncIterator[httpx.AsyncClient]:
    health = Health(About("placement", "1.2"), (*parts, *seen))
    server = HealthServer("0", health)
    assert server.url.startswith("http://127.0.0.1:"), "with a port alone it is for this machine"
    async with (
        running((*parts, server, ReadyTeller(health))),
        httpx.AsyncClient(base_url=server.url) as client,
    ):
        yield client
        health.is_stopping = True


async def counted(client: httpx.AsyncClient, name: str, **labels: str) -> float:
    page = (await client.get("/metrics")).text
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name == name and sample.labels.items() >= labels.items():
                return sample.value
    raise AssertionError(f"no {name} {labels} in:\n{page}")


async def test_a_worker_is_ready_once_its_queues_are_declared_and_counts_what_it_handles(
    caplog: pytest.LogCaptureFixture,
) -> None:
    memory = MemoryBroker()
    station = Station(memory.as_user(), "placement", settings=SETTINGS)
    # Messages are counted: the question must not be repeated.
    once = varied(SETTINGS, ask_again_ms=SETTINGS.answer_timeout_ms)
    client = Station(memory.as_user(), "client", settings=once, asks=True)
    parts = placement_parts((station,), MemoryPlacementStore(), PlacementSettings())
    with caplog.at_level(logging.INFO):
        async with served(*parts, client, seen=(station,)) as asking:

            async def says(what: str, part: str) -> bool:
                answer = await asking.get("/readyz")
                return answer.status_code == 503 and what in answer.json()["awaits"].get(part, "")

            await until(lambda: says("moor broker declare", "placement.work: consume"))
            alive = await asking.get("/healthz")
            assert alive.status_code == 200, "it waits, and a restart would mend nothing"
            assert "placement.work: consume" in [each["part"] for each in alive.json()["failing"]]
            assert await counted(asking, "moor_ready") == 0
            assert await counted(asking, "moor_part_failing", part="placement.work: consume") == 1

            connection = await memory.as_user().connect()
            await connection.declare(objects_of(("c1",)))
            await connection.close()
            ready = await until(
                lambda: asking.get("/readyz"), "it is ready", lambda answer: answer.status_code == 200
            )
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


ABOUT = About("placement", "1.2")


@simulated
async def test_failures_are_reported_with_their_error_count_and_duration() -> None:
    async def fails() -> None:
        raise ConnectionLost("gone")

    part = Supervised("a part", fails, pauses=Pauses(8.0, 8.0))
    async with running((part,)):
        await until_s(3)
        (told,) = Health(ABOUT, (part,)).failing()
    assert told == {
        "part": "a part",
        "state": "failing",
        "failures": 1,
        "last_error": "ConnectionLost: gone",
        "for_s": 3.0,
    }


@simulated
async def test_a_worker_that_stops_is_not_ready_and_has_no_fault_if_its_parts_have_ended() -> None:
    status = Status("a part")
    health = Health(ABOUT, (status,))
    status.ended()
    was_well, health.is_stopping = health.is_well, True
    assert health.failing() == []
    assert (was_well, health.is_well) == (False, True)
    assert health.awaits() == {"process": "it is stopping"}


def test_a_workers_description_of_itself_has_no_password() -> None:
    said = about(
        "placement",
        brokers=("amqp://u:secret@h/", "amqp://u:secret@h/"),
        database="postgresql://u:secret@h/n",
    )

    assert said.brokers == ("amqp://u:***@h/",)
    assert "secret" not in json.dumps([said.role, said.version, *said.brokers, said.database])


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
        with pytest.raises(SystemExit, match="2"):
            compute(dict(os.environ), flags)
        assert said in capsys.readouterr().err
