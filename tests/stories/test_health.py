"""Health, readiness and metrics of a worker over HTTP, and what it logs about itself."""

import asyncio
import json
import logging
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from bus.memory import MemoryBroker
from bus.messages.placement import AskSnapshot, LogPosition, SnapshotPage
from bus.topology import objects_of
from bus.workers.health_server import HealthServer
from bus.workers.publisher import Outgoing
from bus.workers.running import about, with_flags
from bus.workers.station import Station
from compute_sim.__main__ import main as compute
from kit.errors import ConnectionLost, Poison
from kit.health import About, BadAddressError, Health, Listen, ReadyTeller, read_health_address
from kit.parts import Pauses, Status, Supervised
from kit.process import Part, run_until
from moor.commands import command_of
from placement_worker.settings import PlacementSettings
from placement_worker.wiring import placement_parts
from tests.contracts.stage import SETTINGS, WORK, Remembering, order, until
from tests.simulation.loop import run_simulated, until_s
from tests.stores_in_memory import MemoryPlacementStore
from tests.stories.cloud import a_host
from tests.varied import varied


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
    # Messages are counted: the question must not be repeated.
    once = varied(SETTINGS, ask_again_ms=SETTINGS.answer_timeout_ms)
    client = Station(memory.as_user(), "client", settings=once, asks=True)
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
            assert await counted(asking, "moor_part_failing", part="placement.work: consume") == 1

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


@asynccontextmanager
async def a_bus() -> AsyncIterator[tuple[MemoryBroker, Station, Station]]:
    """A broker, and two stations on it that do not run yet; the second one asks."""
    memory, settings = MemoryBroker(), varied(SETTINGS, ask_again_ms=20)
    connection = await memory.as_user().connect()
    await connection.declare(objects_of(("c1",)))
    await connection.close()
    stations = (
        Station(memory.as_user(), "placement", settings=settings),
        Station(memory.as_user(), "client", settings=settings, asks=True),
    )
    yield memory, *stations
    for station in stations:
        await station.close()


async def until_counted(asking: httpx.AsyncClient, name: str, least: float, **labels: str) -> None:
    async with asyncio.timeout(30):
        while await counted(asking, name, **labels) < least:
            await asyncio.sleep(0.01)


@pytest.mark.asyncio
async def test_outcomes_of_messages_are_counted() -> None:
    gate, tried = asyncio.Event(), Counter[int]()
    gate.set()

    def trouble(number: int) -> None:
        tried[number] += 1
        if number == 2:
            raise Poison("never")
        if number == 3 and tried[number] < 3:
            raise RuntimeError("not yet")

    remembering = Remembering(trouble, gate)
    async with a_bus() as (memory, setup, client):
        # A process may have two workers on a queue: they are counted together.
        worker, idle = (setup.worker(WORK, remembering.handlers, remembering) for _ in range(2))
        async with served(worker, seen=(idle,)) as asking:
            for number in (1, 2, 3):
                await client.publisher.send(order(number))
            await until_counted(asking, "moor_messages_handled_total", 2, queue=WORK)
            await until_counted(asking, "moor_batches_total", 2, queue=WORK)
            await until_counted(asking, "moor_messages_buried_total", 1, queue=WORK)
            await until_counted(asking, "moor_messages_put_back_total", 2, queue=WORK)
            await until_counted(asking, "moor_part_runs_total", 1, part=f"{WORK}: consume")
            gate.clear()
            await client.publisher.send(order(4))
            await until_counted(asking, "moor_parcels_in_hand", 1, queue=WORK)
            memory.cut_connections()
            await until_counted(asking, "moor_interruptions_total", 1, queue=WORK)
            gate.set()
            await until_counted(asking, "moor_parcels_redelivered_total", 1, queue=WORK)
            await until_counted(asking, "moor_part_runs_total", 2, part=f"{WORK}: consume")


@pytest.mark.asyncio
async def test_connections_questions_and_answers_are_counted() -> None:
    page = SnapshotPage(providers=(), published=LogPosition(term=1, position=1))
    async with a_bus() as (memory, setup, client), served(client, seen=(setup,)) as asking:
        await setup.publisher.send_all((Outgoing(page, to="answers.nobody.p1"),))
        await until_counted(asking, "moor_answers_dropped_total", 1)
        unanswered = asyncio.ensure_future(client.ask(AskSnapshot()))
        await until_counted(asking, "moor_questions_asked_again_total", 1)
        unanswered.cancel()
        # Two connections to publish, and one for the client's answers.
        await until_counted(asking, "moor_connections_made_total", 3)
        memory.block("low on memory")
        sending = setup.publisher.send(order(1))
        await until_counted(asking, "moor_parcels_held_back_total", 1)
        await until_counted(asking, "moor_messages_waiting", 1)
        memory.block("")
        await sending


