"""Which daemon owns which node: as a rule over values, and played by daemons that see different members."""

from collections.abc import Iterable, Sequence
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from engine.inventories import ProviderId
from ironic_sync.core.ring import Member, NodeHandover, Owned, Ring, gives, takes, takes_anew, why
from tests.properties.bounds import BOUNDED, THOROUGH

Nodes = dict[ProviderId, Owned]


def node_id(number: int) -> ProviderId:
    return ProviderId(UUID(int=number))


def a_member(name: str, *, left_s: float = 10.0, draining: bool = False) -> Member:
    return Member(name=name, incarnation=f"{name}-1", lease_left_s=left_s, is_draining=draining)


def members_of(*names: str) -> tuple[Member, ...]:
    return tuple(map(a_member, names))


def applied(nodes: Nodes, moves: Iterable[NodeHandover]) -> Nodes:
    """As a store does it: by compare-and-set on owner and epoch."""
    after = dict(nodes)
    for move in moves:
        now = after[move.id]
        if (now.owner, now.epoch) == (move.owner, move.epoch) and not (move.only_free and now.holds_instance):
            after[move.id] = structs.replace(now, owner=move.to, epoch=now.epoch + 1)
    return after


def acted(nodes: Nodes, members: Sequence[Member], me: str) -> Nodes:
    """One look of a daemon at the ring: it takes nodes, then gives nodes."""
    taken = applied(nodes, takes(nodes.values(), members, me))
    return applied(taken, gives(taken.values(), members, me))


def all_acted(nodes: Nodes, members: Sequence[Member]) -> Nodes:
    for member in members:
        if member.is_alive:
            nodes = acted(nodes, members, member.name)
    return nodes


NAMES = st.sampled_from([f"d{n}" for n in range(1, 7)])
MEMBERS = st.lists(
    st.builds(
        lambda name, left_s, draining: a_member(name, left_s=left_s, draining=draining),
        NAMES,
        st.sampled_from([-1.0, 0.0, 5.0, 5.0, 5.0]),
        st.sampled_from([False, False, False, True]),
    ),
    unique_by=lambda each: each.name,
    max_size=6,
).map(tuple)
OWNERS = st.one_of(NAMES, st.just(""), st.just("gone"))
NODES = st.dictionaries(
    st.integers(1, 2**128 - 1), st.tuples(OWNERS, st.integers(0, 3), st.booleans()), max_size=25
).map(lambda drawn: {node_id(n): Owned(node_id(n), *each) for n, each in drawn.items()})


def may_own(members: Iterable[Member]) -> set[str]:
    return {each.name for each in members if each.is_alive and not each.is_draining}


# Where nodes belong


@given(MEMBERS, st.integers(0, 2**128 - 1))
@THOROUGH
def test_every_daemon_computes_the_same_owner_and_it_may_own_nodes(
    members: tuple[Member, ...], number: int
) -> None:
    owner = Ring(members).owner_of(node_id(number))

    assert owner == Ring(members[::-1]).owner_of(node_id(number))
    assert (owner in may_own(members)) if may_own(members) else owner == ""
    assert owner == next((name for name, _ in Ring(members).scores(node_id(number))), "")


@pytest.mark.parametrize("count", [2, 3, 8])
@pytest.mark.parametrize("step", [1, 2**64, 0x9E3779B97F4A7C15F39CC0605CEDC835])
def test_nodes_are_shared_alike_whatever_their_ids_have_in_common(count: int, step: int) -> None:
    ring = Ring(members_of(*(f"d{n}" for n in range(count))))
    owners = [ring.owner_of(node_id(n * step % 2**128)) for n in range(1, 8001)]

    fair = 8000 / count
    for name in ring.names:
        assert abs(owners.count(name) - fair) < 0.1 * fair


def test_the_owners_are_the_same_in_every_release() -> None:
    ring = Ring(members_of("d1", "d2", "d3"))

    assert "".join(ring.owner_of(node_id(n))[1] for n in range(1, 21)) == "11111332211332233222"


@given(MEMBERS, NAMES, st.lists(st.integers(1, 2**128 - 1), max_size=30))
@BOUNDED
def test_who_comes_takes_only_for_itself_and_who_goes_leaves_only_its_own(
    members: tuple[Member, ...], name: str, numbers: list[int]
) -> None:
    without = [each for each in members if each.name != name]
    few, many = Ring(without), Ring([*without, a_member(name)])

    for number in numbers:
        assert many.owner_of(node_id(number)) in (name, few.owner_of(node_id(number)))


