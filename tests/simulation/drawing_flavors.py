"""Draws the boots of one seed in forty that accept several flavors: a large one, else a medium one, else a small one."""

import random

from msgspec import structs

from tests.simulation.plan import Boot, Plan

# The share of the plain boots that accept several flavors, and of those that wait for room for any of them.
SHARE_OF_BOOTS, SHARE_WAITING = 0.6, 0.3
# What waits ends at the latest then: after the faults.
WAITS_END_S = 57.0


def with_flavors(plan: Plan, chance: random.Random) -> Plan:
    return structs.replace(plan, boots=tuple(_with_alternatives(boot, chance) for boot in plan.boots))


def _with_alternatives(boot: Boot, chance: random.Random) -> Boot:
    is_plain = boot.name.startswith("b") and not boot.host and boot.vcpus <= 4
    if not is_plain or chance.random() > SHARE_OF_BOOTS:
        return boot
    waits = chance.random() < SHARE_WAITING
    return structs.replace(
        boot,
        vcpus=8,
        needs_gold=True,
        alternatives=((6, boot.ram_mb), (4, 1024)),
        wait_s=int(WAITS_END_S - boot.at_s) if waits else 0,
    )
