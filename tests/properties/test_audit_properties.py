"""Any damage to the books of an instance is found; its mends make the audit silent; and things in flight are no faults."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import hypothesis.strategies as st
import pytest
from hypothesis import given
from msgspec import structs

from bus.messages.audit import BookEntry, CellEntry, ExpectedClaim, HostEntry, MendConsumer, MendInstance
from bus.messages.build import InstanceDetails, InstanceState, Size
from bus.messages.cell import DestroyInstance, RemoveFromCell
from bus.messages.placement import NO_OWNER
from engine.flavors import RequestId
from engine.inventories import (
    ConsumerId,
    GroupId,
    InventoryState,
    ProviderId,
    ProviderState,
    ResourceAmount,
    ServerGroup,
    Share,
)
from moor.books import instance_rules
from moor.books.instance_rules import faults_of
from moor.books.views import Fault, InstanceView, OnHost, Places, Sight, in_present_shape

NOW = datetime(2026, 11, 22, 9, 0, tzinfo=UTC)
LONG_AGO = NOW - timedelta(hours=1)
ID = ConsumerId(UUID(int=7))
HOSTS = [ProviderId(UUID(int=100 + n)) for n in range(3)]
NUMA = [ProviderId(UUID(int=200 + n)) for n in range(3)]
POOL = ProviderId(UUID(int=300))
PLENTY = InventoryState(total=100_000)
PLACES = Places(
    {
        **{
            id_: ProviderState(internal=1, id=id_, name=f"host-{id_.int}", root=id_, inventories=stock)
            for id_, stock in (*((host, {}) for host in HOSTS), (POOL, {"DISK_GB": PLENTY}))
        },
        **{
            id_: ProviderState(
                internal=1,
                id=id_,
                name=f"numa-{id_.int}",
                root=host,
                inventories={"VCPU": PLENTY, "MEMORY_MB": PLENTY},
            )
            for host, id_ in zip(HOSTS, NUMA, strict=True)
        },
    }
)
SIGHT = Sight(
    now=NOW,
    settle=timedelta(minutes=1),
    known=frozenset({"c1", "c2"}),
    cells=frozenset({"c1", "c2"}),
    computes=frozenset({"c1", "c2"}),
    asked=frozenset(HOSTS),
)

AMOUNTS = {"VCPU": 2, "MEMORY_MB": 512, "DISK_GB": 5}
Damage = Callable[[InstanceView], InstanceView]


def share_on(number: int) -> Share:
    return Share(
        host=HOSTS[number],
        amounts=(
            ResourceAmount(NUMA[number], "VCPU", 2),
            ResourceAmount(NUMA[number], "MEMORY_MB", 512),
            ResourceAmount(POOL, "DISK_GB", 5),
        ),
    )


def a_view(
    state: str = "active", *, on: int = 0, attempt: int = 1, grouped: bool = False, project: str = "shop"
) -> InstanceView:
    """An instance of which all have the same."""
    holds = state in ("building", "active", "moved", "broken")
    share = share_on(on)
    group = ServerGroup(id=GroupId(UUID(int=9)), policy="affinity") if grouped else None
    there = HostEntry(ID, HOSTS[on], attempt)
    published = {"building": "placed", "broken": "error"}.get(state, state)
    of_cell = InstanceState(
        id=ID,
        request_id=RequestId(UUID(int=5)),
        sequence=4,
        state="error" if state == "broken" else state,
        cell="c1",
        host=f"host-{HOSTS[on].int}" if state in ("active", "moved", "broken") else "",
        attempt=attempt,
        project=project,
        changed_at=LONG_AGO,
    )
    return InstanceView(
        id=ID,
        at_api=structs.replace(of_cell, state=published, sequence=6),
        in_cells=(
            CellEntry(
                instance=of_cell,
                user="ann",
                host=HOSTS[on],
                group=group,
                claims=(ExpectedClaim(consumer=ID, attempt=attempt, share=share),) if holds else (),
                on_hosts=(there,) if holds else (),
                stirred_at=LONG_AGO,
            ),
        ),
        consumer=BookEntry(
            id=ID,
            type="INSTANCE",
            project=project or NO_OWNER,
            user="ann",
            cell="c1",
            generation=attempt,
            attempt=attempt,
            ended=not holds,
            host=HOSTS[on] if holds else None,
            group=group.id if group and holds else None,
            held=share.amounts if holds else (),
        ),
        on_hosts=(OnHost("c1", there),) if holds else (),
        details=InstanceDetails(id=ID, size=Size(amounts=AMOUNTS)),
    )


views = st.builds(
    a_view,
    st.sampled_from(("building", "active", "moved", "broken", "error", "deleted")),
    on=st.integers(0, 1),
    attempt=st.integers(1, 4),
    grouped=st.booleans(),
    project=st.sampled_from(("shop", "")),
)
living = st.builds(
    a_view,
    st.sampled_from(("active", "moved", "broken")),
    on=st.integers(0, 1),
    attempt=st.integers(1, 4),
    grouped=st.booleans(),
)


def _consumer(**changes: object) -> Damage:
    def harm(view: InstanceView) -> InstanceView:
        assert view.consumer is not None
        return structs.replace(view, consumer=structs.replace(view.consumer, **changes))

    return harm


def _row(**changes: object) -> Damage:
    def harm(view: InstanceView) -> InstanceView:
        assert view.at_api is not None
        return structs.replace(view, at_api=structs.replace(view.at_api, **changes))

    return harm


def _amount(index: int, more: int) -> Damage:
    def harm(view: InstanceView) -> InstanceView:
        assert view.consumer is not None
        held = list(view.consumer.held)
        held[index] = ResourceAmount(held[index].provider, held[index].resource, held[index].amount + more)
        return _consumer(held=tuple(held))(view)

    return harm


damages: st.SearchStrategy[tuple[str, Damage]] = st.one_of(
    st.just((instance_rules.MISSING, lambda view: structs.replace(view, consumer=None))),
    st.just((instance_rules.MISSING, _consumer(held=()))),
    st.just((instance_rules.MISSING, _consumer(ended=True))),
    st.builds(lambda index, more: (instance_rules.AMOUNTS, _amount(index, more)), st.integers(0, 2), st.integers(1, 9)),
    st.builds(lambda count: (instance_rules.AMOUNTS, lambda view: _consumer(held=view.consumer.held[:count])(view)), st.integers(1, 2)),
    st.just((instance_rules.HOST, _consumer(host=HOSTS[2], held=share_on(2).amounts))),
    st.just((instance_rules.HOST, _consumer(host=None))),
    st.sampled_from(["MIGRATION", "CLEANUP", "VOLUME", ""]).map(lambda kind: (instance_rules.TYPE, _consumer(type=kind))),
    st.just((instance_rules.PROJECT, _consumer(project="bank"))),
    st.just((instance_rules.USER, _consumer(user="bob"))),
    st.just((instance_rules.GROUP, _consumer(group=GroupId(UUID(int=11))))),
    st.integers(5, 9).map(lambda attempt: (instance_rules.ATTEMPT, _consumer(attempt=attempt, generation=attempt))),
    st.just((instance_rules.ATTEMPT, _consumer(cell="c2"))),
    st.sampled_from(["placed", "rebuilding", "moving"]).map(lambda state: (instance_rules.DRIFT, _row(state=state))),
    st.just((instance_rules.DRIFT, _row(cell="c2"))),
    st.just((instance_rules.DRIFT, _row(host="elsewhere"))),
    st.just((instance_rules.DRIFT, _row(cell="nowhere"))),
    st.sampled_from(["accepted", "waiting"]).map(lambda state: (instance_rules.DRIFT, _row(state=state))),
    st.sampled_from(["CLEANUP", "MIGRATION"]).map(lambda kind: (instance_rules.TYPE, _consumer(type=kind))),
    st.just((instance_rules.ATTEMPT, _consumer(generation=0))),
    st.sampled_from(["deleted", "deleting"]).map(lambda state: (instance_rules.DRIFT, _row(state=state))),
    st.just((instance_rules.UNLISTED, lambda view: structs.replace(view, at_api=None))),
    st.just((instance_rules.STRAY, lambda view: structs.replace(view, on_hosts=(*view.on_hosts, OnHost("c1", HostEntry(ID, HOSTS[2], 1)))))),
)  # fmt: skip


def faults(view: InstanceView) -> list[Fault]:
    return [*faults_of(view, SIGHT, PLACES)]


def mended(view: InstanceView, fault: Fault) -> InstanceView:
    """The view after this mend, as placement, the API level, a cell and a host carry it out."""
    mend = fault.mend
    match mend:
        case MendConsumer(claim=None):
            return _consumer(held=(), ended=True)(view)
        case MendConsumer(claim=claim):
            assert claim is not None
            before = view.consumer
            return structs.replace(
                view,
                consumer=BookEntry(
                    id=ID,
                    type=claim.type,
                    project=claim.project or NO_OWNER,
                    user=claim.user or NO_OWNER,
                    cell=claim.cell,
                    generation=(before.generation if before else 0) + 1,
                    attempt=claim.attempt,
                    host=claim.share.host,
                    group=claim.group.id if claim.group else None,
                    held=claim.share.amounts,
                ),
            )
        case MendInstance():
            assert view.at_api is not None
            return structs.replace(view, at_api=structs.replace(mend.instance, sequence=mend.seen + 1))
        case RemoveFromCell():
            deleted = structs.replace(view.in_cells[0].instance, state="deleted", host="")
            gone = structs.replace(view.in_cells[0], instance=deleted, claims=(), on_hosts=())
            after = structs.replace(view, in_cells=(gone,), on_hosts=(), consumer=None)
            return _row(state="deleted")(after)
        case DestroyInstance():
            left = [
                each
                for each in view.on_hosts
                if each.entry.host != mend.host or each.entry.attempt != mend.attempt
            ]
            return structs.replace(view, on_hosts=tuple(left))
        case _:
            return view


@given(views)
def test_books_that_agree_have_no_faults(view: InstanceView) -> None:
    assert faults(view) == []


@given(living, st.lists(damages, min_size=1, max_size=3))
def test_any_damage_is_found_and_mended_and_then_there_is_silence(
    view: InstanceView, harms: list[tuple[str, Damage]]
) -> None:
    kind, harm = harms[0]
    assert kind in {each.kind for each in faults(harm(view))}

    for _, other in harms:
        if view.consumer is not None and view.consumer.held and view.at_api is not None:
            view = other(view)
    # Some faults show only when others are mended; each round mends the first of what it finds.
    for _ in range(10):
        found = [each for each in faults(view) if each.mend is not None]
        if not found:
            break
        view = mended(view, found[0])
    assert [each.kind for each in faults(view) if each.kind != instance_rules.UNLISTED] == []


@given(living, damages, st.integers(0, 59), st.sampled_from(["the cell", "the API level"]))
def test_what_changed_just_now_is_not_judged(
    view: InstanceView, damage: tuple[str, Damage], seconds: int, who: str
) -> None:
    just_now = NOW - timedelta(seconds=seconds)
    harmed = damage[1](view)
    if who == "the cell" or harmed.at_api is None:
        entry = structs.replace(harmed.in_cells[0], stirred_at=just_now)
        young = structs.replace(harmed, in_cells=(entry,))
    else:
        young = _row(changed_at=just_now)(harmed)

    assert faults(young) == []
    assert faults(harmed) != []


@given(living, damages)
def test_a_cell_that_does_not_answer_is_not_judged(view: InstanceView, damage: tuple[str, Damage]) -> None:
    harmed = structs.replace(damage[1](view), in_cells=())

    assert [*faults_of(harmed, structs.replace(SIGHT, cells=frozenset()), PLACES)] == []


def test_a_boot_between_its_claim_and_its_row_is_no_orphan() -> None:
    claimed = structs.replace(a_view(), at_api=None, in_cells=(), on_hosts=())

    assert [each.kind for each in faults(claimed)] == [instance_rules.ORPHAN]
    assert faults(_consumer(is_new=True)(claimed)) == []
    accepted = structs.replace(a_view(), in_cells=(), on_hosts=())
    assert faults(_row(state="accepted", cell="")(accepted)) == []


def test_what_a_program_allocated_for_itself_is_no_orphan() -> None:
    claimed = structs.replace(a_view(), at_api=None, in_cells=(), on_hosts=())

    assert faults(_consumer(attempt=0)(claimed)) == []
    assert faults(_consumer(type="VOLUME")(claimed)) == []


def test_after_a_reshape_the_sums_of_the_tree_count() -> None:
    moved = (ResourceAmount(HOSTS[0], "VCPU", 2), *share_on(0).amounts[1:])

    assert [each.kind for each in faults(_consumer(held=moved)(a_view()))] == [instance_rules.AMOUNTS]
    assert faults(_consumer(held=moved, generation=2)(a_view())) == []
    assert faults(_consumer(held=moved[1:], generation=2)(a_view())) != []


def with_cells(*stocks: int) -> Places:
    """The first host has these cells now, with so many processors free, and not the one that the instance was claimed on."""
    cells = {
        (id_ := ProviderId(UUID(int=400 + number))): ProviderState(
            internal=1,
            id=id_,
            name=f"cell-{number}",
            root=HOSTS[0],
            inventories={"VCPU": InventoryState(total=free + 3, used=3), "MEMORY_MB": PLENTY},
        )
        for number, free in enumerate(stocks)
    }
    there = {id_: each for id_, each in PLACES.providers.items() if id_ != NUMA[0]}
    return Places({**there, **cells})


def test_a_lost_claim_is_mended_on_the_present_providers_of_a_host_with_another_shape() -> None:
    lost = structs.replace(a_view(), consumer=None)
    (fault,) = faults_of(lost, SIGHT, with_cells(1, 2))

    assert fault.kind == instance_rules.MISSING
    assert isinstance(fault.mend, MendConsumer)
    assert fault.mend.claim is not None
    mended = fault.mend.claim.share.amounts
    assert [(each.provider.int, each.resource, each.amount) for each in mended] == [
        (401, "VCPU", 2),
        (400, "MEMORY_MB", 512),
        (300, "DISK_GB", 5),
    ]
    # It is as after a claim then, and what the cell's row says is of the old shape.
    assert [*faults_of(_consumer(held=mended)(a_view()), SIGHT, with_cells(1, 2))] == []
    less = (structs.replace(mended[0], amount=1), *mended[1:])
    assert [each.kind for each in faults_of(_consumer(held=less)(a_view()), SIGHT, with_cells(1, 2))] == [
        instance_rules.AMOUNTS
    ]


@pytest.mark.parametrize(
    ("free", "parts"), [((1, 1), [(400, 1), (401, 1)]), ((0, 1), [(401, 1), (NUMA[0].int, 1)])]
)
def test_what_no_present_provider_has_alone_is_mended_in_parts_and_the_rest_is_left_to_placement(
    free: tuple[int, int], parts: list[tuple[int, int]]
) -> None:
    share = in_present_shape(share_on(0), with_cells(*free))

    assert [(each.provider.int, each.amount) for each in share.amounts if each.resource == "VCPU"] == parts


def test_a_deleted_instance_that_still_holds_something_is_an_orphan_unless_its_host_must_clean_up() -> None:
    deleted = _consumer(held=share_on(0).amounts, ended=False)(a_view("deleted"))
    (fault,) = faults(deleted)
    waits = structs.replace(deleted.in_cells[0], claims=(ExpectedClaim(consumer=ID, attempt=1),))

    assert fault.kind == instance_rules.ORPHAN
    assert isinstance(fault.mend, MendConsumer)
    assert fault.mend.claim is None
    assert faults(structs.replace(deleted, in_cells=(waits,))) == []


@pytest.mark.parametrize("state", ["active", "moved", "broken"])
def test_a_host_without_the_instance_that_it_should_have_is_found_only_if_it_could_be_asked(
    state: str,
) -> None:
    lost = structs.replace(a_view(state), on_hosts=())

    assert [(each.kind, each.mend) for each in faults(lost)] == [(instance_rules.LOST, None)]
    unasked = structs.replace(SIGHT, asked=frozenset())
    assert [*faults_of(lost, unasked, PLACES)] == []


def test_what_no_row_knows_on_a_host_is_left_there() -> None:
    stray = InstanceView(id=ID, on_hosts=(OnHost("c1", HostEntry(ID, HOSTS[0], 1)),))
    (fault,) = faults(stray)
    (known,) = faults(
        structs.replace(stray, in_cells=a_view("deleted").in_cells, at_api=a_view("deleted").at_api)
    )

    assert (fault.kind, fault.mend) == (instance_rules.STRAY, None)
    assert fault.advice
    assert isinstance(known.mend, DestroyInstance)


def test_two_cells_with_one_instance_are_told_and_not_chosen_between() -> None:
    view = a_view()
    other = structs.replace(view.in_cells[0], instance=structs.replace(view.in_cells[0].instance, cell="c2"))

    (fault,) = faults(structs.replace(view, in_cells=(*view.in_cells, other)))

    assert (fault.kind, fault.mend) == (instance_rules.TWICE, None)


def test_a_row_older_than_what_a_host_has_is_not_followed() -> None:
    """The cell's row comes from an old backup, in which the instance had not moved yet."""
    now, old = a_view(on=1, attempt=2), a_view(on=0, attempt=1)
    found = faults(structs.replace(now, in_cells=old.in_cells))

    assert {instance_rules.HOST, instance_rules.ATTEMPT, instance_rules.DRIFT, instance_rules.STRAY} <= {
        each.kind for each in found
    }
    assert [each.mend for each in found if each.mend] == []
    assert all(each.advice for each in found)


