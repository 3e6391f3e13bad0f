"""Draws the part of one seed in forty in which members of affinity groups leave together, again and again, and in which a cell
attacks what another one owns. All of it comes from random sources of its own: other seeds stay as they are.

Each of these groups begins on a host that the plan names, so that the silence of this host is a silence of the group. A client moves
one of the members, and all others leave by the same order; some of these moves are aborted, or come back because a host fails.
"""

import random
from collections.abc import Iterator
from uuid import UUID

from msgspec import structs

from engine.inventories import GroupId, ServerGroup
from laboratory.computes.faults import FailsToReceive, FallsSilent
from tests.simulation.faults import FOREIGN_OWNERS, Duplicate, Fault, Hostile, Nack
from tests.simulation.plan import CELLS, Boot, EndOfMove, Evacuation, Plan, PlannedMove

# Two groups in each cell: one on a host that falls silent, one whose members are moved by hand.
SILENT, MOVED = "host-1", "host-3"
MEMBERS = 3
# How often a host cannot take over an instance.
REFUSED = 0.3
MOVED_S = (5.0, 10.0, 15.0, 20.0, 25.0, 31.0)
SILENT_S, SILENT_FOR_S = (9.0, 12.0), (19.0, 24.0)
ENDS: tuple[tuple[EndOfMove, ...], ...] = (
    (EndOfMove("abort", 0.1, when_arrived=False),),
    (EndOfMove("abort", 0.6, when_arrived=False),),
    (EndOfMove("revert"),),
    (),
    (),
    (),
)
KEYS = ("move.request", "move.", "swap", "stop.", "receive")
# These are booted after the attacks on the ids of what is booted later.
LATER = "later-"
ATTACKED_S, LATER_S = (10.0, 16.0), (20.0, 26.0)


def with_group_moves(plan: Plan, chance: random.Random) -> Plan:
    groups: list[ServerGroup] = []
    boots: list[Boot] = []
    moves: list[PlannedMove] = []
    silent: list[FallsSilent] = []
    evacuations: list[Evacuation] = []
    for cell in CELLS:
        for host in (SILENT, MOVED):
            group = ServerGroup(id=GroupId(UUID(int=chance.getrandbits(128))), policy="affinity")
            members = _members(chance, f"{cell}-{host}", group.id)
            groups.append(group)
            boots.append(members)
            if host == MOVED:
                moves += [_move(members, at_s, chance) for at_s in MOVED_S]
        fault = FallsSilent(
            hosts=(f"{cell}-{SILENT}",),
            after_s=chance.uniform(*SILENT_S),
            for_s=chance.uniform(*SILENT_FOR_S),
        )
        silent.append(fault)
        evacuations.append(_evacuation(fault, chance))
        boots.append(_later(chance, cell))
    return structs.replace(
        plan,
        # Claims of attackers know no limit.
        instances_max=0,
        # The last group is deleted at the end.
        groups=(*groups, *plan.groups),
        boots=(*plan.boots, *boots),
        moves=tuple(sorted((*plan.moves, *moves), key=lambda each: each.at_s)),
        evacuations=(*plan.evacuations, *evacuations),
        faults=tuple(sorted((*plan.faults, *_faults(chance)), key=lambda each: each.at_s)),
        # So that one of several cannot stay where the first ones went.
        script=structs.replace(
            plan.script, faults=(*plan.script.faults, *silent, FailsToReceive(probability=REFUSED))
        ),
    )


def _members(chance: random.Random, host: str, group: GroupId) -> Boot:
    """Before all others, so that there is room."""
    return Boot(
        id=UUID(int=chance.getrandbits(128)),
        name=f"together-on-{host}",
        at_s=chance.uniform(0.7, 1.0),
        count=MEMBERS,
        vcpus=1,
        ram_mb=1024,
        host=host,
        group=group,
    )


def _later(chance: random.Random, cell: str) -> Boot:
    return Boot(
        id=UUID(int=chance.getrandbits(128)),
        name=f"{LATER}{cell}",
        at_s=chance.uniform(*LATER_S),
        count=1,
        vcpus=1,
        ram_mb=1024,
        host=f"{cell}-{MOVED}",
    )


def _move(members: Boot, after_s: float, chance: random.Random) -> PlannedMove:
    return PlannedMove(
        id=UUID(int=chance.getrandbits(128)),
        request=members.id,
        index=chance.randrange(MEMBERS),
        at_s=after_s + chance.uniform(0, 3),
        kind="migrate",
        ends=chance.choice(ENDS),
        deadline_s=chance.choice((12, 30)),
        is_repeated=chance.random() < 0.2,
    )


def _evacuation(fault: FallsSilent, chance: random.Random) -> Evacuation:
    at_s = fault.after_s + 10
    return Evacuation(
        id=UUID(int=chance.getrandbits(128)),
        host=fault.hosts[0],
        at_s=at_s,
        until_s=at_s + 13,
    )


def _faults(chance: random.Random) -> Iterator[Fault]:
    for key in KEYS:
        yield Duplicate(chance.uniform(6, 34), "", key, chance.choice((0.0, 0.3, 6.0)))
        yield Nack(chance.uniform(6, 34), "", key, 1, is_stored=chance.random() < 0.5)
    for content in FOREIGN_OWNERS:
        yield Hostile(chance.uniform(*ATTACKED_S), "", content, "", chance.getrandbits(32))
