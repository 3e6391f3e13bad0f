"""Which movements may begin now: budgets are judged here, and nowhere else.

A movement counts from its grant to its end. It counts for each budget that limits what it leaves or where it goes. A budget of hosts
counts it for the host that it leaves and for the one that it goes to, unless it limits one side alone. The decision is a fold: each
wish is judged together with all that goes on and all that was granted before it. It is made under the lock of the ledger, so a budget holds at
every commit.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import NamedTuple
from uuid import uuid5

from msgspec import structs

from bus.messages.keeping import BudgetUse, CampaignId, MoveBudget, Movement, MovementId
from engine.flavors import RequestId
from engine.hosts import host_in_cell
from engine.inventories import GroupId
from engine.places import domain_of, is_within
from engine.refusals import TOGETHER_MAX

HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_TIMES = re.compile(r"([01][0-9]|2[0-3]):([0-5][0-9])-([01][0-9]|2[0-3]):([0-5][0-9])")
# Movements that leave together: one alone, or the members of an affinity group on one host.
Unit = Sequence[Movement]


class Grants(NamedTuple):
    """The movements that may begin, as they are then; and why the others wait."""

    granted: Sequence[Movement]
    waits: Mapping[MovementId, str]


class MovementLedger(NamedTuple):
    """All that grants are judged by. `going` are the movements that go on, `recent` those granted in the last hour. `guests_max` says how many
    guests of each campaign may move at once, `alive` how many members of each group with a minimum are active and stay where they are.
    """

    budgets: Sequence[MoveBudget]
    going: Sequence[Movement]
    recent: Sequence[Movement]
    guests_max: Mapping[CampaignId, int]
    alive: Mapping[GroupId, int]


def wrong_budget(budget: MoveBudget) -> tuple[str, object, str] | None:
    """The field that is wrong with a budget, its value, and why; None if it is right."""
    limits = (budget.at_once, budget.per_hour, budget.alive_min)
    is_group, is_domain = budget.scope == "group", budget.scope == "domain"
    too_few = "at least 1: to let nothing move, pause the campaigns"
    times = next((each for each in budget.quiet if _minutes(each) is None), "")
    checks = (
        (not budget.name, "name", "", "a budget has a name"),
        (budget.at_once is not None and budget.at_once < 1, "at_once", budget.at_once, too_few),
        (budget.per_hour is not None and budget.per_hour < 1, "per_hour", budget.per_hour, too_few),
        (
            budget.alive_min is not None and (not is_group or budget.alive_min < 1),
            *("alive_min", budget.alive_min, "at least 1, and only of groups"),
        ),
        (
            bool(budget.level) and (not is_domain or bool(budget.of)),
            *(
                "level",
                budget.level,
                "a level means each domain of it: with the scope domain, and without `of`",
            ),
        ),
        (
            budget.scope == "cloud" and bool(budget.of),
            *("of", budget.of, "a budget of the cloud limits all that moves: leave `of` out"),
        ),
        (
            is_domain and not (budget.level or budget.of),
            *("level", budget.level, "name the level of the domains, or one domain by `of`"),
        ),
        (
            bool(budget.side) and budget.scope not in ("domain", "host"),
            *("side", budget.side, "only a domain or a host has two sides"),
        ),
        (bool(times), "quiet", times, "two times of day, such as 22:00-06:00"),
        (
            limits == (None, None, None) and not budget.quiet,
            *("at_once", None, "a budget limits something: at_once, per_hour, alive_min or quiet"),
        ),
    )
    return next(((f"budget.{field}", value, why) for is_wrong, field, value, why in checks if is_wrong), None)


def decide_grants(ledger: MovementLedger, wishes: Iterable[Unit], now: datetime) -> Grants:
    """Judge each unit in turn: all of it begins, or none. Those with a host to go to (`to`) only need to be within each budget. One
    without waits for room at the schedulers, and nobody knows for how long or where: it begins only if no budget limits it.
    """
    uses = [Use(each, ledger.going, ledger.recent) for each in ledger.budgets]
    of_campaigns = Counter(each.campaign for each in ledger.going if each.to)
    alive = dict(ledger.alive)
    granted: list[Movement] = []
    waits: dict[MovementId, str] = {}
    for unit in wishes:
        first, size = unit[0], len(unit)
        most = ledger.guests_max[first.campaign]
        why = ""
        # A group that is larger than that moves when nothing else of its campaign does.
        others = of_campaigns[first.campaign]
        if first.to and others + size > (most if others else max(most, size)):
            why = f"guests_at_once: {most} of its campaign may move at once"
        for use in uses:
            why = why or _why_not(use, unit, alive, now)
        if why:
            waits.update(dict.fromkeys([each.id for each in unit], why))
            continue
        request_id = RequestId(uuid5(first.id, f"{first.failures} {now.isoformat()}"))
        begun = [
            structs.replace(each, life="granted", granted_at=now, request_id=request_id, reason="")
            for each in unit
        ]
        granted += begun
        for use in uses:
            use.add(begun)
        if first.to:
            of_campaigns[first.campaign] += size
        if first.group in alive and first.kind != "evacuate":
            alive[first.group] -= size
    return Grants(granted, waits)


class Use:
    """How much of a budget is used, by each that it limits: by movements that go on, and by those granted in the last hour."""

    def __init__(self, budget: MoveBudget, going: Iterable[Movement], recent: Iterable[Movement]) -> None:
        self.budget = budget
        self.going = Counter(subject for each in going for subject in subjects_of(budget, each))
        self.hour = Counter(subject for each in recent for subject in subjects_of(budget, each))

    def add(self, granted: Iterable[Movement]) -> None:
        begun = [subject for each in granted for subject in subjects_of(self.budget, each)]
        self.going.update(begun)
        self.hour.update(begun)


def told_use(use: Use) -> BudgetUse:
    """The use by the one that uses most of the budget."""
    most = max([*use.going, *use.hour], key=lambda each: (use.going[each], use.hour[each], each), default="")
    return BudgetUse(of=most, at_once=use.going[most], last_hour=use.hour[most])


def subjects_of(budget: MoveBudget, movement: Movement) -> set[str]:
    """Those for which this movement counts in this budget: cells, domains, hosts, projects or groups by their names."""
    found: list[str] = []
    match budget.scope:
        case "cloud":
            found = ["*"]
        case "cell":
            found = [movement.cell]
        case "project":
            found = [movement.project or "-"]
        case "group":
            found = [str(movement.group)] if movement.group else []
        case "host":
            found = _sides(budget, movement.host, movement.to)
            found = [host_in_cell(movement.cell, each) for each in found]
        case "domain" if budget.of:
            places = _sides(budget, movement.place, movement.to_place)
            return {budget.of} if any(is_within(each, budget.of) for each in places) else set()
        case "domain":
            places = _sides(budget, movement.place, movement.to_place)
            found = [domain_of(each, budget.level) for each in places]
    of = budget.of.lower()
    return {
        each for each in found if each and (not of or of in (each.lower(), each.lower().partition("/")[2]))
    }


def _sides(budget: MoveBudget, left: str, reached: str) -> list[str]:
    sides = {"out": [left], "in": [reached], "": [left, reached]}[budget.side]
    return [each for each in sides if each]


def _why_not(use: Use, unit: Unit, alive: Mapping[GroupId, int], now: datetime) -> str:
    """Why this budget lets none of the unit begin; empty if it lets all."""
    budget, first = use.budget, unit[0]
    counted = Counter(subject for each in unit for subject in subjects_of(budget, each))
    if not first.to and (counted or (budget.scope in ("host", "domain") and budget.side != "out")):
        return f"no host has room now, and budget {budget.name} may limit where it would go"
    if not counted:
        return ""
    if until := quiet_until(budget, now):
        return f"budget {budget.name}: quiet until {until} UTC"
    limits = ((budget.at_once, use.going, "at once"), (budget.per_hour, use.hour, "an hour"))
    for limit, used, when in limits:
        for subject, count in sorted(counted.items()):
            if limit is not None and used[subject] + count > limit:
                of = "" if subject == "*" else f" of {subject}"
                together = f", and {len(unit)} leave together" if len(unit) > 1 else ""
                return f"budget {budget.name}: {limit}{of} may move {when}{together}"
    left = alive.get(first.group, 0) if first.group else 0
    # A guest of a lost host is not alive. It is again when it was built anew.
    is_lost = first.kind == "evacuate"
    if budget.alive_min is not None and not is_lost and left - len(unit) < budget.alive_min:
        return f"budget {budget.name}: {budget.alive_min} active members of group {first.group} stay where they are"
    return ""


def quiet_until(budget: MoveBudget, now: datetime) -> str:
    """When the quiet time of this budget ends; empty if it is not quiet now."""
    minute = now.hour * 60 + now.minute
    for times in budget.quiet:
        begin, end = _minutes(times) or (0, 0)
        if (begin <= minute < end) if begin <= end else (minute >= begin or minute < end):
            return times.partition("-")[2]
    return ""


def _minutes(times: str) -> tuple[int, int] | None:
    """The minutes of the day at which this time (`22:00-06:00`) begins and ends; None if it is none."""
    found = _TIMES.fullmatch(times)
    if found is None:
        return None
    begin_h, begin_m, end_h, end_m = map(int, found.groups())
    begin, end = begin_h * 60 + begin_m, end_h * 60 + end_m
    return None if begin == end else (begin, end)


def short_of(budgets: Iterable[MoveBudget], alive: Mapping[GroupId, int]) -> set[GroupId]:
    """The groups that have fewer active members than a budget says."""
    return {
        group
        for budget in budgets
        for group, count in alive.items()
        if budget.of.lower() in ("", str(group)) and count < (budget.alive_min or 0)
    }


def units_of(planned: Sequence[Movement], short: Collection[GroupId] = ()) -> list[list[Movement]]:
    """These movements in units, in the order of their turns: the highest priority first; then lost members of groups that have too few;
    then the oldest.
    """

    def turn(one: Movement) -> tuple[int, bool, datetime, MovementId]:
        brings_back = one.kind == "evacuate" and one.group in short
        return -one.priority, not brings_back, one.asked_at or EPOCH, one.id

    units: defaultdict[object, list[Movement]] = defaultdict(list)
    for each in sorted(planned, key=turn):
        units[(each.campaign, each.cell, each.host, each.group) if each.together else each.id].append(each)
    return [sorted(unit, key=lambda each: each.instance) for unit in units.values()]


def first_of_unit(unit: Unit) -> Unit:
    """Those that one order moves. A host is sought for the whole unit. If a group has more members, those with the lowest ids go first,
    as schedulers choose them, and the others follow.
    """
    return unit[:TOGETHER_MAX]
