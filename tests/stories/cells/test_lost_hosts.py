"""Hosts that are lost: silent, set down or dead. In the cell alone, with no scheduler; and through all levels, by an operator."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from bus.messages.hosts import (
    AskHosts,
    HeldAttempt,
    HostChanged,
    HostCleaned,
    HostsAlive,
    HostSet,
    HostsFound,
    SetHost,
    SetHostInCell,
)
from engine.hosts import HostMode, HostSetting, HostState
from kit.parts import PartState, Periodic, Supervised, every_part
from laboratory.computes.hosts import HostSize, SimulatedHost
from tests.contracts.stage import SETTINGS
from tests.stories.cells.cell_setup import (
    CellSetup,
    cell_setup,
    order_for,
    removal,
)
from tests.stories.cloud import CELL_PACE, Cloud, cloud, funnel_of
from tests.stories.layouts import ONE_BROKER, STAGES
from tests.stories.scripted import BUILD, SILENT, host_id
from tests.waiting import Clock, until


async def move(clock_s: Clock[float], watching: Periodic, seconds: int, step: int = 10) -> None:
    """Silence is measured by this clock: it moves in steps that the conductor sees one by one."""
    for _ in range(0, seconds, step):
        clock_s.pass_s(step)
        await until_looked(watching)


async def until_looked(watching: Periodic) -> None:
    """Wait until the conductor has looked once more, from beginning to end."""
    # One run may have begun before.
    enough = watching.status.runs + 2

    def looked() -> bool:
        watching.wake()
        return watching.status.runs >= enough and watching.status.state is PartState.WELL

    await until(looked, "the conductor has looked")


@asynccontextmanager
async def conducting(setup: CellSetup, clock_s: Clock[float]) -> AsyncIterator[Periodic]:
    async with setup.conducting(clock_s=clock_s) as parts:
        found = {each.status.name: each for each in every_part(parts) if isinstance(each, Supervised)}
        # Silence counts from then on; a clock that has moved before would have to move further.
        beats = found["hear the heartbeats of hosts"]
        await until(lambda: beats.status.state is PartState.WELL, "the conductor listens")
        watching = found["watch the hosts"]
        assert isinstance(watching, Periodic)
        yield watching


@ONE_BROKER
async def test_with_no_scheduler_a_boot_on_a_host_that_fell_silent_takes_its_alternate(
    bus: str, books: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So do all that became due at the same moment, though they are read one by one."""
    monkeypatch.setattr("cell_conductor.store_sql.WAITING_PAGE", 1)
    clock_s = Clock(0.0)
    async with (
        cell_setup(bus, books, conducted=False) as setup,
        conducting(setup, clock_s) as watching,
    ):
        await setup.hosts(h1=SILENT, h2=BUILD)
        orders = [order_for(number, "h1", "h2") for number in range(1, 5)]
        for order in orders:
            await setup.place(order)
        await until(lambda: len(setup.computes.spawns) == len(orders))

        # The clock of attempts stands still: only the silence of the host can end this one.
        await move(clock_s, watching, int(SETTINGS.host_down_s) + 10)

        for order in orders:
            end = await setup.told(order)
            assert (end.state, end.host, end.attempt) == ("active", "h2", 2)
            assert [each.reason for each in end.failures] == ["the host's heartbeats have stopped"]
        assert await setup.cloud.used() == {"h1": 4, "h2": 4}


def the_word(name: str, mode: HostMode, number: int) -> SetHostInCell:
    return SetHostInCell(
        cell="c1",
        host=host_id(name),
        name=name,
        setting=HostSetting(mode=mode, reason="fire", number=number),
        must_clean=number > 2,
    )


