"""Draws moves that wait for room, in some seeds that have boots that wait, too. In each cell one instance fills a host. Others are to
move there, or to be unshelved there; one of them is on a host that falls silent, and is evacuated. A boot that needs the whole
host waits for it as well. The host is freed when faults have stopped, or before; some waits are aborted earlier. One more host
falls silent, and what is on it is to be evacuated to a host that is freed only long after the silent one is back. In each cell
three instances are to move at nearly the same time to one host, which has room for one of them.

All of it comes from random sources of its own: everything else in these plans stays as it is.
"""

import random
from collections.abc import Iterator
from uuid import UUID

from msgspec import structs

from laboratory.computes.faults import FallsSilent
from laboratory.computes.hosts import SimulatedHost
from tests.simulation.faults import Crash, Fault
from tests.simulation.plan import CELLS, Boot, Delete, EndOfMove, Evacuation, Plan, PlannedMove

# When the hosts are freed: in one cell under faults, in the other after them.
FREED_S = ((26.0, 32.0), (60.0, 61.0))
# When what still waits ends.
WAITS_END_S = 80.0
# One of these is filled: they have no child providers, and one instance may take a whole one.
FILLED = ("host-1", "host-3", "host-4")
# The instances that move begin on the others.
REGULAR = ("host-1", "host-2", "host-3", "host-4")
# It falls silent, too; no instance that moves begins on it.
RETURNS = f"{CELLS[1]}-host-5"
# A NUMA node has no more, and a host with any other instance has no room for two.
RACER_MB = 32_000
# Apart enough for two parcels, and too little for a scheduler to hear of the other's choice.
RACE_S, RACE_APART_S = (5.0, 10.0), 0.01
SILENT_AFTER_S, SILENT_FOR_S = (14.0, 16.0), (21.0, 23.0)


def with_waiting_moves(plan: Plan, chance: random.Random) -> Plan:
    boots: list[Boot] = []
    deletes: list[Delete] = []
    moves: list[PlannedMove] = []
    for cell, freed_s in zip(CELLS, FREED_S, strict=True):
        host = _host_to_fill(plan, cell)
        size = host.size
        vcpus = int((size.vcpus - size.vcpus_reserved) * size.vcpu_ratio)
        # Before all others; it waits until the host is known.
        full = structs.replace(
            _boot(chance, f"full-of-{cell}", 0.3, vcpus, host.name), wait_s=20, priority=100
        )
        boots.append(full)
        deletes.append(Delete(full.id, 0, chance.uniform(*freed_s)))
        at_s = chance.uniform(8, 12)
        boots.append(
            structs.replace(
                _boot(chance, f"waits-of-{cell}", at_s, vcpus, host.name),
                wait_s=round(WAITS_END_S - at_s),
                priority=5,
            )
        )
        begin_on = [name for name in (f"{cell}-{each}" for each in REGULAR) if name != host.name]
        for name in begin_on:
            mover = _boot(chance, f"mover-of-{name}", 1.2, 1, name)
            boots.append(mover)
            moves.append(_move(mover, host.name, chance))
    silent, evacuation = _evacuated(f"{CELLS[0]}-host-2", chance)
    # Random sources of their own: the rest of these plans stays as it was drawn before.
    of_races = random.Random(f"{plan.seed} races for room")
    of_return = random.Random(f"{plan.seed} source that returns")
    boots.append(_boot(of_return, f"stays-on-{RETURNS}", 1.2, 1, RETURNS))
    returns, waits = _evacuated(RETURNS, of_return)
    waits = structs.replace(waits, to=_host_to_fill(plan, CELLS[1]).name)
    for racers, orders in (_race(plan, cell, of_races) for cell in CELLS):
        boots += racers
        moves += orders
    return structs.replace(
        plan,
        boots=(*plan.boots, *boots),
        deletes=(*plan.deletes, *deletes),
        moves=(*plan.moves, *sorted(moves, key=lambda each: each.at_s)),
        evacuations=(*plan.evacuations, evacuation, waits),
        faults=tuple(sorted((*plan.faults, *_faults(chance)), key=lambda each: each.at_s)),
        script=structs.replace(plan.script, faults=(*plan.script.faults, silent, returns)),
    )


