"""Long runs of simulated hypervisors on the simulated clock: hours of faults take no real time, and times are exact.

And `python -m compute_sim` as a process of its own.
"""

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from bus.messages.hosts import HeldAttempt, HostHolds, HostsAlive
from bus.messages.placement import (
    ClaimAnswered,
    ClaimResources,
    InventoryInUse,
    InventoryRefused,
    ReleaseClaim,
    ReportAccepted,
    ReportAnswered,
    ReportInventory,
)
from bus.workers.handling import Answer, Received, Said
from bus.workers.station import Station
from compute_sim.handlers import ComputeStore
from compute_sim.settings import USUAL_PACE, ComputeSettings
from engine.inventories import ResourceAmount, Share
from engine.refusals import AlreadyClaimed, Claimed
from kit.process import run_until
from kit.times import now
from laboratory.computes.driver import root_of, simulated_parts
from laboratory.computes.faults import Changes, ComesBackLate, Dies, FallsSilent, FaultScript
from laboratory.computes.hosts import equal_hosts
from placement_worker.settings import FeedPace, PlacementSettings
from placement_worker.wiring import placement_parts
from tests.contracts.memory_under_test import MemoryUnderTest, UnixUnderTest
from tests.contracts.stage import PATIENCE_S, declared
from tests.contracts.stage import SETTINGS as BUS
from tests.simulation.loop import run_simulated, until_s
from tests.stores_in_memory import MemoryPlacementStore
from tests.stories.cells.test_compute_sim import ComputeSetup, compute_setup, destroy, gone, spawn, spawned

HOST = "c1-host-00001"
# No other writer changes these books, so the worker need not poll its log many times a second.
PACE = FeedPace(poll_s=10.0)
SETTINGS = ComputeSettings(cell="c1", beat_s=10, facts_every_s=5)


def claim(here_amount: int) -> ClaimResources:
    order = spawn(1, HOST)
    amount = ResourceAmount(provider=root_of(HOST), resource="DISK_GB", amount=here_amount)
    return ClaimResources(
        cell="c1",
        consumer=order.instance,
        attempt=1,
        issued_at=now(),
        share=Share(host=root_of(HOST), amounts=(amount,)),
    )


def what_it_has(host: str, *instances: int) -> HostHolds:
    attempts = tuple(HeldAttempt(instance=spawn(each, host).instance, attempt=1) for each in instances)
    return HostHolds(cell="c1", host=root_of(host), number=0, attempts=attempts)


def test_a_host_whose_answer_was_lost_lists_once_what_it_has_however_short_its_silence_was() -> None:
    script = FaultScript(spawn_ms=1_000, faults=(FallsSilent(hosts=(HOST,), after_s=600, for_s=2),))

    async def scenario() -> None:
        async with (
            compute_setup("memory", PACE) as setup,
            setup.computing(equal_hosts("c1", 2), script, SETTINGS),
        ):
            await until_s(500)
            await setup.order(spawn(1, HOST), spawn(2, "c1-host-00002"))
            await until_s(599.5)
            await setup.order(spawn(3, HOST))
            await until_s(602)
            assert spawned(3, HOST) not in setup.answers
            assert setup.listed == []

            await until_s(620)
            assert setup.listed == [what_it_has(HOST, 1, 3)]
            await until_s(3600)
            assert len(setup.listed) == 1

    run_simulated(scenario())


def test_a_host_lists_what_it_has_when_its_compute_starts_again() -> None:
    async def scenario() -> None:
        store = ComputeStore(asyncio.get_running_loop().time)
        hosts = equal_hosts("c1", 2)
        async with compute_setup("memory", PACE) as setup:
            async with setup.computing(hosts, None, SETTINGS, store=store):
                await until_s(50)
                await setup.order(spawn(1, HOST))
                await until_s(100)
                assert setup.listed == [], "it had nothing when its compute started"
            async with setup.computing(hosts, None, SETTINGS, store=store):
                await until_s(200)
        assert setup.listed == [what_it_has(HOST, 1)]

    run_simulated(scenario())


def test_a_host_that_is_silent_when_its_compute_starts_lists_what_it_has_when_the_broker_takes_it() -> None:
    script = FaultScript(faults=(FallsSilent(hosts=(HOST,), for_s=50),))

    async def scenario() -> None:
        async with (
            compute_setup("memory", PACE) as setup,
            setup.computing(equal_hosts("c1", 1), script, SETTINGS),
        ):
            await until_s(10)
            await setup.order(spawn(1, HOST))
            await until_s(40)
            await setup.under_test.set_alarm(on=True)
            await until_s(100)
            assert setup.listed == []
            await setup.under_test.set_alarm(on=False)
            await until_s(200)
        assert setup.listed == [what_it_has(HOST, 1)]

    run_simulated(scenario())


