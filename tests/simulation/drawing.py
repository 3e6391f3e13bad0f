"""Draws a plan from a seed: the only place where chance decides what happens.

Each seed has what `drawing_cloud.py` draws, or is of bare metal. Some seeds are of a world as well: something happens
there that other seeds never have. docs/simulation.md says how to add one.
"""

import random
from collections.abc import Callable

from msgspec import Struct

from tests.simulation.drawing_cloud import ADMINS, API, OUTAGES_EVERY, draw_cloud, with_outage
from tests.simulation.drawing_demands import with_demands
from tests.simulation.drawing_keeping import has_keepers, with_keeping
from tests.simulation.drawing_moves import with_moves, with_waiting_moves
from tests.simulation.drawing_nodes import NODE_SEEDS, draw_nodes
from tests.simulation.drawing_worlds import (
    with_flavors,
    with_group_moves,
    with_guests,
    with_host_modes,
    with_lost_feeds,
    with_power,
    with_quotas,
    with_shapes,
)
from tests.simulation.plan import Plan


class World(Struct, frozen=True):
    # Whether a seed is of it.
    has: Callable[[int], bool]
    # The plan of such a seed, with what happens in this world.
    drawn: Callable[[Plan, random.Random], Plan]


def every(count: int, at: int) -> Callable[[int], bool]:
    """One seed in so many."""
    return lambda seed: seed % count == at


def _moves(seed: int) -> bool:
    """Seeds without groups, with groups, with pools, and in which a cell is down for long."""
    return seed % 20 == 7 or seed % 40 == 10 or seed % 60 in {49, 51}


# In the order in which they are drawn. A name is in the seed of its world's chance: another name would draw other plans.
WORLDS = {
    "outage": World(every(OUTAGES_EVERY, 11), with_outage),
    "host modes": World(every(20, 5), with_host_modes),
    "flavors": World(every(40, 38), with_flavors),
    "feeds": World(
        every(40, 8),
        lambda plan, chance: with_lost_feeds(plan, schedulers=API, admin=ADMINS[0], chance=chance),
    ),
    "moves of groups": World(every(40, 30), with_group_moves),
    "moves that wait": World(every(40, 34), with_waiting_moves),
    "moves": World(_moves, with_moves),
    "demands": World(every(20, 19), with_demands),
    "guests": World(every(40, 23), with_guests),
    "power": World(every(40, 36), with_power),
    "quotas": World(every(20, 12), with_quotas),
    "shapes": World(every(20, 2), with_shapes),
    "keeping": World(has_keepers, with_keeping),
}


def draw(seed: int) -> Plan:
    if seed >= NODE_SEEDS:
        return draw_nodes(seed)
    plan = draw_cloud(seed)
    for name, world in WORLDS.items():
        if world.has(seed):
            plan = world.drawn(plan, random.Random(f"{seed} {name}"))
    return plan
