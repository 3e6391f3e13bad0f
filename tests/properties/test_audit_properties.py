"""Any damage to the books of an instance is found; its mends make the audit silent; and things in flight are no faults."""

import itertools
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
from moor.client.books import instance_rules
from moor.client.books.instance_rules import faults_of
from moor.client.books.views import Fault, InstanceView, OnHost, Places, Sight
from tests.narrowing import present

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
        return structs.replace(view, consumer=structs.replace(present(view.consumer), **changes))

    return harm


def _row(**changes: object) -> Damage:
    def harm(view: InstanceView) -> InstanceView:
        return structs.replace(view, at_api=structs.replace(present(view.at_api), **changes))

    return harm


def _amount(index: int, more: int) -> Damage:
    def harm(view: InstanceView) -> InstanceView:
        held = list(present(view.consumer).held)
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
        young = structs.replace(harmed, in_cells=(structs.replace(harmed.in_cells[0], stirred_at=just_now),))
    else:
        young = _row(changed_at=just_now)(harmed)

    assert faults(young) == []
    assert faults(harmed) != []


@given(living, damages)
def test_a_cell_that_does_not_answer_is_not_judged(view: InstanceView, damage: tuple[str, Damage]) -> None:
    harmed = structs.replace(damage[1](view), in_cells=())

    assert [*faults_of(harmed, structs.replace(SIGHT, cells=frozenset()), PLACES)] == []


def gone(view: InstanceView, *names: str) -> InstanceView:
    """The view without these books."""
    nothing: dict[str, object] = {"at_api": None, "consumer": None, "in_cells": (), "on_hosts": ()}
    return structs.replace(view, **{name: nothing[name] for name in names})


ACTIVE, DELETED = a_view(), a_view("deleted")
CLAIMED = gone(ACTIVE, "at_api", "in_cells", "on_hosts")
HOLDS = _consumer(held=share_on(0).amounts, ended=False)(DELETED)
WAITS = structs.replace(HOLDS.in_cells[0], claims=(ExpectedClaim(consumer=ID, attempt=1),))
STRAYED = InstanceView(id=ID, on_hosts=(OnHost("c1", HostEntry(ID, HOSTS[0], 1)),))
GIVEN_UP = [structs.replace(ACTIVE, in_cells=a_view(state).in_cells) for state in ("deleted", "error")]
ALIVE = structs.replace(DELETED, consumer=ACTIVE.consumer, on_hosts=ACTIVE.on_hosts)
IN_C2 = structs.replace(ACTIVE.in_cells[0], instance=structs.replace(ACTIVE.in_cells[0].instance, cell="c2"))
MOVED = (ResourceAmount(HOSTS[0], "VCPU", 2), *share_on(0).amounts[1:])
# The cell's row comes from an old backup, in which the instance had not moved yet.
OLD = structs.replace(a_view(on=1, attempt=2), in_cells=a_view(on=0, attempt=1).in_cells)
Found = tuple[str, type | None]
ORPHAN, FREED = (instance_rules.ORPHAN, None), (instance_rules.ORPHAN, MendConsumer)


@pytest.mark.parametrize(
    ("view", "found"),
    [
        (CLAIMED, [FREED]),
        # A boot between its claim and its row, and what a program allocated for itself.
        (_consumer(is_new=True)(CLAIMED), []),
        (_row(state="accepted", cell="")(gone(ACTIVE, "in_cells", "on_hosts")), []),
        (_consumer(attempt=0)(CLAIMED), []),
        (_consumer(type="VOLUME")(CLAIMED), []),
        (_consumer(cell="nowhere")(CLAIMED), [ORPHAN]),
        # A deleted instance still holds something, unless its host must clean up; and what its host has must go first.
        (HOLDS, [FREED]),
        (structs.replace(HOLDS, in_cells=(WAITS,)), []),
        (ALIVE, [ORPHAN, (instance_rules.STRAY, DestroyInstance)]),
        (gone(ALIVE, "on_hosts"), [FREED]),
        (STRAYED, [(instance_rules.STRAY, None)]),
        (
            structs.replace(STRAYED, in_cells=DELETED.in_cells, at_api=DELETED.at_api),
            [(instance_rules.STRAY, DestroyInstance)],
        ),
        *[(each, [(getattr(instance_rules, kind), None) for kind in ("ORPHAN", "DRIFT", "STRAY")]) for each in GIVEN_UP],
        *[(gone(a_view(state), "on_hosts"), [(instance_rules.LOST, None)]) for state in ("active", "moved", "broken")],
        (structs.replace(ACTIVE, in_cells=(*ACTIVE.in_cells, IN_C2)), [(instance_rules.TWICE, None)]),
        # After a reshape the sums of the tree count.
        (_consumer(held=MOVED)(ACTIVE), [(instance_rules.AMOUNTS, MendConsumer)]),
        (_consumer(held=MOVED, generation=2)(ACTIVE), []),
        (
            OLD,
            [(getattr(instance_rules, kind), None) for kind in ("HOST", "ATTEMPT", "DRIFT", "STRAY", "LOST")],
        ),
    ],
    ids=itertools.count(),
)  # fmt: skip
def test_what_is_found_and_what_may_be_mended(view: InstanceView, found: list[Found]) -> None:
    told = [*faults(view)]
    pairs = [(each.kind, type(each.mend) if each.mend else None) for each in told]
    assert sorted(pairs, key=str) == sorted(found, key=str)
    assert all(each.mend or each.advice for each in told)


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
    return Places({**{id_: each for id_, each in PLACES.providers.items() if id_ != NUMA[0]}, **cells})


def test_a_lost_claim_is_mended_on_the_present_providers_of_a_host_with_another_shape() -> None:
    (fault,) = faults_of(structs.replace(a_view(), consumer=None), SIGHT, with_cells(1, 2))

    assert fault.kind == instance_rules.MISSING
    assert isinstance(fault.mend, MendConsumer)
    mended = present(fault.mend.claim).share.amounts
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
