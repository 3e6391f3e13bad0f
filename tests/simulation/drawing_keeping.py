"""Draws keepers, the places of hosts, budgets, campaigns that empty hosts or even them, and policies by which lost hosts are recovered.

No campaign restarts its hosts: a restart runs a hook, which is a program of the machine, and this clock knows none.
"""

import random
from collections.abc import Iterator
from uuid import UUID

from msgspec import structs

from bus.messages.keeping import CampaignId, CampaignWork, MoveBudget
from bus.messages.policies import KeepingPolicy
from laboratory.computes.faults import Dies, FallsSilent
from tests.simulation.drawing_moves import DOWN_S, silence_of_a_host
from tests.simulation.faults import (
    ON_THE_WAY,
    ClockJump,
    Crash,
    CrashAt,
    Cut,
    DatabaseAway,
    Deadlock,
    Duplicate,
    Fault,
    LateConfirms,
    LateRedelivery,
    Leave,
    LostAtCommit,
    LostConfirm,
    LostPublish,
    Nack,
    Pause,
    Reorder,
    SerialisationFailure,
    Zombie,
)
from tests.simulation.plan import BudgetOrder, CampaignChange, CampaignOrder, FenceEnd, Plan

# Of 40 seeds: those without another world, with groups, and with pools; and some in which instances move and a cell is down.
SEEDS_AT = frozenset({0, 13, 18, 20, 26, 28, 29, 35, 37})
MOVES_EVERY, MOVES_AT = 60, 51
# Racks with two hosts of each cell. One host is nowhere.
HOSTS_PER_RACK = 2
NOWHERE = "c2-host-6"
PLACED_S = 0.5
BUDGETS_S, CAMPAIGNS_S, CHANGED_S = (1.0, 4.0), (6.0, 26.0), (1.0, 14.0)
ENDLESS_S = (36.0, 44.0)
FAULTS_S = (5.0, 42.0)
# A host that is to be evacuated counts as down so long after it has fallen silent.
DOWN_AFTER_S = 15.0
CONDUCTORS_BEAT_S = 2.0
CELL_DOWN_S = 20.0
# Longer than a run.
RESTS_S = 3600
KEYS = (
    "campaign.start",
    "campaign.set",
    "budget.set",
    "policy.set",
    "question.answer",
    "question.changed",
    "move.request",
    "host.set",
    "campaign.changed",
)


def has_keepers(seed: int) -> bool:
    return seed % 40 in SEEDS_AT or seed % MOVES_EVERY == MOVES_AT


def with_keeping(plan: Plan, chance: random.Random) -> Plan:
    names = [host.name for of_cell in plan.hosts.values() for host in of_cell]
    silent = [
        structs.replace(silence_of_a_host(plan, cell, chance), for_s=chance.uniform(*DOWN_S))
        for cell in chance.sample(sorted(plan.hosts), chance.choice((0, 1)))
    ]
    down: list[Dies | FallsSilent] = [
        *silent,
        *(each for each in plan.script.faults if isinstance(each, Dies) and chance.random() < 0.5),
    ]
    keepers = chance.choice((1, 2, 2))
    campaigns = [
        *(_drain(number, names, chance) for number in range(chance.randint(1, 3))),
        *(_evacuation(each, chance) for each in down),
    ]
    kept = structs.replace(
        plan,
        keepers=keepers,
        places={name: _place(name) for name in names if name != NOWHERE},
        budgets=tuple(sorted(_budgets(chance, has_groups=bool(plan.groups)), key=lambda each: each.at_s)),
        campaigns=tuple(sorted(campaigns, key=lambda each: each.at_s)),
        faults=tuple(sorted((*plan.faults, *_faults(keepers, chance)), key=lambda each: each.at_s)),
        script=structs.replace(plan.script, faults=(*plan.script.faults, *silent)),
    )
    return _with_balance(_with_recovery(kept, chance) if chance.random() < 0.6 else kept, chance)


