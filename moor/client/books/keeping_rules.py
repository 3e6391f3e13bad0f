"""The faults of what keepers have: movements of instances that are not there, more at once than a budget allows, and claims of moves whose
movements have ended. Pure.

Keepers judge budgets when they grant. They are judged here by code of its own, from the movements and budgets alone, so that an error there
is seen. It cannot find an excess that has passed; what it finds was one.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta

from bus.messages.audit import CellEntry
from bus.messages.build import InstanceState
from bus.messages.keeping import Budget, BudgetState, Movement
from engine.flavors import InstanceId
from engine.inventories import ConsumerId
from moor.client.books.instance_rules import way_back_of
from moor.client.books.views import Fault, Sight

NOTHING_MOVES = "movement of nothing"
OVER_BUDGET = "budget exceeded"
CLAIM_LEFT = "claim of an ended movement"
# Granted, and not ended.
_GOING = ("granted", "moving")
_ENDED = ("done", "given_up", "withdrawn")
_HOUR = timedelta(hours=1)


def faults_of_movements(
    movements: Iterable[Movement], instances: Mapping[InstanceId, InstanceState], sight: Sight
) -> Iterator[Fault]:
    """The faults of movements that go on although there is nothing to move from their hosts."""
    for each in movements:
        told = instances.get(each.instance)
        since = each.asked_at if told is None else told.changed_at
        if since is not None and sight.now - since < sight.settle:
            continue
        if why := _why_nothing(each, told):
            yield Fault(
                NOTHING_MOVES,
                each.instance,
                f"{each.cause}: the movement of instance {each.instance} from {each.cell}/{each.host} is {each.life}, and {why}",
                advice=f"`moor campaign cancel {each.campaign}` withdraws what is planned; the keepers' log says what they do",
                version=(each.life, each.granted_at, told and told.sequence),
            )


def _why_nothing(movement: Movement, told: InstanceState | None) -> str:
    if told is None:
        return "no row of the API level has it"
    if told.state == "deleted":
        return "it is deleted"
    if told.state != "moving" and (told.cell, told.host) != (movement.cell, movement.host):
        return f"it is {told.state} on {told.host or 'no host'} in cell {told.cell}"
    return ""


def faults_of_budgets(budgets: Iterable[BudgetState], movements: Sequence[Movement]) -> Iterator[Fault]:
    """The budgets by which the last grant was one too many: of what goes on now, all went on then. A budget that was set later counts
    for the next grant alone.
    """
    for state in budgets:
        granted: dict[str, list[tuple[datetime, Movement]]] = {}
        for each in movements:
            if each.life in _GOING and each.granted_at is not None:
                for subject in _counted_for(state.budget, each):
                    granted.setdefault(subject, []).append((each.granted_at, each))
        for subject, some in sorted(granted.items()):
            last = max(at for at, _ in some)
            if state.set_at is not None and last < state.set_at:
                continue
            for what in _exceeded(state, [at for at, _ in some], last):
                yield Fault(
                    OVER_BUDGET,
                    None,
                    f"budget {state.budget.name}, {subject}: {what}",
                    advice="`moor campaign pause` keeps more from beginning; the keepers' log says who granted what",
                    version=(state.set_at, last, len(some)),
                )


def _exceeded(state: BudgetState, granted: Sequence[datetime], last: datetime) -> Iterator[str]:
    budget = state.budget
    if budget.at_once is not None and len(granted) > budget.at_once:
        yield f"{len(granted)} movements go on, and {budget.at_once} may"
    in_hour = sum(last - at < _HOUR for at in granted)
    if budget.per_hour is not None and in_hour > budget.per_hour:
        yield f"{in_hour} movements that go on began within an hour, and {budget.per_hour} may"
    for times in budget.quiet:
        if _is_within(last, times):
            yield f"a movement began at {last:%H:%M} UTC, in the quiet time {times}"


def _is_within(at: datetime, times: str) -> bool:
    begin, _, end = times.partition("-")
    clock = f"{at:%H:%M}"
    return begin <= clock < end if begin <= end else clock >= begin or clock < end


def _counted_for(budget: Budget, movement: Movement) -> set[str]:
    """The cells, domains, hosts, projects or groups for which a budget counts a movement."""
    left, reached = (movement.host, movement.place), (movement.to, movement.to_place)
    sides = [left] if budget.side == "out" else [reached] if budget.side == "in" else [left, reached]
    of = budget.of.lower()
    if budget.scope == "domain":
        depth = budget.level or budget.of.count("/") + 1
        paths = ["/".join(path[:depth]) for _, place in sides if len(path := place.split("/")) >= depth]
        return {each for each in paths if each and budget.of in ("", each)}
    names = {
        "cloud": ["the cloud"],
        "cell": [movement.cell],
        "project": [movement.project or "-"],
        "group": [str(movement.group)] if movement.group else [],
        "host": [f"{movement.cell}/{host}" for host, _ in sides if host],
    }[budget.scope]
    # A host is named with its cell or without.
    return {each for each in names if of in ("", each.lower(), each.lower().partition("/")[2])}


def is_claim_suspect(entry: CellEntry) -> bool:
    """Does the instance hold a claim of a move that confirms itself at once, as those of campaigns do?"""
    return (
        way_back_of(entry) is not None
        and entry.instance.move is not None
        and entry.instance.move.confirm_s == 0
    )


def faults_of_claims(
    suspects: Mapping[ConsumerId, CellEntry], movements: Iterable[Movement]
) -> Iterator[Fault]:
    """The claims of moves by which ended movements were made."""
    for each in movements:
        entry = suspects.get(each.instance)
        move = entry and entry.instance.move
        if each.life in _ENDED and move and move.request_id == each.request_id:
            yield Fault(
                CLAIM_LEFT,
                each.instance,
                f"instance {each.instance}: its movement from {each.cell}/{each.host} by {each.cause} is {each.life}, and it still holds the "
                "claim of that move",
                advice=f"`moor migration confirm {each.instance}` or `moor migration revert {each.instance}` ends its move",
                version=(each.life, each.ended_at, entry and entry.stirred_at),
            )
