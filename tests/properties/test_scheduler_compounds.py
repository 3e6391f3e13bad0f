"""A scheduler's hosts are those for which placement finds candidates, and its choices are such candidates, one after
another until there are none.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import CandidatesQuery, FoundCandidate, Group
from engine.candidates.search import find_candidates
from engine.choosing.choosing import Chosen, choose
from engine.hosts import HostState
from engine.inventories import ProviderId, ProviderState, Share
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from engine.requests.spec import GranularGroup
from tests.contracts.placement_orders import consumer
from tests.plugins import standard_plugins
from tests.properties.bounds import THOROUGH, share
from tests.properties.random_forests import (
    LARGE_ASKS,
    SMALL_ASKS,
    SUFFIXES,
    TRAITS,
    index_of,
    random_forests,
    rarely,
)
from tests.unit.choosing.scheduler_worlds import a_picture

PLUGINS = standard_plugins(io_ops_max=0, instances_max=1000)
ONE_EACH = tuple((trait,) for trait in TRAITS)


@st.composite
def granular_groups(draw: st.DrawFn) -> tuple[GranularGroup, ...]:
    return tuple(
        GranularGroup(
            suffix,
            tuple(sorted(draw(st.sampled_from(SMALL_ASKS)).items())),
            required=draw(rarely(ONE_EACH, ())),
        )
        for suffix in SUFFIXES[: draw(st.sampled_from([0, 0, 1, 2]))]
    )


@st.composite
def specs(draw: st.DrawFn) -> InstanceSpec:
    groups = draw(granular_groups())
    amounts: dict[str, int] = dict(draw(st.sampled_from(LARGE_ASKS)))
    for group in groups:
        for resource, amount in group.amounts:
            amounts[resource] = amounts.get(resource, 0) + amount
    required: tuple[str, ...] = draw(rarely((*ONE_EACH, TRAITS[:2]), ()))
    forbidden: tuple[str, ...] = draw(rarely(ONE_EACH, (), one_in=6))
    return InstanceSpec(
        amounts=tuple(sorted(amounts.items())),
        required=required,
        forbidden=tuple(trait for trait in forbidden if trait not in required),
        groups=groups,
        isolates=bool(groups) and draw(st.booleans()),
        same_subtree=draw(rarely(((SUFFIXES[:2],),), ())) if len(groups) > 1 else (),
    )


def picture_of(states: Sequence[ProviderState]) -> Picture:
    """Each root is a host, sharing ones included."""
    return a_picture(
        *states,
        hosts=tuple(
            HostState(id=state.id, name=state.name, cell="c1", up=True)
            for state in states
            if state.parent is None
        ),
    )


def query_of(spec: InstanceSpec) -> CandidatesQuery:
    outside = Counter(dict(spec.amounts))
    for group in spec.groups:
        outside.subtract(dict(group.amounts))
    whole = Group(
        resources=dict(+outside),
        required=tuple((trait,) for trait in spec.required),
        forbidden=spec.forbidden,
    )
    granular = [
        Group(
            suffix=group.suffix,
            resources=dict(group.amounts),
            required=tuple((trait,) for trait in group.required),
        )
        for group in spec.groups
    ]
    return CandidatesQuery(
        groups=(whole, *granular),
        group_policy="isolate" if spec.isolates else "none",
        same_subtree=spec.same_subtree,
    )


def homes(index: ProviderIndex, candidate: FoundCandidate) -> set[ProviderId]:
    """Roots of trees that can be the host of this candidate: they give a part of it, and the rest is shared with them."""
    rows = [index.row_of(each.provider) for each in candidate.amounts]
    roots = {int(index.root[row]) for row in rows if row is not None}
    return {
        index.state(root).id
        for root in roots
        if all(
            index.root[row] == root or (index.shares[row] and root in index.reached_from(row))
            for row in rows
            if row is not None
        )
    }


def homes_of(states: Iterable[ProviderState], spec: InstanceSpec) -> dict[frozenset[object], set[ProviderId]]:
    """The hosts of each candidate that placement finds, by what the candidate takes."""
    index = index_of(states)
    found = find_candidates(index, query_of(spec)).written_out(index)
    return {frozenset(each.amounts): homes(index, each) for each in found}


def using(states: Iterable[ProviderState], share: Share) -> list[ProviderState]:
    """The providers' states after the share is claimed."""
    taken = {(each.provider, each.resource): each.amount for each in share.amounts}
    return [
        structs.replace(
            state,
            inventories={
                resource: structs.replace(inventory, used=inventory.used + taken.get((state.id, resource), 0))
                for resource, inventory in state.inventories.items()
            },
        )
        for state in states
    ]


def test_each_choice_of_a_batch_is_a_candidate_when_those_before_it_are_claimed() -> None:
    met: Counter[str] = Counter()

    @THOROUGH
    @given(
        states=random_forests(),
        shapes=st.lists(specs(), min_size=1, max_size=2),
        held=st.sampled_from([0, 0, 1, 3]),
        alternates=st.sampled_from([2, 0]),
    )
    def check(states: list[ProviderState], shapes: list[InstanceSpec], held: int, alternates: int) -> None:
        picture = picture_of(states)
        now = states
        # Choices of this scheduler that placement has not answered.
        for number, one in enumerate(choose(picture, shapes[:1] * held, PLUGINS, 0)):
            if isinstance(one, Chosen):
                picture.hold([(consumer(f"held-{number}"), 1, one.choice.share)])
                now = using(now, one.choice.share)
                met["held"] += 1

        batch = [spec for spec in dict.fromkeys(shapes) for _ in range(4)]
        for spec, one in zip(batch, choose(picture, batch, PLUGINS, 0, alternates), strict=True):
            found = homes_of(now, spec)
            if isinstance(one, NoValidHost):
                assert not any(found.values()), f"{spec} was refused, but could have {found}"
                met["refused"] += 1
                continue
            share = one.choice.share
            assert share.host in found[frozenset(share.amounts)]
            roots = {state.root for state in states if state.id in {each.provider for each in share.amounts}}
            assert {seen.root for seen in share.shapes} == roots | {share.host}
            for other in one.alternates:
                assert other.share.host in found[frozenset(other.share.amounts)]
                met["alternates"] += 1
            now = using(now, share)
            met["chosen"] += 1
            met["with groups"] += bool(spec.groups)
            met["from several providers"] += len({each.provider for each in share.amounts}) > 1

    check()
    assert min(met[what] for what in ("held", "chosen", "refused", "alternates")) > share(50)
    assert min(met["from several providers"], met["with groups"]) > 20