def _with_balance(plan: Plan, chance: random.Random) -> Plan:
    """An operator has hosts evened, one or two times."""
    orders = [
        CampaignOrder(
            id=_id(chance),
            at_s=chance.uniform(*CAMPAIGNS_S),
            name=f"balance-{number}",
            work=CampaignWork(
                kind="balance",
                goal=chance.choice(("even", "even", "fill", "room")),
                place=chance.choice(("", "", "dc1")),
                moves_max=chance.choice((3, 10)),
                rest_s=chance.choice((0, RESTS_S)),
                guests_at_once=chance.choice((1, 5)),
                failures_max=9,
            ),
            changes=tuple(_changes(chance)) if chance.random() < 0.3 else (),
            is_repeated=chance.random() < 0.3,
        )
        for number in range(chance.randint(0, 2))
    ]
    campaigns = sorted((*plan.campaigns, *orders), key=lambda each: each.at_s)
    return structs.replace(plan, campaigns=tuple(campaigns))


def _with_recovery(plan: Plan, chance: random.Random) -> Plan:
    """Hosts that are lost are recovered by policy. Their fences tell the truth: only a dead host is off."""
    lost = [each for each in plan.script.faults if isinstance(each, Dies | FallsSilent)]
    ends: dict[str, FenceEnd] = {
        host: chance.choice(
            ("off", "off", "fails", "hangs") if isinstance(each, Dies) else ("fails", "hangs")
        )
        for each in lost
        for host in each.hosts
    }
    limit = {"lost_max": chance.choice((0, 1, 2, 2)), "level": chance.choice((0, 2))}
    policies = [
        KeepingPolicy(scope="cloud", guests="evacuate", fence="power", fence_s=3, **limit),  # type: ignore[arg-type]
        KeepingPolicy(scope="cell", of="c2", rehearse=chance.random() < 0.5, after_s=16),
    ]
    if chance.random() < 0.3:
        policies.append(KeepingPolicy(scope="project", of="nobody", guests="leave"))
    # Some are begun by an operator all the same.
    campaigns = [each for each in plan.campaigns if each.work.kind != "evacuate" or chance.random() < 0.3]
    return structs.replace(
        plan,
        policies=tuple(policies),
        fences=ends,
        campaigns=tuple(campaigns),
        # Conductors say which hosts they do not hear. One that has died counts for so long.
        pace={**plan.pace, "beat_s": CONDUCTORS_BEAT_S},
        settings={"cell_down_s": CELL_DOWN_S, **plan.settings},
    )


def _place(host: str) -> str:
    return f"dc1/rack{(int(host.rpartition('-')[2]) + 1) // HOSTS_PER_RACK}"


def _budgets(chance: random.Random, *, has_groups: bool) -> Iterator[BudgetOrder]:
    drawn = (
        MoveBudget(name="all", scope="cloud", at_once=chance.choice((2, 3, 6))),
        MoveBudget(name="racks out", scope="domain", level=2, side="out", at_once=chance.choice((1, 2, 3))),
        MoveBudget(name="a rack", scope="domain", of="dc1/rack1", at_once=2),
        MoveBudget(name="hosts in", scope="host", side="in", at_once=chance.choice((1, 2))),
        MoveBudget(
            name="cells", scope="cell", at_once=chance.choice((2, 4)), per_hour=chance.choice((6, 40))
        ),
        MoveBudget(name="groups", scope="group", at_once=3, alive_min=1),
    )
    for budget in chance.sample(drawn, chance.randint(2, 4)):
        yield BudgetOrder(chance.uniform(*BUDGETS_S), budget)
    # One that is larger or smaller than before, and one that goes.
    yield BudgetOrder(
        chance.uniform(*CAMPAIGNS_S), structs.replace(drawn[0], at_once=chance.choice((1, 2, 8)))
    )
    yield BudgetOrder(chance.uniform(20, 35), chance.choice(drawn), is_deleted=True)
    # A campaign would never end by these. A group that leaves together may be larger than any of them.
    for endless in drawn if has_groups else drawn[-2:]:
        yield BudgetOrder(chance.uniform(*ENDLESS_S), endless, is_deleted=True)


