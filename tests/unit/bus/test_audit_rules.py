"""Rules of the audit for claims beside instances, ways back of moves, cells without a row, names of hosts, movements and budgets."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.audit import BookEntry, ExpectedClaim, MendConsumer, MendInstance
from bus.messages.build import InstanceState, Move
from bus.messages.keeping import BudgetState, CampaignId, MoveBudget, Movement, MovementId
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostState
from engine.inventories import ConsumerId, GroupId, ProviderId
from moor.client.books import instance_rules, rules
from moor.client.books.instance_rules import faults_of, faults_of_way_back, way_back_of
from moor.client.books.rules import (
    CLAIM_LEFT,
    NOTHING_MOVES,
    OVER_BUDGET,
    NeededClaims,
    faults_alone,
    faults_of_budgets,
    faults_of_claims,
    faults_of_minimums,
    faults_of_movements,
    is_claim_alone,
    is_claim_suspect,
)
from moor.client.books.views import NAME, Fault, InstanceView, is_held_by_nova, name_clashes
from tests.narrowing import present
from tests.properties.test_audit_properties import ID, LONG_AGO, NOW, PLACES, SIGHT, a_view, share_on

MIGRATION = ConsumerId(UUID(int=70))
WAY_BACK = ExpectedClaim(consumer=MIGRATION, type="MIGRATION", attempt=2, share=share_on(1))


def migration(**changes: object) -> BookEntry:
    """The consumer of a migration that holds its instance's share on the first host."""
    own = a_view().consumer
    assert own is not None
    beside = structs.replace(
        own, id=MIGRATION, type="MIGRATION", attempt=2, generation=2, held=share_on(1).amounts
    )
    return structs.replace(structs.replace(beside, host=share_on(1).host), **changes)


def alone(**changes: object) -> InstanceView:
    return InstanceView(id=MIGRATION, consumer=migration(**changes))


def with_entry(view: InstanceView, **changes: object) -> InstanceView:
    return structs.replace(view, in_cells=(structs.replace(view.in_cells[0], **changes),))


def moved() -> InstanceView:
    """An instance that waits for its move to be confirmed."""
    view = a_view("moved")
    return with_entry(view, claims=(*view.in_cells[0].claims, WAY_BACK))


def of_way_back(consumer: BookEntry | None) -> list[Fault]:
    return [*faults_of_way_back(moved(), consumer, SIGHT, PLACES)]


def kinds(faults: list[Fault]) -> list[str]:
    return [each.kind for each in faults]


def test_a_way_back_that_placement_has_not_or_has_otherwise_is_a_fault() -> None:
    assert way_back_of(moved().in_cells[0]) == WAY_BACK
    assert of_way_back(migration()) == []

    assert kinds(of_way_back(None)) == [instance_rules.MISSING]
    assert kinds(of_way_back(migration(user="bob"))) == [instance_rules.USER]
    assert kinds(of_way_back(migration(attempt=3, generation=3))) == [instance_rules.ATTEMPT]
    # Both looks must see the same migration, too.
    versions = {
        each.version for user in ("bob", "eve") for each in of_way_back(migration(user=user, held=()))
    }
    versions |= {each.version for each in of_way_back(None)}
    assert len(versions) == 2


def test_a_claim_beside_instances_has_leaked() -> None:
    assert is_claim_alone(alone())

    (leak,) = faults_alone(alone(), SIGHT, PLACES)
    assert leak.kind == rules.LEAK
    assert isinstance(leak.mend, MendConsumer)
    assert leak.mend.claim is None


# A host has attempt 2 of the instance, and its cell's row is of attempt 1: the row may come from a backup.
DOUBTFUL = structs.replace(a_view(on=1, attempt=2), in_cells=a_view(on=0, attempt=1).in_cells)


@pytest.mark.parametrize(
    ("view", "claim", "may_be"),
    [
        (a_view(), alone(), False),
        (moved(), alone(), True),
        (DOUBTFUL, alone(), True),
        (DOUBTFUL, alone(attempt=3, generation=3), False),
        (DOUBTFUL, alone(cell="c2"), False),
        (DOUBTFUL, alone(project="bank"), False),
        (DOUBTFUL, alone(type="VOLUME"), False),
        # Without a consumer nobody knows the project.
        (structs.replace(DOUBTFUL, consumer=None), alone(project="bank"), True),
    ],
)
def test_a_claim_that_an_instance_may_need_has_not_leaked(
    view: InstanceView, claim: InstanceView, *, may_be: bool
) -> None:
    needed = NeededClaims()
    needed.note(view, SIGHT)

    assert needed.may_be_needed(claim) is may_be


