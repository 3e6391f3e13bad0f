"""Answer questions for allocation candidates on the bus. An answer is one message: a longer one is refused with its length."""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

import msgspec

from bus.message import ProviderId
from bus.messages.administration import UnknownClass, UnknownTrait
from bus.messages.candidates import (
    AskCandidates,
    Candidate,
    Candidates,
    CandidatesFound,
    RequestGroup,
    TooCostly,
)
from bus.messages.placement import NotAllowed, ProviderState, ShapeSeen, Share
from bus.workers.handling import Handlers, answering
from placement_worker.classes_and_traits import KnownNames
from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.found import FoundCandidate
from placement_worker.core.candidates.provider_index import SHARES, ProviderIndex
from placement_worker.core.candidates.query import CandidatesQuery, Group, Preferred
from placement_worker.core.candidates.search import find_candidates
from placement_worker.searching import Searcher
from placement_worker.view import ProviderView

Verdict = Candidates | UnknownClass | UnknownTrait | NotAllowed | TooCostly

# Steps to build a candidate and write it as text.
_STEPS_PER_CANDIDATE, _STEPS_PER_SLOT = 60, 20

_encode = msgspec.json.Encoder().encode


def candidate_handlers(view: ProviderView, names: KnownNames, searcher: Searcher) -> Handlers:
    async def candidates(ask: AskCandidates) -> CandidatesFound:
        return CandidatesFound(verdict=await _verdict(view, names, searcher, ask))

    return {AskCandidates: answering(candidates)}


async def _verdict(view: ProviderView, names: KnownNames, searcher: Searcher, ask: AskCandidates) -> Verdict:
    if flaw := next(_flaws(ask), None):
        return flaw
    replica = await view.caught_up()
    classes = {resource for group in ask.groups for resource in group.resources}
    if unknown := await names.unknown("classes", classes, replica):
        return UnknownClass(names=unknown)
    if unknown := await names.unknown("traits", _traits_in(ask), replica):
        return UnknownTrait(names=unknown)
    query = CandidatesQuery(
        groups=tuple(map(_group, ask.groups)),
        group_policy=ask.group_policy,
        same_subtree=ask.same_subtree,
        root_required=ask.root_required,
        root_forbidden=ask.root_forbidden,
        limit=ask.limit,
    )
    return await searcher.done(replica, lambda index, budget: _found(index, budget, query))


def _found(index: ProviderIndex, budget: Budget, query: CandidatesQuery) -> Candidates:
    found = find_candidates(index, query, budget=budget)
    slots = sum(max(1, len(group.resources)) for group in query.groups)
    candidates = []
    for each in found.written_out(index):
        budget.spend(_STEPS_PER_CANDIDATE + _STEPS_PER_SLOT * slots)
        candidate = _candidate(index, each)
        budget.tell(len(_encode(candidate)) + len(","))
        candidates.append(candidate)
    return Candidates(candidates=tuple(candidates))


# Checks of the query itself


def _flaws(ask: AskCandidates) -> Iterator[NotAllowed]:
    """The errors of a query that show without looking at any provider."""
    seen: set[str] = set()
    in_subtrees = {suffix for each in ask.same_subtree for suffix in each}
    for place, group in enumerate(ask.groups):
        if group.suffix in seen:
            reason = f"two groups have the suffix {group.suffix!r}; each suffix may be used once"
            yield NotAllowed(field=f"groups[{place}].suffix", reason=reason)
        seen.add(group.suffix)
        yield from _flaws_of(group, f"groups[{place}]", in_subtrees)
    if not any(group.resources for group in ask.groups):
        yield NotAllowed(field="groups", reason="no group asks for a resource; at least one must")
    apart = seen - {""}
    if len(apart) > 1 and ask.group_policy is None:
        reason = f"{len(apart)} groups have a suffix: set it to 'none' or 'isolate'"
        yield NotAllowed(field="group_policy", reason=reason)
    for place, subtree in enumerate(ask.same_subtree):
        for suffix in subtree:
            if suffix not in apart:
                yield NotAllowed(field=f"same_subtree[{place}]", reason=f"no group has the suffix {suffix!r}")
    for trait in sorted({*ask.root_forbidden} & {*ask.root_required}):
        yield NotAllowed(
            field="root_forbidden", reason=f"{trait} is both required and forbidden for the root"
        )


def _flaws_of(group: RequestGroup, field: str, in_subtrees: AbstractSet[str]) -> Iterator[NotAllowed]:
    if not group.resources and group.suffix not in in_subtrees:
        yield NotAllowed(
            field=f"{field}.resources",
            reason="the group asks for no resource: only a group named in same_subtree may do that",
        )
    forbidden = set(group.forbidden)
    for any_of in group.required:
        if forbidden.issuperset(any_of):
            yield NotAllowed(field=f"{field}.forbidden", reason=f"{any_of[0]} is both required and forbidden")


def _traits_in(ask: AskCandidates) -> set[str]:
    named = {*ask.root_required, *ask.root_forbidden}
    for group in ask.groups:
        named.update(group.forbidden, group.preferred, *group.required)
    return named


# Translation between messages and the search


def _group(group: RequestGroup) -> Group:
    return Group(
        suffix=group.suffix,
        resources=group.resources,
        required=group.required,
        forbidden=group.forbidden,
        preferred=tuple(Preferred(trait, weight) for trait, weight in group.preferred.items()),
        member_of=group.member_of,
        forbidden_aggregates=group.forbidden_aggregates,
        in_tree=group.in_tree,
    )


def _candidate(index: ProviderIndex, found: FoundCandidate) -> Candidate:
    """Translate a candidate that the search found into the form that messages have.

    Its host is the root of the first provider that gives something and does not share with other trees. If all of them
    share, it is the root of the first one.
    """
    givers = [_standing(index, amount.provider) for amount in found.amounts]
    host = next((giver for giver in givers if SHARES not in giver.traits), givers[0])
    return Candidate(
        share=Share(
            host=host.root,
            amounts=found.amounts,
            shapes=tuple(
                ShapeSeen(root=root, shape=_standing(index, root).shape)
                for root in dict.fromkeys(giver.root for giver in givers)
            ),
        ),
        mappings=dict(found.mappings),
        preference=found.preference,
    )


def _standing(index: ProviderIndex, provider: ProviderId) -> ProviderState:
    row = index.row_of(provider)
    assert row is not None, f"provider {provider} was found, and is not in the index"
    return index.state(row)
