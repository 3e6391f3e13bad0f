"""Draws moves of every kind, to every end, and moves that wait for room."""

import random
from collections.abc import Iterator
from uuid import UUID

from msgspec import structs

from bus.messages.build import MoveKind
from laboratory.computes.faults import (
    Dies,
    FailsToReceive,
    FailsToStart,
    FailsToStop,
    FallsSilent,
    ReceivesSlowly,
    StartsSlowly,
    StopsSlowly,
)
from laboratory.computes.faults import Fault as HostFault
from laboratory.computes.hosts import SimulatedHost
from tests.simulation.faults import Crash, Duplicate, Fault, Nack
from tests.simulation.plan import (
    CELLS,
    Boot,
    Delete,
    EndOfMove,
    Evacuation,
    Plan,
    PlannedMove,
    Rebuild,
    boot_on,
)

# Some of these seeds also offload instances.
OFFLOADS_EVERY, OFFLOADS_AT = 160, (50, 67, 127, 130)
# Of the instances that are booted.
SHARE_MOVED = 0.6
# They are not moved: their boots wait for room that a move would take or free at another time than planned.
NOT_MOVED = ("full-", "waits-", "early", "probe")
BUSY_S = (2.0, 38.0)
KINDS: tuple[MoveKind, ...] = (
    "migrate",
    "migrate",
    "live-migrate",
    "live-migrate",
    "resize",
    "resize",
    "shelve",
)
OFFLOADS: tuple[MoveKind, ...] = ("offload", "offload", "offload", "offload", "shelve")
UNSHELVE_ENDS: tuple[tuple[EndOfMove, ...], ...] = (
    (EndOfMove("abort", 0.0, when_arrived=False),),
    (EndOfMove("abort", 0.3, when_arrived=False),),
    (EndOfMove("delete", 0.0, when_arrived=False),),
    (EndOfMove("delete", 0.3, when_arrived=False),),
    (),
    (),
    (),
)
# A host that fails to start an instance is asked again until the deadline: most unshelves fail by a short one.
UNSHELVE_DEADLINES_S = (1, 3, 12)
# The ends that clients ask for, and how long after the move was taken; sent at once, or when the instance has arrived.
ENDS: tuple[tuple[EndOfMove, ...], ...] = (
    (EndOfMove("confirm"),),
    (EndOfMove("confirm", 0.3),),
    (EndOfMove("revert"),),
    (EndOfMove("revert", 2.0),),
    (EndOfMove("confirm"), EndOfMove("revert")),
    (EndOfMove("revert"), EndOfMove("confirm", 0.05)),
    (EndOfMove("revert"), EndOfMove("delete", 0.05)),
    (EndOfMove("abort", 0.0, when_arrived=False),),
    (EndOfMove("abort", 0.1, when_arrived=False),),
    (EndOfMove("abort", 0.6, when_arrived=False),),
    (EndOfMove("delete", 0.0, when_arrived=False),),
    (EndOfMove("delete", 0.15, when_arrived=False),),
    (EndOfMove("delete", 0.7, when_arrived=False),),
    (EndOfMove("delete", 0.1),),
    (EndOfMove("abort", 0.3, when_arrived=False), EndOfMove("delete", 0.4, when_arrived=False)),
    (),
    (),
    (),
)
KEYS = (
    "move.request",
    "move.end",
    "move.",
    "settle",
    "stop.",
    "stopped",
    "start",
    "receive",
    "instance.moved",
)
COPIED_AFTER_S = (0.0, 0.3, 6.0)
KEYS_OF_REBUILDS = ("instance.rebuild", "rebuild.", "respawn.", "redeployed.")
# Longer than a host must be silent to count as down.
SILENT_S = (17.0, 22.0)
# An evacuation begins some time after its host has fallen silent: before it counts as down, or when it comes back.
EVACUATED_AFTER_S = (10.0, 19.0)
EVACUATED_FOR_S = 9.0
# Much longer than it takes until a host counts as down.
DOWN_S = (27.0, 32.0)


def has_offloads(seed: int) -> bool:
    return seed % OFFLOADS_EVERY in OFFLOADS_AT