def test_an_hour_with_a_silent_a_late_and_a_dying_host() -> None:
    silent, late, dying = (f"c1-host-0000{n}" for n in (1, 2, 3))
    script = FaultScript(
        spawn_ms=60_000,
        faults=(
            FallsSilent(hosts=(silent,), after_s=600, for_s=600),
            ComesBackLate(hosts=(late,), after_s=600, for_s=600),
            Dies(hosts=(dying,), after_s=600),
        ),
    )

    async def scenario() -> None:
        async with (
            compute_setup("memory", PACE) as setup,
            setup.computing(equal_hosts("c1", 4), script, SETTINGS),
        ):
            everybody = {root_of(f"c1-host-0000{n}") for n in (1, 2, 3, 4)}
            await until_s(500)
            await setup.order(*(spawn(n, f"c1-host-0000{n}") for n in (1, 2, 3, 4)))
            await until_s(559)
            assert setup.answers == []
            await until_s(599)
            assert set(setup.answers) == {spawned(n, f"c1-host-0000{n}") for n in (1, 2, 3, 4)}
            assert {host for beat in setup.beats() for host in beat} == everybody
            setup.answers.clear()
            setup.heard.clear()

            await until_s(601)
            await setup.order(
                spawn(5, silent), spawn(6, late), spawn(7, dying), destroy(2, late), destroy(3, dying)
            )
            await until_s(1199)
            assert setup.answers == []
            assert {host for beat in setup.beats() for host in beat} == {root_of("c1-host-00004")}

            await until_s(1206)
            # Orders to the silent host are repeated; the late host answers them all, and the answers may be of
            # superseded attempts.
            assert set(setup.answers) == {spawned(6, late), gone(2, late)}
            assert setup.facts()[silent].instances == 2
            await setup.order(spawn(5, silent), destroy(3, dying))
            await until_s(3600)
            assert setup.answers[2:] == [spawned(5, silent)]
            assert setup.beats()[-1] == everybody - {root_of(dying)}
            beats = [each for each in setup.heard if isinstance(each, HostsAlive)]
            assert 250 < len(beats) < 310

    run_simulated(scenario())


def test_a_refused_reshape_is_told_and_tried_again_after_a_while_or_with_the_next_change() -> None:
    script = FaultScript(
        faults=(
            Changes(hosts=(HOST,), after_s=100, disk_gb=-10_000),
            Changes(hosts=(HOST,), after_s=110, traits_gained=("CUSTOM_LATER",)),
        )
    )

    async def scenario() -> None:
        async with (
            compute_setup("memory", PACE) as setup,
            setup.computing(equal_hosts("c1", 2), script, SETTINGS),
        ):
            await until_s(50)
            answer = await setup.client.ask(claim(5))
            assert isinstance(answer, ClaimAnswered)
            # The question is repeated when the simulated clock passes its timeout.
            assert isinstance(answer.verdict, Claimed | AlreadyClaimed)
            await until_s(150)
            refused = [each for each in setup.heard if isinstance(each, InventoryRefused)]
            assert [type(each.verdict) for each in refused] == [InventoryInUse, InventoryInUse]
            assert "DISK_GB" in (await setup.providers())[HOST].inventories
            told = setup.facts()[HOST].report_refused
            assert f"consumer {claim(5).consumer} holds DISK_GB 5 of {HOST}" in told
            order = claim(5)
            over = ReleaseClaim(cell="c1", consumer=order.consumer, attempt=1, issued_at=now())
            await setup.client.publisher.send(over)
            await until_s(155)
            assert "DISK_GB" in (await setup.providers())[HOST].inventories
            await until_s(100 + USUAL_PACE.reshape_again_s + 20)
            after = (await setup.providers())[HOST]
            assert "DISK_GB" not in after.inventories
            assert "CUSTOM_LATER" in after.traits
            assert setup.facts()[HOST].report_refused == ""

    run_simulated(scenario())


def test_a_compute_reports_its_host_in_full_after_another_reporter_did() -> None:
    script = FaultScript(faults=(Changes(hosts=(HOST,), after_s=100, traits_gained=("CUSTOM_MINE",)),))

    async def scenario() -> None:
        async with (
            compute_setup("memory", PACE) as setup,
            setup.computing(equal_hosts("c1", 1), script, SETTINGS),
        ):
            await until_s(50)
            told = (await setup.providers())[HOST]
            await _somebody_else_reports(setup)
            await until_s(110)
            after = (await setup.providers())[HOST]
            assert "CUSTOM_MINE" in after.traits
            assert after.inventories == told.inventories

    run_simulated(scenario())