def test_a_leak_in_the_name_of_an_unknown_cell_is_named_and_kept() -> None:
    (leak,) = faults_alone(alone(cell="nowhere"), SIGHT, PLACES)

    assert (leak.kind, leak.mend) == (rules.LEAK, None)
    assert "'nowhere'" in leak.advice


@pytest.mark.parametrize("state", ["", "deleted", "error"])
def test_what_nova_holds_is_no_orphan_whatever_our_own_rows_say(state: str) -> None:
    ours = structs.replace(a_view(), in_cells=(), on_hosts=())
    assert ours.at_api is not None
    assert ours.consumer is not None
    told = structs.replace(ours.at_api, state=state, changed_at=None) if state else None
    of_cell = structs.replace(ours, at_api=told)
    of_nova = structs.replace(of_cell, consumer=structs.replace(ours.consumer, cell=""))

    assert instance_rules.ORPHAN in kinds([*faults_of(of_cell, SIGHT, PLACES)])
    assert instance_rules.ORPHAN not in kinds([*faults_of(of_nova, SIGHT, PLACES)])
    assert is_held_by_nova(of_nova) == (not state)
    assert not is_held_by_nova(of_cell)


def test_an_instance_whose_cell_has_no_row_of_it_is_told_and_only_a_deleted_one_is_mended() -> None:
    lost = structs.replace(a_view(), in_cells=())
    assert lost.at_api is not None
    going = structs.replace(lost, at_api=structs.replace(lost.at_api, state="deleting"), on_hosts=())

    (drift, stray) = faults_of(lost, SIGHT, PLACES)
    assert (drift.kind, drift.mend, stray.kind, stray.mend) == (
        instance_rules.DRIFT,
        None,
        instance_rules.STRAY,
        None,
    )
    assert drift.advice
    (row,) = [each for each in faults_of(going, SIGHT, PLACES) if each.kind == instance_rules.DRIFT]
    assert isinstance(row.mend, MendInstance)
    assert (row.mend.instance.state, row.mend.instance.host) == ("deleted", "")


def test_no_instance_is_judged_of_which_a_cell_that_may_have_it_is_silent() -> None:
    elsewhere = a_view()
    entry = elsewhere.in_cells[0]
    second = structs.replace(entry, instance=structs.replace(entry.instance, cell="c3"))
    in_two = structs.replace(elsewhere, in_cells=(entry, second))
    claimed = structs.replace(elsewhere, at_api=None, in_cells=(), on_hosts=())
    of_third = structs.replace(claimed, consumer=structs.replace(migration(), type="INSTANCE", cell="c3"))
    sight = structs.replace(SIGHT, known=SIGHT.known | {"c3"})

    for view, kind in ((in_two, instance_rules.TWICE), (of_third, instance_rules.ORPHAN)):
        assert [*faults_of(view, sight, PLACES)] == []
        (fault,) = faults_of(view, structs.replace(sight, cells=sight.known), PLACES)
        assert fault.kind == kind


def test_a_name_that_hosts_of_two_cells_have_is_told_whatever_its_case() -> None:
    names = (("c1", "h1"), ("c2", "H1"), ("c1", "h2"), ("c1", "H2"))
    hosts = [
        HostState(id=ProviderId(UUID(int=number)), name=name, cell=cell, up=True)
        for number, (cell, name) in enumerate(names)
    ]

    assert [(each.kind, each.text) for each in name_clashes(hosts)] == [
        (NAME, "hosts of cells c1, c2 are called h1")
    ]


# Movements, budgets and the claims of moves.

GROUP = GroupId(UUID(int=6))
HOUR = timedelta(hours=1)


