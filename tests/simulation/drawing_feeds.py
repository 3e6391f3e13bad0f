"""Draws the faults of one seed in forty in which schedulers lose their feed queues, the last time just before all faults
stop. After that nothing tells them for long that they have missed something: no change follows.
"""

import random

from msgspec import structs

from laboratory.computes.faults import Changes
from tests.simulation.faults import Fault, FeedGone
from tests.simulation.plan import AdminOp, Plan

EARLY_S = (5.0, 36.0)
# The last time, and how long before the end of it administrators write.
LAST_S, BACK_S = 41.5, (43.5, 44.5)
WRITES = 3
# When the probe is sent: its claim shows what was missed.
PROBE_S = 62.0


def with_lost_feeds(plan: Plan, schedulers: tuple[str, ...], admin: str, chance: random.Random) -> Plan:
    back_s = {name: chance.uniform(*BACK_S) for name in schedulers}
    lost: list[Fault] = [
        *(FeedGone(chance.uniform(*EARLY_S), name, chance.uniform(0.1, 3)) for name in schedulers),
        *(FeedGone(LAST_S, name, until_s - LAST_S) for name, until_s in back_s.items()),
    ]
    first_back_s = min(back_s.values())
    writes = [
        AdminOp(
            chance.uniform(LAST_S + 0.2, first_back_s - 0.2), admin, "set inventory", chance.getrandbits(32)
        )
        for _ in range(WRITES)
    ]
    # A host that changes again and again would show that something was missed.
    calm = tuple(fault for fault in plan.script.faults if not isinstance(fault, Changes))
    *boots, probe = plan.boots
    return structs.replace(
        plan,
        faults=tuple(sorted((*plan.faults, *lost), key=lambda fault: fault.at_s)),
        admin_ops=tuple(sorted((*plan.admin_ops, *writes), key=lambda op: op.at_s)),
        script=structs.replace(plan.script, faults=calm),
        boots=(*boots, structs.replace(probe, at_s=PROBE_S)),
    )