# What daemons do about it


@given(NODES, MEMBERS, st.permutations(range(6)))
@THOROUGH
def test_after_every_daemon_has_acted_once_each_node_has_the_owner_that_it_should_have(
    nodes: Nodes, members: tuple[Member, ...], order: list[int]
) -> None:
    alive = {each.name for each in members if each.is_alive}
    after = all_acted(nodes, [members[n] for n in order if n < len(members)])

    assert after.keys() == nodes.keys()
    for id_, before in nodes.items():
        now, best = after[id_], Ring(members).owner_of(id_)
        if not best:
            assert now == before, "nobody may take it"
        elif before.holds_instance and before.owner in may_own(members):
            assert now == before, "a node with an instance stays while its owner lives"
        else:
            assert now.owner == best
            assert now.epoch == before.epoch + (before.owner != best)
    if may_own(members):
        assert {each.owner for each in after.values()} <= alive
        assert all(each.owner not in alive - may_own(members) for each in after.values()), "drained"
    assert all_acted(after, members) == after, "nothing moves any more"


@given(NODES, st.lists(st.tuples(NAMES, MEMBERS), max_size=12))
@THOROUGH
def test_daemons_that_see_different_members_never_both_believe_that_they_own_a_node(
    nodes: Nodes, looks: list[tuple[str, tuple[Member, ...]]]
) -> None:
    # Moves are decided on the rows as they were two looks ago: others have acted since.
    history = [nodes]
    believed: dict[tuple[ProviderId, int], str] = {}
    for me, members in looks:
        seen = history[max(0, len(history) - 3)]
        moves = (*takes(seen.values(), members, me), *gives(seen.values(), members, me))
        for move in moves:
            before = history[-1][move.id]
            history.append(applied(history[-1], (move,)))
            after = history[-1][move.id]
            if after != before:
                assert after.epoch == before.epoch + 1
                assert believed.setdefault((move.id, after.epoch), after.owner) == after.owner


def test_a_daemon_that_begins_anew_counts_the_epochs_of_what_carries_its_name() -> None:
    nodes = {
        node_id(1): Owned(node_id(1), "d1", 4, holds_instance=True),
        node_id(2): Owned(node_id(2), "d2", 1),
    }

    after = applied(nodes, takes_anew(nodes.values(), "d1"))

    assert after == {**nodes, node_id(1): Owned(node_id(1), "d1", 5, holds_instance=True)}


# What an operator is told


@pytest.mark.parametrize(
    ("owner", "holds", "members", "reason"),
    [
        ("d1", False, members_of("d1"), "of the daemons that are alive and do not drain, d1 has the highest"),
        ("", False, members_of("d1"), "no daemon has taken it yet; d1 takes it"),
        ("gone", False, members_of("d1"), "its owner gone has no lease any more; d1 takes it"),
        ("gone", False, (), "its owner gone has no lease any more, and no live daemon may take nodes"),
        ("d1", False, (a_member("d1", draining=True),), "d1 keeps it: every live daemon drains"),
        (
            "d1",
            True,
            (a_member("d1", draining=True), a_member("d2")),
            "d1 drains, and gives it to d2",
        ),
    ],
)
def test_the_ring_says_why(owner: str, holds: bool, members: tuple[Member, ...], reason: str) -> None:  # noqa: FBT001
    found = why(Owned(node_id(1), owner, 3, holds), members)

    assert reason in found.reason
    assert (found.id, found.owner, found.epoch) == (node_id(1), owner, 3)
    assert {name for name, _ in found.scores} == may_own(members)


def test_the_ring_says_that_an_instance_keeps_a_node() -> None:
    members = members_of("d1", "d2")
    best = Ring(members).owner_of(node_id(1))
    other = next(each.name for each in members if each.name != best)

    held, free = (why(Owned(node_id(1), other, 1, holds), members) for holds in (True, False))

    assert f"it holds an instance, so it stays with {other} while {other} is alive; {best}" in held.reason
    assert f"{best} has the highest score for it, and {other} gives it to {best}" in free.reason
    assert held.scores[0][0] == held.best == best
