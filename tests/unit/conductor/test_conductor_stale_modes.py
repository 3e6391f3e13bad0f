"""A conductor that takes a host for dead, though another conductor of the cell has set it up again; or that has just started.

Nothing is destroyed on a dead host. After it is up and clean, nobody asks it what it has: what is left there then stays.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, cast

import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import InstanceDeleted
from bus.messages.cell import DestroyInstance, SpawnInstance
from bus.messages.placement import ReleaseClaim, SwapClaim
from bus.workers.station import Station
from cell_conductor.core.decide import Due, HostsLost, Input
from cell_conductor.core.rows import ALL_UP, CellHost, HostStates
from cell_conductor.handlers import Decider
from cell_conductor.hosts import CellHostWatch
from cell_conductor.settings import PACE
from engine.hosts import HostMode
from tests.stores_in_memory import MemoryConductorStore
from tests.unit.conductor.cell import (
    NOON,
    ONE,
    REMOVE,
    RULES,
    Cell,
    drawing,
    failed,
    host,
    kinds,
    place,
    spawned,
)
from tests.unit.conductor.test_conductor_hosts import set_, states
from tests.unit.conductor.test_conductor_moves import move

pytestmark = pytest.mark.asyncio


class Conductor:
    """A decider, and how often it has read the modes of hosts."""

    def __init__(self, known: HostStates = ALL_UP, *, modes_are_read: bool = True) -> None:
        self.store = MemoryConductorStore()
        self.decider = Decider(RULES, lambda: NOON + timedelta(seconds=1), drawing())
        self.decider.hosts = known
        self.decider.modes_are_read = modes_are_read
        self.readings = 0

    async def set(self, *hosts: CellHost) -> None:
        async with self.store.transaction() as tx:
            await tx.save_hosts(hosts)

    async def hear(self, cell: Cell, *inputs: Input) -> list[Message]:
        async with self.store.transaction() as tx:
            read = tx.lock_hosts

            async def counted(hosts: object) -> object:
                self.readings += 1
                return await read(hosts)  # type: ignore[arg-type]

            tx.lock_hosts = counted  # type: ignore[method-assign, assignment]
            decision, _ = await self.decider.decide(tx, cell.rows, inputs)
        return [each.message for each in decision.said]


async def test_an_instance_is_destroyed_on_a_host_that_another_conductor_has_set_up_again() -> None:
    conductor = Conductor(states(set_("h1", "dead")))
    await conductor.set(set_("h1", "up", number=2, must_clean=True, cleaned=2))

    said = await conductor.hear(Cell(place(), spawned(1, "h1")), REMOVE)

    assert kinds(said) == [DestroyInstance]
    assert not conductor.decider.hosts.is_dead(host("h1"))


async def test_the_source_of_an_evacuation_cleans_up_if_it_is_up_again() -> None:
    conductor = Conductor(states(set_("h1", "dead")))
    await conductor.set(set_("h1", "up", number=2, must_clean=True, cleaned=2))
    cell = Cell(place(), spawned(1, "h1"), move("evacuate"))

    said = await conductor.hear(cell, REMOVE)

    assert DestroyInstance in kinds(said)


async def test_a_cleanup_waits_for_a_host_that_is_up_again() -> None:
    conductor = Conductor(states(set_("h1", "dead")))
    await conductor.set(set_("h1", "up", number=2, must_clean=True, cleaned=2))
    cell = Cell(place(), spawned(1, "h1"), REMOVE)

    assert InstanceDeleted not in kinds(await conductor.hear(cell, HostsLost(ONE)))


async def test_on_a_host_that_is_dead_a_delete_ends_at_once() -> None:
    conductor = Conductor(states(set_("h1", "dead")))
    await conductor.set(set_("h1", "dead"))

    said = await conductor.hear(Cell(place(), spawned(1, "h1")), REMOVE)

    assert kinds(said) == [ReleaseClaim, InstanceDeleted]
    assert conductor.readings == 1


async def test_modes_are_read_again_only_for_instances_on_dead_hosts() -> None:
    conductor = Conductor(states(set_("h1", "dead"), set_("h3", "down")))
    cell = Cell(place("h1"), spawned(1, "h1"))
    cell.rows = {
        id_: structs.replace(
            row, host=structs.replace(row.host, share=structs.replace(row.host.share, host=host("h2")))
        )
        for id_, row in cell.rows.items()
        if row.host is not None
    }

    await conductor.hear(cell, REMOVE)

    assert conductor.readings == 0


@pytest.mark.parametrize("mode", ["draining", "down", "dead"])
async def test_a_conductor_that_has_just_started_builds_nothing_on_an_alternate_that_is_not_up(
    mode: HostMode,
) -> None:
    conductor = Conductor(modes_are_read=False)
    await conductor.set(set_("h2", mode))
    cell = Cell(place("h2", "h3"), failed(1, "h1"))

    async with conductor.store.transaction() as tx:
        decision, _ = await conductor.decider.decide(tx, cell.rows, [Due(ONE)])

    (swap,) = decision.swaps
    assert isinstance(swap, SwapClaim)
    assert swap.share.host == host("h3")


async def test_a_conductor_that_has_just_started_builds_nothing_on_a_host_that_is_down() -> None:
    conductor = Conductor(modes_are_read=False)
    await conductor.set(set_("h1", "down"))

    said = await conductor.hear(Cell(), place("h2"))

    assert kinds(said) == []
    assert conductor.readings == 2


async def test_a_conductor_that_has_just_started_builds_where_no_mode_was_ever_set() -> None:
    conductor = Conductor(modes_are_read=False)

    assert kinds(await conductor.hear(Cell(), place("h2"))) == [SpawnInstance]
    assert conductor.readings == 1


class RecordedTimers:
    """Notes what the host watch has it carry out."""

    def __init__(self) -> None:
        self.carried_out: list[Input] = []

    async def carry_out(self, inputs: Sequence[Input]) -> None:
        self.carried_out += inputs


async def test_rows_that_wait_for_a_lost_host_are_read_though_a_decision_knew_of_it_before() -> None:
    conductor, timers = Conductor(states(set_("h1", "down")), modes_are_read=False), RecordedTimers()
    await conductor.set(set_("h1", "down"))
    async with conductor.store.transaction() as tx:
        await tx.save([Cell(place("h2")).row], (), ())
    station = Station(MemoryBroker().as_user(), "conductor")
    watch = CellHostWatch(station, conductor.store, cast("Any", timers), conductor.decider, PACE)

    await watch._look()  # noqa: SLF001 - as its part does at the start
    await station.close()

    assert timers.carried_out == [HostsLost(ONE)]
    assert conductor.decider.modes_are_read
