"""Rules of the audit for claims beside instances, ways back of moves, cells without a row, and names of hosts."""

from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.audit import BookEntry, ExpectedClaim, MendConsumer, MendInstance
from engine.hosts import HostState
from engine.inventories import ConsumerId, ProviderId
from moor.client.books import instance_rules, rules
from moor.client.books.instance_rules import faults_of, faults_of_way_back, way_back_of
from moor.client.books.rules import NeededClaims, faults_alone, is_claim_alone
from moor.client.books.views import NAME, Fault, InstanceView, is_held_by_nova, name_clashes
from tests.properties.test_audit_properties import PLACES, SIGHT, a_view, share_on

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