@pytest.mark.parametrize("state", ["deleted", "error"])
def test_an_instance_that_only_its_cells_row_gives_up_keeps_what_it_holds(state: str) -> None:
    there, gone = a_view(), a_view(state)
    given_up = structs.replace(there, in_cells=gone.in_cells)

    assert {each.kind for each in faults(given_up)} == {
        instance_rules.ORPHAN,
        instance_rules.DRIFT,
        instance_rules.STRAY,
    }
    assert [each.mend for each in faults(given_up) if each.mend] == []
    # Without an instance on its host there is nothing to lose.
    assert all(each.mend for each in faults(structs.replace(given_up, on_hosts=())))


def test_the_claim_of_a_deleted_instance_is_freed_only_when_no_host_has_it() -> None:
    deleted = structs.replace(a_view("deleted"), consumer=a_view().consumer, on_hosts=a_view().on_hosts)

    assert [(each.kind, type(each.mend)) for each in faults(deleted)] == [
        (instance_rules.ORPHAN, type(None)),
        (instance_rules.STRAY, DestroyInstance),
    ]
    (orphan,) = faults(structs.replace(deleted, on_hosts=()))
    assert isinstance(orphan.mend, MendConsumer)


def test_a_claim_in_the_name_of_an_unknown_cell_is_named_and_kept() -> None:
    (orphan,) = faults(
        _consumer(cell="nowhere")(structs.replace(a_view(), at_api=None, in_cells=(), on_hosts=()))
    )

    assert (orphan.kind, orphan.mend) == (instance_rules.ORPHAN, None)
    assert "'nowhere'" in orphan.advice