def with_moves(plan: Plan, chance: random.Random) -> Plan:
    silent: list[FallsSilent | Dies] = [silence_of_a_host(plan, cell, chance) for cell in plan.hosts]
    # Most silent hosts come back before they count as down, or have no instances. These stay down until they are evacuated.
    of_silence = random.Random(f"{plan.seed} hosts down for long")
    more = [
        structs.replace(silence_of_a_host(plan, cell, of_silence), for_s=of_silence.uniform(*DOWN_S))
        for cell in plan.hosts
    ]
    dying: list[FallsSilent | Dies] = [each for each in plan.script.faults if isinstance(each, Dies)]
    evacuations = (
        *(evacuation_after(each, chance) for each in silent + dying),
        *(evacuation_after(each, of_silence) for each in more),
    )
    faults = (*plan.faults, *faults_of_keys(chance, KEYS, COPIED_AFTER_S, may_be_stored=True))
    of_rebuilds = random.Random(f"{plan.seed} rebuilds on hosts")
    of_unshelves = random.Random(f"{plan.seed} unshelves")
    moves = [
        structs.replace(each, unshelve_deadline_s=of_unshelves.choice(UNSHELVE_DEADLINES_S))
        for each in _moves(plan, chance, offloads=has_offloads(plan.seed))
    ]
    return structs.replace(
        plan,
        moves=tuple(sorted(moves, key=lambda each: each.at_s)),
        evacuations=evacuations,
        rebuilds=tuple(sorted(_rebuilds(plan, of_rebuilds), key=lambda each: each.at_s)),
        faults=tuple(
            sorted(
                (*faults, *faults_of_keys(of_rebuilds, KEYS_OF_REBUILDS, COPIED_AFTER_S)),
                key=lambda each: each.at_s,
            )
        ),
        script=structs.replace(
            plan.script,
            receive_ms=chance.choice((50.0, 300.0, 900.0)),
            stop_ms=chance.choice((20.0, 300.0)),
            start_ms=chance.choice((20.0, 300.0)),
            faults=(*plan.script.faults, *silent, *more, *_host_faults(chance)),
        ),
    )


def _moves(plan: Plan, chance: random.Random, *, offloads: bool) -> Iterator[PlannedMove]:
    draw = _offload if offloads else _move
    for boot in plan.boots:
        if boot.name.startswith(NOT_MOVED):
            continue
        for index in range(boot.count):
            if chance.random() < SHARE_MOVED:
                at_s = min(
                    BUSY_S[1], boot.at_s + chance.choice((0.5, 2.0, 6.0, 12.0)) * chance.uniform(0.5, 1.5)
                )
                yield draw(boot, index, at_s, chance)
                if chance.random() < 0.25:
                    # Two at once, or one after the other.
                    again_s = at_s + chance.choice((0.0, 0.0, 0.05, 5.0))
                    yield draw(boot, index, min(BUSY_S[1], again_s), chance)


def _offload(boot: Boot, index: int, at_s: float, chance: random.Random) -> PlannedMove:
    """Turn most planned moves into an offload, or into a shelve that an offload follows, and in most cases plan the
    way back.
    """
    move = _move(boot, index, at_s, chance)
    if chance.random() < 0.4:
        return move
    kind = chance.choice(OFFLOADS)
    return structs.replace(
        move,
        kind=kind,
        stays=False,
        unshelved_after_s=chance.choice((None, 0.0, 1.0, 4.0, 8.0)),
        unshelve_ends=chance.choice(UNSHELVE_ENDS),
        offloaded_after_s=chance.choice((None, 0.0, 1.0)) if kind == "shelve" else None,
    )


def _rebuilds(plan: Plan, chance: random.Random) -> Iterator[Rebuild]:
    for boot in plan.boots:
        if boot.name.startswith(NOT_MOVED):
            continue
        for index in range(boot.count):
            for _ in range(chance.choice((0, 0, 0, 0, 1, 2))):
                at_s = min(BUSY_S[1], boot.at_s + chance.uniform(0, 25))
                repeated_at_s = tuple(at_s + chance.uniform(0, 8) for _ in range(chance.random() < 0.3))
                yield Rebuild(UUID(int=chance.getrandbits(128)), boot.id, index, at_s, repeated_at_s)


def _move(boot: Boot, index: int, at_s: float, chance: random.Random) -> PlannedMove:
    kind = chance.choice(KINDS)
    return PlannedMove(
        id=UUID(int=chance.getrandbits(128)),
        request=boot.id,
        index=index,
        at_s=at_s,
        kind=kind,
        ends=chance.choice(ENDS),
        vcpus=chance.choice((1, 2, 4, 6)) if kind == "resize" else 0,
        ram_mb=chance.choice((1024, 2048, 8192)) if kind == "resize" else 0,
        root_gb=chance.choice((1, 2)) if kind == "resize" else 0,
        needs_gold=boot.needs_gold,
        stays=kind == "resize" and chance.random() < 0.4,
        deadline_s=chance.choice((3, 12, 30, 30)),
        confirm_s=chance.choice((0, 2, 6)),
        unshelved_after_s=chance.choice((0.0, 1.0, 4.0))
        if kind == "shelve" and chance.random() < 0.7
        else None,
        is_repeated=chance.random() < 0.2,
    )