@pytest.mark.hits("a host that was dead has what is not its own: it is asked again")
@ONE_BROKER
async def test_all_that_waits_for_a_dead_host_goes_on_and_when_it_returns_it_keeps_only_its_own(
    bus: str, books: str
) -> None:
    async with (
        cell_setup(bus, books, conducted=False) as setup,
        conducting(setup, Clock(0.0)) as watching,
        setup.cloud.listening("host.cleaned.c1") as cleaned,
    ):
        await setup.hosts(h1=BUILD, h2=BUILD)
        kept, deleted, moved, building = (order_for(number, "h1", "h2") for number in (1, 2, 3, 4))
        for order in (kept, deleted):
            await setup.place(order)
            await setup.told(order)
        setup.computes.script["h1"] = SILENT
        # A share that is held for the host: what was being built there when it was set down.
        await setup.place(moved)
        await until(lambda: len(setup.computes.spawns) == 3)
        await setup.cloud.send(the_word("h1", "down", 1))
        assert (await setup.told(moved)).host == "h2"
        await setup.cloud.send(the_word("h1", "up", 2))
        await until(
            setup.store.hosts,
            "the conductor has this word",
            lambda found: [each.word.setting.number for each in found] == [2],
        )
        await until_looked(watching)
        # A build in flight, and a delete that waits.
        await setup.place(building)
        await until(lambda: len(setup.computes.spawns) == 5)
        await setup.cloud.send(removal(deleted))
        await setup.until_row(deleted, lambda row: row.state == "deleting")
        assert await setup.cloud.used() == {"h1": 4, "h2": 1}

        await setup.cloud.send(the_word("h1", "dead", 3))

        assert (await setup.told_deleted(deleted)).reason == ""
        assert (await setup.told(building)).host == "h2"
        await setup.cloud.until_used(h1=1, h2=2)
        # It still has all that it had, and is heard again.
        lost = [HeldAttempt(instance=each.instance, attempt=1) for each in (deleted, moved, building)]
        setup.computes.held |= {(host_id("h1"), each) for each in lost}
        own = {(host_id("h1"), HeldAttempt(instance=kept.instance, attempt=1))}
        await beat_until(
            setup, lambda: {each for each in setup.computes.held if each[0] == host_id("h1")} == own
        )
        assert cleaned == []
        await setup.cloud.send(the_word("h1", "up", 4))
        await beat_until(setup, lambda: bool(cleaned))
        assert cleaned[0] == HostCleaned(cell="c1", host=host_id("h1"), number=4)
        assert await setup.cloud.used() == {"h1": 1, "h2": 2}


async def beat_until(setup: CellSetup, condition: Callable[[], bool]) -> None:
    async def beaten() -> bool:
        await setup.cloud.send(HostsAlive(cell="c1", hosts=(host_id("h1"),)))
        return condition()

    await until(beaten)


@STAGES
async def test_an_operator_sets_a_host_and_every_level_follows(bus: str, books: str) -> None:
    host = SimulatedHost(name="h1", size=HostSize(vcpus=8))
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        setup.cell(host, pace=structs.replace(CELL_PACE, look_s=0.1)),
        setup.listening("host.changed.*") as heard,
    ):
        first = await setup.boot(1)

        await set_host(setup, "draining", "new disks")
        assert await refusal(setup, 2) == ("enabled", "h1: is draining: new disks")
        await set_host(setup, "down", "fire")
        assert await refusal(setup, 3) == ("up", "h1: is set down: fire")
        dead = await set_host(setup, "dead", "fire")
        assert (dead.up, dead.must_clean) == (False, True)
        # The host works on, but nobody waits for it.
        number = dead.setting.number
        await until(lambda: is_told(setup, number), "its cell knows that it is dead")
        await setup.delete(first.id)
        await setup.until_used(h1=0)
        assert await refusal(setup, 4) == ("up", "h1: is dead: fire")

        back = await set_host(setup, "up", "")
        assert (back.setting.number, back.must_clean) == (number + 1, True)
        await setup.until_reported("h1")
        assert (await setup.boot(5)).host == "h1"

        def modes() -> list[tuple[HostMode, bool]]:
            hosts = [each.host for each in heard if isinstance(each, HostChanged)]
            return list(dict.fromkeys([(each.setting.mode, each.must_clean) for each in hosts]))

        # The event that it has cleaned up may be on its way.
        await until(lambda: modes()[-1:] == [("up", False)], "the last event is heard")
        changed = [each.host for each in heard if isinstance(each, HostChanged)]
        assert modes() == [
            ("draining", False),
            ("down", False),
            ("dead", True),
            ("up", True),
            ("up", False),
        ]
        assert {each.setting.by for each in changed} <= {setup.brokers.at_api("operator").user}
        assert all(each.setting.at is not None for each in changed)


async def set_host(setup: Cloud, mode: HostMode, reason: str) -> HostState:
    return (await setup.ask(SetHost(host="h1", mode=mode, reason=reason, sure=True), HostSet)).host


async def is_told(setup: Cloud, number: int) -> bool:
    return (await setup.ask(AskHosts(name="h1"), HostsFound)).hosts[0].told >= number


async def refusal(setup: Cloud, number: int) -> tuple[str, str]:
    """The step that removed the only host, and why."""
    (step,) = funnel_of(await setup.boot(number, "error")).steps
    return step.step, step.example