ABOUT = About("placement", "1.2")


def test_failures_are_reported_with_their_error_count_and_duration() -> None:
    async def fails() -> None:
        raise ConnectionLost("gone")

    async def scenario() -> list[dict[str, object]]:
        part = Supervised("a part", fails, pauses=Pauses(8.0, 8.0))
        running = asyncio.create_task(part.run())
        await until_s(3)
        failing = Health(ABOUT, (part,)).failing()
        await part.stop()
        await running
        return failing

    (told,) = run_simulated(scenario())
    assert told == {
        "part": "a part",
        "state": "failing",
        "failures": 1,
        "last_error": "ConnectionLost: gone",
        "for_s": 3.0,
    }


def test_a_worker_that_stops_is_not_ready_and_has_no_fault_if_its_parts_have_ended() -> None:
    async def scenario() -> tuple[bool, Health]:
        status = Status("a part")
        health = Health(ABOUT, (status,))
        status.ended()
        was_well = health.is_well
        health.is_stopping = True
        assert health.failing() == []
        return was_well, health

    was_well, health = run_simulated(scenario())
    assert (was_well, health.is_well) == (False, True)
    assert health.awaits() == {"process": "it is stopping"}


def test_readiness_is_logged_when_it_comes_and_when_it_goes(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        status = Status("a part", is_needed=True)
        health = Health(ABOUT, (status,))
        teller = ReadyTeller(health)
        running = asyncio.create_task(teller.run())
        await until_s(1)
        for at_s in (2, 4):
            status.well()
            await until_s(at_s)
            status.failed(ConnectionLost("gone"))
            await until_s(at_s + 1)
        # A worker that is told to stop does not log that it is not ready.
        status.well()
        await until_s(6)
        health.is_stopping = True
        await until_s(7)
        await teller.stop()
        await running

    with caplog.at_level(logging.INFO):
        run_simulated(scenario())

    gone = "placement is no longer ready: a part: ConnectionLost: gone"
    assert [each.message for each in caplog.records if each.name == "kit.health"] == [
        *("placement is ready", gone),
        *("placement is ready", gone),
        "placement is ready",
    ]


@pytest.mark.asyncio
async def test_many_open_connections_do_not_make_a_worker_unhealthy() -> None:
    async with served() as asking:
        port = asking.base_url.port
        idle = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
        assert (await asking.get("/healthz")).status_code == 200
        for _, writer in idle:
            writer.close()


@pytest.mark.asyncio
async def test_a_part_that_has_ended_makes_the_worker_unhealthy() -> None:
    async def ends() -> None:
        """It should have run as long as the process."""

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
    assert read_health_address(text) == Listen(*address)


@pytest.mark.parametrize("text", ["", "host", "host:", "host:99999", "1:x", "\u0661", "9" * 5_000])
def test_an_invalid_address_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(BadAddressError, match="write port or host:port"):
        read_health_address(text)


@pytest.mark.asyncio
async def test_an_address_in_use_is_reported_when_the_server_is_created() -> None:
    health, by_signal = Health(About("placement", ""), ()), signal.getsignal(signal.SIGTERM)
    first = HealthServer("127.0.0.1:0", health)
    with pytest.raises(BadAddressError, match="in use"):
        HealthServer(first.url.removeprefix("http://"), health)
    serving = asyncio.create_task(first.run())
    async with httpx.AsyncClient(base_url=first.url) as client:
        assert (await client.get("/readyz")).status_code == 200
    # Signals belong to the process.
    assert signal.getsignal(signal.SIGTERM) == by_signal
    await first.stop()
    await serving


def test_a_workers_description_of_itself_has_no_password() -> None:
    said = about(
        "placement",
        brokers=("amqp://u:secret@h/", "amqp://u:secret@h/"),
        database="postgresql://u:secret@h/n",
    )

    assert said.brokers == ("amqp://u:***@h/",)
    assert "secret" not in json.dumps([said.role, said.version, *said.brokers, said.database])


def test_a_flag_overrides_the_environment_variable(capsys: pytest.CaptureFixture[str]) -> None:
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
        with pytest.raises(SystemExit, match="2"):
            compute(dict(os.environ), flags)
        assert said in capsys.readouterr().err
