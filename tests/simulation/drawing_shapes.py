"""Draws one seed in twenty in which hosts get another shape while boots, moves and deletes go on.

One provider becomes NUMA cells, or cells become one provider; some hosts come back to what they were.
"""

import random

from msgspec import structs

from laboratory.computes.faults import Changes
from laboratory.computes.hosts import SimulatedHost
from tests.simulation.faults import Duplicate, Fault, Nack
from tests.simulation.plan import Plan

RESHAPED = 4
BEGIN_S = (4.0, 30.0)
KEYS = ("host.reshape", "host.shape.query", "inventory.report")


def with_shapes(plan: Plan, chance: random.Random) -> Plan:
    named = {name for fault in plan.script.faults for name in fault.hosts}
    free = [host for of_cell in plan.hosts.values() for host in of_cell if host.name not in named]
    changes = [_change(host, chance) for host in chance.sample(free, min(RESHAPED, len(free)))]
    faults = (*plan.faults, *_faults(chance))
    return structs.replace(
        plan,
        script=structs.replace(plan.script, faults=(*plan.script.faults, *changes)),
        faults=tuple(sorted(faults, key=lambda each: each.at_s)),
    )


def _change(host: SimulatedHost, chance: random.Random) -> Changes:
    # Half of them come back to what they were.
    for_s = chance.choice((0.0, chance.uniform(3, 10)))
    cells = 0 if host.size.numa_nodes else 2
    return Changes(hosts=(host.name,), after_s=chance.uniform(*BEGIN_S), for_s=for_s, numa_nodes=cells)


def _faults(chance: random.Random) -> list[Fault]:
    return [
        *[Duplicate(at_s=chance.uniform(*BEGIN_S), key=chance.choice(KEYS)) for _ in range(3)],
        *[Nack(at_s=chance.uniform(*BEGIN_S), key=chance.choice(KEYS)) for _ in range(2)],
    ]
