"""Of any wishes, budgets let begin what they have room for, and nothing more: judged by code of its own."""

from datetime import UTC, datetime
from uuid import UUID

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from bus.messages.keeping import BudgetScope, CampaignId, MoveBudget, Movement, MovementId
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, GroupId
from keeper.core.grants import MovementLedger, decide_grants, units_of, wrong_budget
from tests.ledger_checker import breaches
from tests.properties.bounds import BOUNDED

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
CAMPAIGN = CampaignId(UUID(int=1))
SCOPES: tuple[BudgetScope, ...] = ("cloud", "cell", "domain", "host", "project", "group")
GROUPS = (GroupId(UUID(int=7)), GroupId(UUID(int=8)))
_hosts = st.sampled_from(["h1", "h2", "h3"])
_places = st.sampled_from(["", "dc1", "dc1/r1", "dc1/r2", "dc10/r1", "dc1/r1/x"])


@st.composite
def budgets(draw: st.DrawFn) -> MoveBudget:
    scope = draw(st.sampled_from(SCOPES))
    names = {
        "cell": ["c1"],
        "domain": ["dc1", "dc1/r1"],
        "host": ["c1/h1", "h2"],
        "project": ["red", "-"],
        "group": [str(GROUPS[0])],
    }
    of = draw(st.sampled_from(["", *names.get(scope, ())]))
    limits = draw(st.sets(st.sampled_from(["at_once", "per_hour"]), min_size=scope != "group"))
    made = MoveBudget(
        name="b",
        scope=scope,
        of=of,
        level=draw(st.integers(1, 2)) if scope == "domain" and not of else 0,
        side=draw(st.sampled_from(["", "out", "in"])) if scope in ("domain", "host") else "",
        alive_min=draw(st.integers(1, 4)) if scope == "group" else None,
        at_once=draw(st.integers(1, 4)) if "at_once" in limits else None,
        per_hour=draw(st.integers(1, 4)) if "per_hour" in limits else None,
    )
    assert wrong_budget(made) is None
    return made


@st.composite
def movements(draw: st.DrawFn) -> list[Movement]:
    made = []
    for number in range(draw(st.integers(3, 14))):
        group = draw(st.sampled_from([None, *GROUPS]))
        made.append(
            Movement(
                id=MovementId(UUID(int=number + 1)),
                instance=InstanceId(ConsumerId(UUID(int=number + 1))),
                campaign=CAMPAIGN,
                cause="campaign spring",
                cell=draw(st.sampled_from(["c1", "c2"])),
                host=draw(_hosts),
                to=draw(_hosts),
                place=draw(_places),
                to_place=draw(_places),
                project=draw(st.sampled_from(["", "red", "blue"])),
                group=group,
                together=group is not None and draw(st.booleans()),
                priority=draw(st.integers(-1, 1)),
                asked_at=NOON,
            )
        )
    return made


@settings(BOUNDED, max_examples=200)
@given(
    st.lists(budgets(), min_size=1, max_size=3),
    movements(),
    st.integers(0, 6),
    st.sampled_from([99, 99, 3, 1]),
    st.integers(0, 6),
)
def test_what_begins_is_within_each_budget_and_what_waits_would_not_be(
    limits: list[MoveBudget], all_of_them: list[Movement], going_count: int, guests_max: int, members: int
) -> None:
    limits = [structs.replace(each, name=f"b{number}") for number, each in enumerate(limits)]
    before = [structs.replace(each, life="moving", granted_at=NOON) for each in all_of_them[:going_count]]
    units = units_of(all_of_them[going_count:])
    alive = dict.fromkeys(GROUPS, members)

    ledger = MovementLedger(limits, before, before, {CAMPAIGN: guests_max}, alive)
    found = decide_grants(ledger, units, NOON)

    begun = {each.id for each in found.granted}
    so_far = [*before]
    for unit in units:
        is_begun = {each.id in begun for each in unit}
        assert len(is_begun) == 1, "a unit begins whole or not at all"
        with_it = [*so_far, *unit]
        # Budgets that were set lower than what goes on let nothing more begin where they are exceeded.
        broken = {*breaches(limits, with_it, with_it)} - {*breaches(limits, so_far, so_far)}
        left = [each for each in with_it if each.group == unit[0].group and each not in before]
        if unit[0].group and any(
            each.alive_min and counts(each, unit[0]) and members - len(left) < each.alive_min
            for each in limits
        ):
            broken.add("too few stay")
        # A unit that is larger than that begins alone.
        if len(with_it) > guests_max and so_far:
            broken.add("too many of the campaign")
        assert (is_begun == {True}) is not bool(broken), f"{unit}: {broken or found.waits}"
        so_far = with_it if is_begun == {True} else so_far


def counts(budget: MoveBudget, movement: Movement) -> bool:
    return budget.of in ("", str(movement.group))
