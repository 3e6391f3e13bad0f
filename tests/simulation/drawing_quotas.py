"""Draws the limits that an operator sets for the clients' project, in one seed in twenty. In three of four of these seeds instances move,
too: many of them become much smaller or larger, so that what one gives up is wanted by others before it is confirmed.
"""

import random
from collections.abc import Iterator

from msgspec import structs

from engine.inventories import INSTANCES
from tests.simulation.drawing_moves import with_moves
from tests.simulation.plan import EndOfMove, Plan, PlannedMove, QuotaOrder

# The first limit comes before most boots, or while there are many claims.
FIRST_S = (0.0, 6.0)
CHANGED_S = (8.0, 40.0)
CHANGES_MAX = 5
# Of all that the boots ask for.
SHARE = (0.1, 0.6)
# Of the moves, which become resizes to the least or the largest size.
SHARE_RESIZED = 0.6
SIZES = ((1, 1024), (6, 8192))
# Most stay unconfirmed for a while.
ENDS = ((EndOfMove("confirm", 6.0),), (EndOfMove("revert", 6.0),), (EndOfMove("revert", 2.0),), ())


def with_quotas(plan: Plan, chance: random.Random) -> Plan:
    if plan.seed % 80 != 12:
        of_moves = random.Random(f"{plan.seed} moves under quotas")
        plan = with_moves(plan, of_moves)
        plan = structs.replace(plan, moves=tuple([_resized(each, of_moves) for each in plan.moves]))
    return structs.replace(plan, quota_orders=tuple(sorted(_orders(plan, chance), key=lambda one: one.at_s)))


def _resized(move: PlannedMove, chance: random.Random) -> PlannedMove:
    if chance.random() >= SHARE_RESIZED:
        return move
    vcpus, ram_mb = chance.choice(SIZES)
    return structs.replace(
        move,
        kind="resize",
        ends=chance.choice(ENDS),
        vcpus=vcpus,
        ram_mb=ram_mb,
        root_gb=1,
        confirm_s=0,
        unshelved_after_s=None,
    )


def _orders(plan: Plan, chance: random.Random) -> Iterator[QuotaOrder]:
    asked = {
        INSTANCES: sum(boot.count for boot in plan.boots),
        "VCPU": sum(boot.count * boot.vcpus for boot in plan.boots),
        "MEMORY_MB": sum(boot.count * boot.ram_mb for boot in plan.boots),
    }
    first = chance.choice(sorted(asked))
    yield QuotaOrder(chance.uniform(*FIRST_S), {first: int(asked[first] * chance.uniform(*SHARE))})
    for _ in range(chance.randint(1, CHANGES_MAX)):
        name = chance.choice(sorted(asked))
        # A limit may be lowered below what is used, raised, and removed; also the last one.
        limit = None if chance.random() < 0.3 else int(asked[name] * chance.uniform(*SHARE))
        yield QuotaOrder(chance.uniform(*CHANGED_S), {name: limit})