def a_movement(number: int = 1, **changes: object) -> Movement:
    """A movement that goes on away from the host on which the instance is."""
    movement = Movement(
        id=MovementId(UUID(int=number)),
        instance=ID,
        campaign=CampaignId(UUID(int=3)),
        cause="campaign kernel",
        cell="c1",
        host=present(a_view().at_api).host,
        life="moving",
        project="shop",
        group=GROUP,
        place="dc1/hall1/rack1",
        to="h2",
        to_place="dc1/hall2",
        request_id=RequestId(UUID(int=40)),
        asked_at=NOW - HOUR,
        granted_at=NOW - HOUR / 2,
    )
    return structs.replace(movement, **changes)


@pytest.mark.parametrize(
    ("movement", "told", "said"),
    [
        ({}, {}, ""),
        ({}, None, "is moving, and no row of the API level has it"),
        # Its row may be on its way.
        ({"asked_at": NOW}, None, ""),
        ({"life": "planned"}, {"state": "deleted"}, "is planned, and it is deleted"),
        ({}, {"state": "deleted", "changed_at": NOW}, ""),
        ({}, {"host": "h2"}, "it is active on h2 in cell c1"),
        ({}, {"cell": "c2"}, "in cell c2"),
        ({}, {"state": "moving", "host": "h2"}, ""),
        ({}, {"state": "offloaded", "host": ""}, "it is offloaded on no host"),
    ],
)
def test_a_movement_goes_on_only_while_its_instance_is_on_its_host(
    movement: dict[str, Any], told: dict[str, object] | None, said: str
) -> None:
    rows = {} if told is None else {ID: structs.replace(present(a_view().at_api), **told)}
    faults = [*faults_of_movements([a_movement(**movement)], rows, SIGHT)]

    assert kinds(faults) == [NOTHING_MOVES] * bool(said)
    assert all(said in each.text and "campaign kernel" in each.text for each in faults)


TWO = (a_movement(1), a_movement(2, granted_at=NOW))
AT_NIGHT = NOW.replace(hour=23, minute=30)


@pytest.mark.parametrize(
    ("budget", "movements", "said"),
    [
        ({"scope": "cloud", "at_once": 2}, TWO, ""),
        ({"scope": "cloud", "at_once": 1}, TWO, "the cloud: 2 movements go on, and 1 may"),
        # It was set after the last grant, and counts for the next one.
        ({"scope": "cloud", "at_once": 1, "set_at": NOW + HOUR}, TWO, ""),
        ({"scope": "cloud", "at_once": 1, "set_at": NOW - HOUR / 4}, TWO, "2 movements go on"),
        ({"scope": "cloud", "at_once": 1}, (TWO[0], a_movement(2, life="planned")), ""),
        ({"scope": "cell", "at_once": 1}, (TWO[0], a_movement(2, cell="c2")), ""),
        ({"scope": "cell", "of": "c1", "at_once": 1}, TWO, "c1: 2"),
        ({"scope": "cell", "of": "c2", "at_once": 1}, TWO, ""),
        ({"scope": "host", "at_once": 1, "side": "out"}, TWO, f"c1/{TWO[0].host}: 2"),
        ({"scope": "host", "at_once": 1, "side": "in"}, (TWO[0], a_movement(2, to="h3")), ""),
        ({"scope": "host", "of": "H2", "at_once": 1}, TWO, "c1/h2: 2"),
        ({"scope": "domain", "level": 3, "at_once": 1}, TWO, "dc1/hall1/rack1: 2"),
        ({"scope": "domain", "level": 3, "at_once": 1, "side": "in"}, TWO, ""),
        ({"scope": "domain", "level": 2, "at_once": 1, "side": "in"}, TWO, "dc1/hall2: 2"),
        ({"scope": "domain", "of": "dc1/hall1", "at_once": 1}, TWO, "dc1/hall1: 2"),
        ({"scope": "domain", "of": "dc1/hall", "at_once": 1}, TWO, ""),
        ({"scope": "project", "at_once": 1}, TWO, "shop: 2"),
        ({"scope": "project", "of": "-", "at_once": 1}, (a_movement(1, project=""),) * 2, "-: 2"),
        ({"scope": "group", "at_once": 1}, TWO, f"{GROUP}: 2"),
        ({"scope": "group", "at_once": 1}, (a_movement(1, group=None),) * 2, ""),
        ({"scope": "cloud", "per_hour": 1}, TWO, "2 movements that go on began within an hour, and 1 may"),
        ({"scope": "cloud", "per_hour": 1}, (a_movement(1, granted_at=NOW - HOUR), TWO[1]), ""),
        ({"scope": "cloud", "quiet": ("22:00-06:00",)}, TWO, ""),
        (
            {"scope": "cloud", "quiet": ("22:00-06:00",)},
            (a_movement(1, granted_at=AT_NIGHT),),
            "began at 23:30 UTC, in the quiet time 22:00-06:00",
        ),
    ],
)
def test_a_budget_is_exceeded_if_its_last_grant_was_one_too_many(
    budget: dict[str, Any], movements: tuple[Movement, ...], said: str
) -> None:
    given = {"set_at": LONG_AGO, **budget}
    state = BudgetState(set_at=given.pop("set_at"), budget=MoveBudget(name="b", **given))
    faults = [*faults_of_budgets([state], movements)]

    assert bool(faults) == bool(said), faults
    assert {each.kind for each in faults} <= {OVER_BUDGET}
    assert not said or any(said in each.text for each in faults)