def silence_of_a_host(plan: Plan, cell: str, chance: random.Random) -> FallsSilent:
    """A long silence of one host of the cell; of a host without other faults, if there is one."""
    faulty = {name for each in plan.script.faults for name in each.hosts}
    names = [host.name for host in plan.hosts[cell] if host.name not in faulty] or [plan.hosts[cell][0].name]
    return FallsSilent(
        hosts=(chance.choice(names),), after_s=chance.uniform(5, 18), for_s=chance.uniform(*SILENT_S)
    )


def evacuation_after(fault: FallsSilent | Dies, chance: random.Random) -> Evacuation:
    at_s = fault.after_s + chance.uniform(*EVACUATED_AFTER_S)
    return Evacuation(
        id=UUID(int=chance.getrandbits(128)), host=fault.hosts[0], at_s=at_s, until_s=at_s + EVACUATED_FOR_S
    )


def _host_faults(chance: random.Random) -> Iterator[HostFault]:
    """Faults of hosts that stop, start and receive instances. Failures to start are over after a while, so hosts can
    then start what they have stopped.
    """
    yield FailsToReceive(probability=0.15)
    yield FailsToStop(probability=0.08)
    yield FailsToStart(probability=0.3, after_s=chance.uniform(2, 10), for_s=chance.uniform(10, 30))
    yield ReceivesSlowly(receive_ms=chance.choice((2_000.0, 8_000.0)), probability=0.08)
    yield StopsSlowly(stop_ms=chance.choice((2_000.0, 7_000.0)), probability=0.06)
    yield StartsSlowly(start_ms=chance.choice((2_000.0, 7_000.0)), probability=0.1)


def faults_of_keys(
    chance: random.Random, keys: tuple[str, ...], after_s: tuple[float, ...], *, may_be_stored: bool = False
) -> Iterator[Fault]:
    """Parcels of each key come again, at once and later, and some are refused."""
    for key in keys:
        for each_s in after_s:
            yield Duplicate(chance.uniform(*BUSY_S), "", key, each_s)
        at_s, parcels = chance.uniform(*BUSY_S), chance.choice((1, 2))
        yield Nack(at_s, "", key, parcels, is_stored=may_be_stored and chance.random() < 0.5)


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
            boot_on(chance, f"full-of-{cell}", 0.3, host.name, vcpus), wait_s=20, priority=100
        )
        boots.append(full)
        deletes.append(Delete(full.id, 0, chance.uniform(*freed_s)))
        at_s = chance.uniform(8, 12)
        boots.append(
            structs.replace(
                boot_on(chance, f"waits-of-{cell}", at_s, host.name, vcpus),
                wait_s=round(WAITS_END_S - at_s),
                priority=5,
            )
        )
        begin_on = [name for name in (f"{cell}-{each}" for each in REGULAR) if name != host.name]
        for name in begin_on:
            mover = boot_on(chance, f"mover-of-{name}", 1.2, name)
            boots.append(mover)
            moves.append(_waiting_move(mover, host.name, chance))
    silent, evacuation = _evacuated(f"{CELLS[0]}-host-2", chance)
    # Random sources of their own: the rest of these plans stays as it was drawn before.
    of_races = random.Random(f"{plan.seed} races for room")
    of_return = random.Random(f"{plan.seed} source that returns")
    boots.append(boot_on(of_return, f"stays-on-{RETURNS}", 1.2, RETURNS))
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
        faults=tuple(sorted((*plan.faults, *_faults_of_waits(chance)), key=lambda each: each.at_s)),
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
        boot = boot_on(chance, f"racer-{number}-of-{host}", 0.4, host)
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


def _waiting_move(mover: Boot, to: str, chance: random.Random) -> PlannedMove:
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


def _faults_of_waits(chance: random.Random) -> Iterator[Fault]:
    """All schedulers die once while moves wait."""
    for number in (1, 2):
        yield Crash(chance.uniform(34, 40), f"scheduler-{number}", chance.uniform(0.5, 2))
