"""Draws one seed in forty in which clients stop, start and reboot instances, and move them meanwhile: orders come in any state,
some of them twice, and hosts fail to stop and to start. One host of each cell is silent for long, and is evacuated.
"""

import random
from collections.abc import Iterator
from uuid import UUID

from msgspec import structs

from bus.messages.build import MoveKind
from laboratory.computes.faults import FailsToStart, FailsToStop, StartsSlowly, StopsSlowly
from tests.simulation.drawing_moves import evacuation_after, silence_of_a_host
from tests.simulation.faults import Duplicate, Fault, Nack
from tests.simulation.plan import Boot, Plan, Switch

KINDS: tuple[MoveKind, ...] = (
    *("stop", "stop", "stop", "start", "start", "start", "reboot"),
    *("migrate", "resize"),
)
# How many orders an instance gets, and how long after its boot.
ORDERS = (0, 2, 4, 6)
LATER_S, BUSY_UNTIL_S = 25.0, 38.0
KEYS = ("move.request", "move.", "stop.", "stopped", "start", "receive", "instance.moved", "instance.active")


def with_power(plan: Plan, chance: random.Random) -> Plan:
    faults = (*plan.faults, *_faults(chance))
    silent = [silence_of_a_host(plan, cell, chance) for cell in plan.hosts]
    return structs.replace(
        plan,
        evacuations=tuple(evacuation_after(each, chance) for each in silent),
        switches=tuple(sorted(_switches(plan, chance), key=lambda each: each.at_s)),
        faults=tuple(sorted(faults, key=lambda each: each.at_s)),
        script=structs.replace(
            plan.script,
            stop_ms=chance.choice((20.0, 300.0)),
            start_ms=chance.choice((20.0, 300.0)),
            faults=(
                *plan.script.faults,
                *silent,
                FailsToStop(probability=0.08),
                FailsToStart(probability=0.2, after_s=chance.uniform(2, 10), for_s=chance.uniform(10, 20)),
                StopsSlowly(stop_ms=3_000.0, probability=0.08),
                StartsSlowly(start_ms=3_000.0, probability=0.08),
            ),
        ),
    )


def _switches(plan: Plan, chance: random.Random) -> Iterator[Switch]:
    for boot in plan.boots:
        for index in range(boot.count):
            for _ in range(chance.choice(ORDERS)):
                yield _switch(boot, index, chance)


def _switch(boot: Boot, index: int, chance: random.Random) -> Switch:
    at_s = min(BUSY_UNTIL_S, boot.at_s + chance.uniform(0.5, LATER_S))
    again_s = (at_s + chance.choice((0.0, 0.5, 6.0)),) if chance.random() < 0.3 else ()
    return Switch(
        UUID(int=chance.getrandbits(128)),
        boot.id,
        index,
        at_s,
        chance.choice(KINDS),
        confirm_s=chance.choice((0, 2)),
        repeated_at_s=again_s,
    )


def _faults(chance: random.Random) -> Iterator[Fault]:
    for key in KEYS:
        for after_s in (0.0, 0.5, 6.0):
            yield Duplicate(chance.uniform(2.0, BUSY_UNTIL_S), "", key, after_s)
        yield Nack(chance.uniform(2.0, BUSY_UNTIL_S), "", key, chance.choice((1, 2)))