def a_member(number: int, **told: object) -> InstanceState:
    row = present(a_view().at_api)
    known = {
        "id": InstanceId(ConsumerId(UUID(int=number))),
        "changed_at": LONG_AGO,
        "state": "active",
        **told,
    }
    return structs.replace(row, **known)


@pytest.mark.parametrize(
    ("budget", "members", "is_broken"),
    [
        ({}, (a_member(11), a_member(12)), False),
        ({}, (a_member(11),), True),
        ({"of": str(GROUP).upper()}, (a_member(11),), True),
        ({"of": "another"}, (a_member(11),), False),
        # The one that moves does not stay.
        ({}, (a_member(1), a_member(11)), True),
        ({}, (a_member(11), a_member(12, state="stopped")), True),
        # It may have been active at the last grant.
        ({}, (a_member(11), a_member(12, state="deleted", changed_at=NOW + HOUR)), False),
        ({}, (a_member(11), a_member(12, state="deleted")), True),
        ({"set_at": NOW + HOUR}, (a_member(11),), False),
    ],
)
def test_so_many_members_of_a_group_stay_as_its_minimum_says(
    budget: dict[str, Any], members: tuple[InstanceState, ...], *, is_broken: bool
) -> None:
    given = {"set_at": LONG_AGO, **budget}
    state = BudgetState(
        set_at=given.pop("set_at"), budget=MoveBudget(name="b", scope="group", alive_min=2, **given)
    )
    other = BudgetState(budget=MoveBudget(name="c", scope="group", at_once=1))
    moves = a_movement(1, instance=a_member(1).id)
    faults = [*faults_of_minimums([other, state], GROUP, [moves], members)]

    assert [each.kind for each in faults] == [OVER_BUDGET] * is_broken
    assert all("1 active members of the group stay, and 2 must" in each.text for each in faults)
    evacuated = structs.replace(moves, kind="evacuate")
    assert [*faults_of_minimums([state], GROUP, [evacuated], members)] == []
    ended = structs.replace(moves, life="done")
    assert [*faults_of_minimums([state], GROUP, [ended], members)] == []


def test_an_ended_movement_leaves_no_claim_of_its_move() -> None:
    move = Move(
        request_id=RequestId(UUID(int=40)),
        number=2,
        kind="live-migrate",
        source="h1",
        ends_by=NOW,
        confirm_s=0,
    )
    view = moved()
    entry = structs.replace(view.in_cells[0], instance=structs.replace(view.in_cells[0].instance, move=move))
    waits = structs.replace(entry.instance, move=structs.replace(move, confirm_s=60))
    assert is_claim_suspect(entry)
    assert not is_claim_suspect(a_view().in_cells[0])
    # A person may confirm it yet.
    assert not is_claim_suspect(structs.replace(entry, instance=waits))

    (left,) = faults_of_claims({ID: entry}, [a_movement(life="done"), a_movement(life="moving")])
    assert (left.kind, left.about) == (CLAIM_LEFT, ID)
    other = a_movement(life="done", request_id=RequestId(UUID(int=41)))
    assert [*faults_of_claims({ID: entry}, [other])] == []
