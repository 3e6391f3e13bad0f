"""Which movements budgets let begin."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.keeping import CampaignId, MoveBudget, Movement, MovementId
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, GroupId
from engine.refusals import TOGETHER_MAX
from keeper.core.grants import (
    Grants,
    MovementLedger,
    Use,
    decide_grants,
    first_of_unit,
    short_of,
    told_use,
    units_of,
    wrong_budget,
)

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
CAMPAIGN, GROUP = CampaignId(UUID(int=1)), GroupId(UUID(int=9))


def movement(number: int, **fields: Any) -> Movement:
    known: dict[str, Any] = {
        "host": "h1",
        "to": "h2",
        "cell": "c1",
        "project": "red",
        "asked_at": NOON,
    } | fields
    return Movement(
        id=MovementId(UUID(int=number)),
        instance=InstanceId(ConsumerId(UUID(int=number))),
        campaign=CAMPAIGN,
        cause="campaign spring",
        **known,
    )


def granted(
    *budgets: MoveBudget, wishes: list[list[Movement]], going: tuple[Movement, ...] = (), **fields: Any
) -> Grants:
    known: dict[str, Any] = {"recent": going, "guests_max": {CAMPAIGN: 100}, "alive": {}} | fields
    return decide_grants(MovementLedger(budgets, going, **known), wishes, NOON)


def going(number: int, **fields: Any) -> Movement:
    return movement(number, life="moving", granted_at=NOON - timedelta(minutes=5), **fields)


RACKS = {"place": "dc/r1", "to_place": "dc/r2"}


@pytest.mark.parametrize(
    ("budget", "others", "wish", "begins"),
    [
        pytest.param(MoveBudget(name="b", scope="cloud", at_once=2), [{}], {}, True, id="the cloud has room for one more"),
        pytest.param(MoveBudget(name="b", scope="cloud", at_once=1), [{}], {}, False, id="the cloud has none"),
        pytest.param(MoveBudget(name="b", scope="cell", at_once=1), [{"cell": "c2"}], {}, True, id="another cell"),
        pytest.param(MoveBudget(name="b", scope="cell", at_once=1), [{}], {}, False, id="the same cell"),
        pytest.param(MoveBudget(name="b", scope="cell", of="c2", at_once=1), [{}], {}, True, id="a budget of another cell"),
        pytest.param(MoveBudget(name="b", scope="project", at_once=1), [{"project": "blue"}], {}, True, id="another project"),
        pytest.param(MoveBudget(name="b", scope="project", at_once=1), [{}], {}, False, id="the same project"),
        pytest.param(MoveBudget(name="b", scope="project", at_once=1), [{"project": ""}], {"project": ""}, False, id="of no project"),
        pytest.param(MoveBudget(name="b", scope="host", side="in", at_once=1), [{"host": "h9"}], {}, False, id="to the same host"),
        pytest.param(MoveBudget(name="b", scope="host", side="in", at_once=1), [{"to": "h3"}], {}, True, id="from the same host to another"),
        pytest.param(MoveBudget(name="b", scope="host", side="out", at_once=1), [{"to": "h3"}], {}, False, id="out of the same host"),
        pytest.param(MoveBudget(name="b", scope="host", at_once=1), [{"host": "h2", "to": "h4"}], {}, False, id="out of the host where it goes"),
        pytest.param(MoveBudget(name="b", scope="host", of="h4", at_once=1), [{"host": "h4"}], {}, True, id="a budget of another host"),
        pytest.param(MoveBudget(name="b", scope="domain", level=2, at_once=1), [{"place": "dc/r2"}], RACKS, False, id="out of the rack where it goes"),
        pytest.param(MoveBudget(name="b", scope="domain", level=2, at_once=1), [{"place": "dc/r3"}], RACKS, True, id="out of another rack"),
        pytest.param(MoveBudget(name="b", scope="domain", level=3, at_once=1), [{"place": "dc/r2"}], RACKS, True, id="no place of this level"),
        pytest.param(MoveBudget(name="b", scope="domain", of="dc", at_once=1), [{"place": "dc/r3"}], RACKS, False, id="in the domain that is named"),
        pytest.param(MoveBudget(name="b", scope="domain", of="d", at_once=1), [{"place": "dc/r3"}], RACKS, True, id="beside the domain that is named"),
        pytest.param(MoveBudget(name="b", scope="group", at_once=1), [{"group": GROUP}], {"group": GROUP}, False, id="of the same group"),
        pytest.param(MoveBudget(name="b", scope="group", at_once=1), [{}], {}, True, id="of no group"),
        pytest.param(MoveBudget(name="b", scope="cloud", per_hour=1), [{}], {}, False, id="one in the last hour"),
        pytest.param(MoveBudget(name="b", scope="cloud", quiet=("11:00-13:00",)), [], {}, False, id="in a quiet time"),
        pytest.param(MoveBudget(name="b", scope="cloud", quiet=("22:00-12:00",)), [], {}, True, id="at the end of a quiet night"),
        pytest.param(MoveBudget(name="b", scope="cloud", quiet=("22:00-12:01",)), [], {}, False, id="before the end of a quiet night"),
        pytest.param(MoveBudget(name="b", scope="project", of="blue", quiet=("11:00-13:00",)), [], {}, True, id="quiet for another project"),
        pytest.param(MoveBudget(name="b", scope="cloud", at_once=5), [], {"to": ""}, False, id="who waits for room may wait long"),
        pytest.param(MoveBudget(name="b", scope="host", side="in", at_once=5), [], {"to": ""}, False, id="nobody knows where it would go"),
        pytest.param(MoveBudget(name="b", scope="project", of="blue", at_once=5), [], {"to": ""}, True, id="no budget concerns one that waits"),
    ],
)  # fmt: skip
def test_a_movement_begins_if_each_budget_that_counts_it_has_room(
    budget: MoveBudget, others: list[dict[str, Any]], wish: dict[str, Any], *, begins: bool
) -> None:
    before = tuple(going(number, **each) for number, each in enumerate(others, start=50))

    found = granted(budget, wishes=[[movement(1, **wish)]], going=before)

    assert [each.life for each in found.granted] == (["granted"] if begins else [])
    assert all("budget b" in why for why in found.waits.values())
    assert len(found.waits) == (not begins)


def test_each_wish_is_judged_by_what_was_granted_before_it_and_one_that_waits_holds_up_no_other() -> None:
    out = MoveBudget(name="out", scope="host", side="out", at_once=1)
    wishes = [[movement(1)], [movement(2)], [movement(3, host="h7")]]

    found = granted(out, wishes=wishes)

    assert [each.id.int for each in found.granted] == [1, 3]
    assert found.waits == {MovementId(UUID(int=2)): "budget out: 1 of c1/h1 may move at once"}
    assert found.granted[0].request_id != found.granted[1].request_id
    assert found.granted[0].granted_at == NOON


def test_members_that_leave_together_begin_together_or_not_at_all() -> None:
    unit = [movement(number, group=GROUP, together=True) for number in (1, 2, 3)]

    assert granted(MoveBudget(name="b", scope="cloud", at_once=2), wishes=[unit]).granted == []
    found = granted(MoveBudget(name="b", scope="cloud", at_once=3), wishes=[unit]).granted
    assert len(found) == 3
    assert len({each.request_id for each in found}) == 1


def test_as_many_guests_of_a_campaign_move_as_it_says_and_those_that_wait_for_room_do_not_count() -> None:
    before = (going(50), going(51, to=""))

    found = granted(wishes=[[movement(1)], [movement(2)]], going=before, guests_max={CAMPAIGN: 2})

    assert [each.id.int for each in found.granted] == [1]
    assert "guests_at_once" in found.waits[MovementId(UUID(int=2))]


def test_a_group_that_is_larger_than_that_moves_when_nothing_else_of_its_campaign_does() -> None:
    unit = [movement(number, group=GROUP, together=True) for number in (1, 2, 3)]

    assert granted(wishes=[unit], going=(going(50),), guests_max={CAMPAIGN: 2}).granted == []
    found = granted(wishes=[unit, [movement(9)]], guests_max={CAMPAIGN: 2})
    assert [each.id.int for each in found.granted] == [1, 2, 3]


def test_of_a_group_so_many_members_stay_active_as_its_budget_says() -> None:
    least = MoveBudget(name="alive", scope="group", alive_min=2)
    wishes = [[movement(number, group=GROUP)] for number in (1, 2)]

    found = granted(least, wishes=wishes, alive={GROUP: 3})

    assert [each.id.int for each in found.granted] == [1]
    why = f"budget alive: 2 active members of group {GROUP} stay where they are"
    assert found.waits[MovementId(UUID(int=2))] == why


def test_what_is_on_a_lost_host_is_not_alive_and_a_group_that_has_too_few_is_brought_back_first() -> None:
    least = MoveBudget(name="alive", scope="group", alive_min=2)
    lost = [movement(number, group=GROUP, kind="evacuate") for number in (7, 8)]
    found = granted(least, wishes=[[each] for each in lost], alive={GROUP: 1})
    assert [each.id.int for each in found.granted] == [7, 8]

    early, vital = movement(1, kind="evacuate"), movement(2, kind="evacuate", priority=5)
    short = short_of([least], {GROUP: 1})
    assert [unit[0].id.int for unit in units_of([early, *lost, vital], short)] == [2, 7, 8, 1]
    assert short_of([least], {GROUP: 2}) == set()
    other = structs.replace(least, of="00000000-0000-4000-8000-0000000000ff")
    assert short_of([other], {GROUP: 1}) == set()
    assert [unit[0].id.int for unit in units_of([early, *lost, vital])] == [2, 1, 7, 8]


def test_the_highest_priority_goes_first_then_the_oldest_and_a_large_group_by_parts() -> None:
    late = movement(1, asked_at=NOON + timedelta(hours=1))
    members = [
        movement(number, group=GROUP, together=True) for number in range(400, 400 - TOGETHER_MAX - 5, -1)
    ]

    units = units_of([late, movement(2), movement(3, priority=5), *members])

    assert [unit[0].id.int for unit in units] == [3, 2, 400 - TOGETHER_MAX - 4, 1]
    assert len(units[2]) == TOGETHER_MAX + 5
    assert len(first_of_unit(units[2])) == TOGETHER_MAX


def test_the_use_of_a_budget_is_that_of_the_one_that_uses_most() -> None:
    use = Use(MoveBudget(name="b", scope="cell"), [going(1), going(2), going(3, cell="c2")], [going(1)])

    assert (told_use(use).of, told_use(use).at_once, told_use(use).last_hour) == ("c1", 2, 1)


RIGHT = MoveBudget(name="b", scope="cloud", at_once=1)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("budget.name", {"name": ""}),
        ("budget.at_once", {"at_once": 0}),
        ("budget.at_once", {"at_once": -1}),
        ("budget.at_once", {"at_once": None}),
        ("budget.per_hour", {"per_hour": 0}),
        ("budget.alive_min", {"alive_min": 1}),
        ("budget.alive_min", {"scope": "group", "alive_min": 0}),
        ("budget.level", {"level": 2}),
        ("budget.level", {"scope": "domain"}),
        ("budget.level", {"scope": "domain", "of": "dc1", "level": 1}),
        ("budget.side", {"side": "in"}),
        ("budget.quiet", {"quiet": ("22:00-06:00", "24:00-06:00")}),
        ("budget.quiet", {"quiet": ("6-7",)}),
        ("budget.quiet", {"quiet": ("06:00-06:00",)}),
        ("budget.of", {"scope": "cloud", "of": "c1"}),
    ],
)
def test_a_wrong_budget_is_refused_by_its_field(field: str, wrong: dict[str, Any]) -> None:
    found = wrong_budget(structs.replace(RIGHT, **wrong))
    assert found is not None
    assert found[0] == field
    assert wrong_budget(RIGHT) is None