def test_a_report_outlives_the_timeout_of_its_question() -> None:
    async def scenario() -> None:
        broker = await declared(MemoryUnderTest())
        store = MemoryPlacementStore()
        stations = [Station(broker, name, settings=BUS, asks=True) for name in ("compute", "placement")]
        told = asyncio.Event()
        parts = simulated_parts(stations[0], equal_hosts("c1", 2), SETTINGS)
        hosts = asyncio.create_task(run_until(told, parts, drain_s_max=10))
        await until_s(5 * BUS.answer_timeout_ms / 1000)
        asked = stations[0].asked_again
        await until_s(10 * BUS.answer_timeout_ms / 1000)
        assert stations[0].asked_again > asked
        books = asyncio.create_task(
            run_until(
                told, placement_parts(stations[1:], store, PlacementSettings(), pace=PACE), drain_s_max=10
            )
        )
        await until_s(12 * BUS.answer_timeout_ms / 1000)
        assert len((await store.snapshot_page(0, 10)).providers) == 2
        asked = stations[0].asked_again
        await until_s(20 * BUS.answer_timeout_ms / 1000)
        assert stations[0].asked_again == asked
        told.set()
        await asyncio.gather(hosts, books)
        for station in stations:
            await station.close()

    run_simulated(scenario())


class SilentAboutOneHost:
    """A placement worker that accepts every report, and never answers those of one host."""

    def __init__(self) -> None:
        self.taken: list[ReportInventory] = []

    async def on_reports(self, asks: Sequence[Received[ReportInventory]], _: None) -> list[Said]:
        self.taken += [ask.message for ask in asks]
        verdict = ReportAccepted(shape=1, shape_moved=True)
        return [
            Answer(ask, ReportAnswered(root=ask.message.root, verdict=verdict))
            for ask in asks
            if ask.message.root != root_of(HOST)
        ]

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[None]:
        yield


def test_an_unanswered_report_delays_no_other_and_stays_the_same() -> None:
    script = FaultScript(faults=(Changes(after_s=100, traits_gained=("CUSTOM_LATER",)),))

    async def scenario() -> None:
        broker = await declared(MemoryUnderTest())
        placement = SilentAboutOneHost()
        stations = [Station(broker, name, settings=BUS, asks=True) for name in ("compute", "placement")]
        books = stations[1].worker("placement.work", {ReportInventory: placement.on_reports}, placement)
        told = asyncio.Event()
        parts = (*simulated_parts(stations[0], equal_hosts("c1", 3), SETTINGS, script), books)
        running = asyncio.create_task(run_until(told, parts, drain_s_max=10))
        await until_s(99)
        placement.taken.clear()
        await until_s(101)
        others = [each for each in placement.taken if each.root != root_of(HOST)]
        assert [[one.name for one in each.providers] for each in others] == [
            ["c1-host-00002"],
            ["c1-host-00003"],
        ]
        assert all("CUSTOM_LATER" in (one.traits or ()) for each in others for one in each.providers)
        await until_s(300)
        hushed = {each.sequence for each in placement.taken if each.root == root_of(HOST)}
        assert len(hushed) == 1
        told.set()
        await running
        for station in stations:
            await station.close()

    run_simulated(scenario())


async def _somebody_else_reports(setup: ComputeSetup) -> None:
    """The other reporter's sequence comes from a wrong clock."""
    answer = await setup.client.ask(
        ReportInventory(cell="c1", root=root_of(HOST), providers=(), sequence=2**60)
    )
    assert isinstance(answer, ReportAnswered)
    assert isinstance(answer.verdict, ReportAccepted)


def test_hosts_run_as_a_process_of_their_own_and_stop_when_told(tmp_path: Path) -> None:
    script = tmp_path / "faults.toml"
    script.write_text("spawn_ms = 1.0\n")

    async def story() -> None:
        under_test = await UnixUnderTest.start()
        broker = await declared(under_test)
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "compute_sim",
            env={
                "MOOR_BUS_URL": under_test.url(),
                "MOOR_CELL": "c1",
                "MOOR_COMPUTE_HOSTS": "7",
                "LABORATORY_FAULTS": str(script),
            },
        )
        connection = await broker.connect()
        async with asyncio.timeout(PATIENCE_S):
            while not await connection.depth("placement.work"):
                await asyncio.sleep(0.02)
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
        await connection.close()
        await under_test.close()

    asyncio.run(story())