def _drain(number: int, names: list[str], chance: random.Random) -> CampaignOrder:
    where = chance.choice(("hosts", "hosts", "hosts", "place", "cell"))
    work = CampaignWork(
        hosts=tuple(chance.sample(names, chance.choice((1, 2, 3)))) if where == "hosts" else (),
        place=f"dc1/rack{chance.choice((1, 2, 3))}" if where == "place" else "",
        cell=chance.choice(names)[:2] if where == "cell" else "",
        then=chance.choice(("disable", "down")),
        at_once=chance.choice((1, 2)),
        guests_at_once=chance.choice((1, 2, 5)),
        canary=chance.choice((0, 0, 1)),
        failures_max=chance.choice((1, 2, 9)),
        wait_s=chance.choice((0, 0, 12)),
    )
    return CampaignOrder(
        id=_id(chance),
        at_s=chance.uniform(*CAMPAIGNS_S),
        name=f"drain-{number}",
        work=work,
        join=chance.random() < 0.7,
        changes=tuple(_changes(chance)),
        is_repeated=chance.random() < 0.3,
    )


def _evacuation(fault: Dies | FallsSilent, chance: random.Random) -> CampaignOrder:
    (host,) = fault.hosts
    work = CampaignWork(kind="evacuate", hosts=(host,), guests_at_once=chance.choice((2, 10)), failures_max=9)
    return CampaignOrder(
        id=_id(chance),
        at_s=fault.after_s + DOWN_AFTER_S,
        name=f"evacuate-{host}",
        work=work,
        changes=tuple(_changes(chance)) if chance.random() < 0.3 else (),
    )


def _id(chance: random.Random) -> CampaignId:
    return CampaignId(UUID(int=chance.getrandbits(128)))


def _changes(chance: random.Random) -> Iterator[CampaignChange]:
    """Most campaigns go on to their own end. Some pause meanwhile, stay so, or are cancelled."""
    at_s = chance.uniform(*CHANGED_S)
    match chance.choice(("", "", "", "pause", "pause and resume", "pause and resume", "cancel")):
        case "pause":
            yield CampaignChange(at_s, "pause")
        case "pause and resume":
            yield CampaignChange(at_s, "pause")
            yield CampaignChange(at_s + chance.uniform(0.5, 8), "resume")
        case "cancel":
            yield CampaignChange(at_s, "cancel")
        case _:
            pass


def _faults(keepers: int, chance: random.Random) -> Iterator[Fault]:
    for name in (f"keeper-{number + 1}" for number in range(keepers)):
        for _ in range(2):
            yield Crash(chance.uniform(*FAULTS_S), name, chance.uniform(0.1, 4))
            # Some are longer than a lease.
            yield Pause(chance.uniform(*FAULTS_S), name, chance.uniform(1, 7))
            yield ClockJump(chance.uniform(*FAULTS_S), name, chance.uniform(-4, 4))
            # It gets its answers after the end of its lease.
            yield Reorder(chance.uniform(*FAULTS_S), name, "", chance.uniform(2, 3.8))
            yield LostPublish(chance.uniform(*FAULTS_S), name)
            yield LostConfirm(chance.uniform(*FAULTS_S), name)
        for point in ("before_commit", "after_commit", "after_commit", "before_ack", ON_THE_WAY):
            quiet_s = chance.choice((0.0, 2.0))
            yield CrashAt(chance.uniform(*FAULTS_S), name, point, chance.uniform(0.1, 2), quiet_s)
        yield Zombie(chance.uniform(*FAULTS_S), name, chance.uniform(0.1, 3), chance.uniform(4, 9))
        yield Leave(chance.uniform(*FAULTS_S), name, chance.uniform(0.1, 2))
        yield Cut(chance.uniform(*FAULTS_S), name)
        yield LateConfirms(chance.uniform(*FAULTS_S), name, chance.uniform(1, 7), chance.choice((1, 3)))
        yield LateRedelivery(chance.uniform(*FAULTS_S), name, chance.uniform(0.2, 3))
        yield Reorder(chance.uniform(*FAULTS_S), name, "keeper.requests", chance.uniform(0.2, 3))
        yield Deadlock(chance.uniform(*FAULTS_S), name)
        yield SerialisationFailure(chance.uniform(*FAULTS_S), name)
        for is_done in (False, True):
            yield LostAtCommit(chance.uniform(*FAULTS_S), name, is_done=is_done)
        yield DatabaseAway(chance.uniform(*FAULTS_S), name, chance.uniform(0.2, 5))
    for key in KEYS:
        yield Duplicate(chance.uniform(*FAULTS_S), "", key, chance.choice((0.0, 0.3, 6.0)))
        is_stored = chance.random() < 0.5
        yield Nack(chance.uniform(*FAULTS_S), "", key, chance.choice((1, 2)), is_stored=is_stored)