def _race(plan: Plan, cell: str, chance: random.Random) -> tuple[list[Boot], list[PlannedMove]]:
    """Three instances that each need half the memory of a host, and their moves to one host. Schedulers that choose at the
    same time do not know of each other's choice.
    """
    begin_on, to = (f"{cell}-{each}" for each in FILLED if f"{cell}-{each}" != _host_to_fill(plan, cell).name)
    at_s = chance.uniform(*RACE_S)
    boots, moves = [], []
    # A host of two NUMA nodes has room for two.
    for number, host in enumerate((begin_on, f"{cell}-host-2", f"{cell}-host-2")):
        boot = _boot(chance, f"racer-{number}-of-{host}", 0.4, 1, host)
        # It waits until the host is known.
        boot = structs.replace(boot, ram_mb=RACER_MB, wait_s=20, priority=100)
        move = PlannedMove(
            id=UUID(int=chance.getrandbits(128)),
            request=boot.id,
            index=0,
            at_s=at_s + number * RACE_APART_S,
            kind=chance.choice(("migrate", "live-migrate")),
            to=to,
            wait_s=round(WAITS_END_S - at_s),
        )
        boots.append(boot)
        moves.append(move)
    return boots, moves


def _evacuated(host: str, chance: random.Random) -> tuple[FallsSilent, Evacuation]:
    silent = FallsSilent(
        hosts=(host,), after_s=chance.uniform(*SILENT_AFTER_S), for_s=chance.uniform(*SILENT_FOR_S)
    )
    return silent, Evacuation(
        id=UUID(int=chance.getrandbits(128)),
        host=host,
        at_s=silent.after_s + 10,
        until_s=silent.after_s + 18,
        wait_s=60,
    )


def _host_to_fill(plan: Plan, cell: str) -> SimulatedHost:
    """A host of the cell that no other boot fills."""
    taken = {boot.host for boot in plan.boots if boot.name.startswith("full-")}
    names = [name for each in FILLED if (name := f"{cell}-{each}") not in taken]
    return next(host for host in plan.hosts[cell] if host.name == names[0])


def _boot(chance: random.Random, name: str, at_s: float, vcpus: int, host: str) -> Boot:
    return Boot(
        id=UUID(int=chance.getrandbits(128)),
        name=name,
        at_s=at_s,
        count=1,
        vcpus=vcpus,
        ram_mb=1024,
        host=host,
    )


def _move(mover: Boot, to: str, chance: random.Random) -> PlannedMove:
    kind = chance.choice(("migrate", "live-migrate", "offload", "offload"))
    at_s = chance.uniform(3, 12)
    aborts = (EndOfMove("abort", chance.uniform(2, 8), when_arrived=False),)
    ends = aborts if chance.random() < 0.25 else ()
    return PlannedMove(
        id=UUID(int=chance.getrandbits(128)),
        request=mover.id,
        index=0,
        at_s=at_s,
        kind=kind,  # type: ignore[arg-type]
        ends=() if kind == "offload" else ends,
        confirm_s=0,
        to=to,
        wait_s=round(WAITS_END_S - at_s),
        priority=chance.choice((0, 50, 50)),
        is_repeated=chance.random() < 0.3,
        unshelved_after_s=1.0 if kind == "offload" else None,
        unshelve_ends=ends if kind == "offload" else (),
    )


def _faults(chance: random.Random) -> Iterator[Fault]:
    """All schedulers die once while moves wait."""
    for number in (1, 2):
        yield Crash(chance.uniform(34, 40), f"scheduler-{number}", chance.uniform(0.5, 2))
