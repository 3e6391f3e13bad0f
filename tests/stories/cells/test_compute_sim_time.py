"""Long runs of simulated hypervisors on the simulated clock: hours of faults take no real time, and times are exact.

And `python -m compute_sim` as a process of its own.
"""

import asyncio
import signal
import sys
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.books import CreateProvider, SetInventories, WriteAnswered
from bus.messages.hosts import HeldAttempt, HostHolds
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
from compute_sim.settings import USUAL_PACE, ComputeSettings
from engine.inventories import ProviderId, ReportedInventory, ResourceAmount, Share
from engine.refusals import AlreadyClaimed, Claimed
from kit.clock import now
from laboratory.computes.driver import root_of
from laboratory.computes.faults import Changes, FallsSilent, FaultScript
from laboratory.computes.hosts import equal_hosts
from placement_worker.settings import FeedPace
from tests.contracts.memory_under_test import UnixUnderTest
from tests.contracts.small_world import connected
from tests.contracts.stage import declared
from tests.running import closing
from tests.simulation.loop import simulated, until_s
from tests.stories.cells.test_compute_sim import compute_setup, spawn
from tests.waiting import PATIENCE_S, until

HOST = "c1-host-00001"
# No other writer changes these books, so the worker need not poll its log many times a second.
PACE = FeedPace(poll_s=10.0)
SETTINGS = ComputeSettings(cell="c1", beat_s=10, facts_every_s=5)
# A reshape that was refused has been tried again.
NESTED_S = 100 + USUAL_PACE.reshape_again_s + 40


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


@simulated
async def test_a_silent_host_sends_no_heartbeats_and_lists_what_it_has_when_it_is_back() -> None:
    script = FaultScript(spawn_ms=5, faults=(FallsSilent(hosts=(HOST,), after_s=50, for_s=60),))
    async with (
        compute_setup("memory", PACE) as setup,
        setup.computing(equal_hosts("c1", 2), script, SETTINGS),
    ):
        await setup.order(spawn(1, HOST))
        await until_s(60)
        setup.heard.clear()
        await until_s(100)
        assert {*setup.beats()} == {frozenset({root_of("c1-host-00002")})}
        assert setup.listed == []
        await until_s(150)
        has = HeldAttempt(instance=spawn(1, HOST).instance, attempt=1)
        assert setup.listed == [HostHolds(cell="c1", host=root_of(HOST), number=0, attempts=(has,))]


@pytest.mark.hits("reshape of host %s refused, tried again with its next change and every %g s: %s")
@simulated
async def test_a_refused_reshape_is_told_and_tried_again_after_a_while_or_with_the_next_change() -> None:
    script = FaultScript(
        faults=(
            Changes(hosts=(HOST,), after_s=100, disk_gb=-10_000),
            Changes(hosts=(HOST,), after_s=110, traits_gained=("CUSTOM_LATER",)),
            Changes(hosts=(HOST,), after_s=NESTED_S, numa_nodes=2),
        )
    )
    async with (
        compute_setup("memory", PACE) as setup,
        setup.computing(equal_hosts("c1", 2), script, SETTINGS),
    ):
        await until_s(50)
        # The question is repeated when the simulated clock passes its timeout.
        assert isinstance((await setup.cloud.ask(claim(5), ClaimAnswered)).verdict, Claimed | AlreadyClaimed)
        await until_s(150)
        refused = [each for each in setup.heard if isinstance(each, InventoryRefused)]
        assert [type(each.verdict) for each in refused] == [InventoryInUse, InventoryInUse]
        assert "DISK_GB" in (await setup.providers())[HOST].inventories
        assert f"consumer {claim(5).consumer} holds DISK_GB 5 of {HOST}" in setup.facts()[HOST].report_refused
        over = ReleaseClaim(cell="c1", consumer=claim(5).consumer, attempt=1, issued_at=now())
        await setup.client.publisher.send(over)
        await until_s(155)
        assert "DISK_GB" in (await setup.providers())[HOST].inventories
        await until_s(NESTED_S - 20)
        after = (await setup.providers())[HOST]
        assert "DISK_GB" not in after.inventories
        assert "CUSTOM_LATER" in after.traits
        assert setup.facts()[HOST].report_refused == ""

        # A consumer holds a CPU of the host, and a card that an administrator has made below it.
        card, cards = ProviderId(UUID(int=77)), {"VGPU": ReportedInventory(total=1)}
        await setup.cloud.ask(CreateProvider(id=card, name="card", parent=root_of(HOST)), WriteAnswered)
        await setup.cloud.ask(SetInventories(provider=card, generation=0, inventories=cards), WriteAnswered)
        held = (*spawn(1, HOST).share.amounts, ResourceAmount(provider=card, resource="VGPU", amount=1))
        again = structs.replace(claim(5), attempt=2, share=Share(host=root_of(HOST), amounts=held))
        assert isinstance((await setup.cloud.ask(again, ClaimAnswered)).verdict, Claimed | AlreadyClaimed)
        await until_s(NESTED_S + 10)
        nested = await setup.providers()
        assert nested[f"{HOST}_NUMA0"].inventories["VCPU"].used == 1
        assert nested["card"].inventories["VGPU"].used == 1


@pytest.mark.hits("another reporter has reported host %s: reporting it completely")
@simulated
async def test_a_compute_reports_its_host_in_full_after_another_reporter_did() -> None:
    script = FaultScript(faults=(Changes(hosts=(HOST,), after_s=100, traits_gained=("CUSTOM_MINE",)),))
    async with (
        compute_setup("memory", PACE) as setup,
        setup.computing(equal_hosts("c1", 1), script, SETTINGS),
    ):
        await until_s(50)
        told = (await setup.providers())[HOST]
        # The other reporter's sequence comes from a wrong clock.
        others = ReportInventory(cell="c1", root=root_of(HOST), providers=(), sequence=2**60)
        answer = await setup.cloud.ask(others, ReportAnswered)
        assert isinstance(answer.verdict, ReportAccepted)
        await until_s(110)
        after = (await setup.providers())[HOST]
        assert "CUSTOM_MINE" in after.traits
        assert after.inventories == told.inventories


async def test_hosts_run_as_a_process_of_their_own_and_stop_when_told(tmp_path: Path) -> None:
    script = tmp_path / "faults.toml"
    script.write_text("spawn_ms = 1.0\n")
    async with (
        closing(await UnixUnderTest.start()) as (under_test,),
        connected(await declared(under_test)) as connection,
    ):
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
        await until(lambda: connection.depth("placement.work"), "the hosts report")
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), PATIENCE_S) == 0
