"""Candidates for whoever asks on the bus: all of an answer is of one moment, and told a page at a time.

What does not fit into one message is kept in the books, page by page and under a name made of its content, so that the
next page can be had from any placement worker, and after a restart; for as long as the change log is kept.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import NamedTuple, Protocol
from uuid import NAMESPACE_OID, UUID

import msgspec

from bus.handling import Answer, Handlers, Reading, Received, Said
from bus.message import ProviderId
from bus.messages.administration import UnknownClass, UnknownTrait
from bus.messages.candidates import (
    AskCandidates,
    AskMoreCandidates,
    Candidate,
    Candidates,
    CandidatesFound,
    NextPage,
    RequestGroup,
    StartAgain,
    TooCostly,
)
from bus.messages.placement import NotAllowed, ProviderState, ShapeSeen, Share
from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.found import Candidate as Found
from placement_worker.core.candidates.query import CandidatesQuery, Group, Preferred
from placement_worker.core.candidates.search import find_candidates
from placement_worker.core.candidates.woods import SHARES, Woods
from placement_worker.known_names import KnownNames
from placement_worker.paging import ROOM
from placement_worker.replica import Replica
from placement_worker.searching import Searcher
from placement_worker.store import KeptAnswers

Verdict = Candidates | StartAgain | UnknownClass | UnknownTrait | NotAllowed | TooCostly

# What a candidate costs to be written as values, and then as text; and how fast text is read once more.
_STEPS_PER_CANDIDATE, _STEPS_PER_SLOT = 60, 20
_BYTES_PER_STEP = 128

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[Candidate, ...]).decode


class Viewed(Protocol):
    async def caught_up(self) -> Replica:
        """All providers, with whatever was committed before the call."""


def candidate_handlers(view: Viewed, names: KnownNames, kept: KeptAnswers, searcher: Searcher) -> Handlers:
    async def on_asked(asks: Sequence[Received[AskCandidates]]) -> list[Said]:
        return [
            Answer(ask, CandidatesFound(verdict=await first_page(view, names, kept, searcher, ask.message)))
            for ask in asks
        ]

    async def on_asked_for_more(asks: Sequence[Received[AskMoreCandidates]]) -> list[Said]:
        return [Answer(ask, CandidatesFound(verdict=await later_page(kept, ask.message))) for ask in asks]

    return {AskCandidates: Reading(on_asked), AskMoreCandidates: Reading(on_asked_for_more)}


async def first_page(
    view: Viewed, names: KnownNames, kept: KeptAnswers, searcher: Searcher, ask: AskCandidates
) -> Verdict:
    if flaw := flaw_in(ask):
        return flaw
    replica = await view.caught_up()
    if unknown := await names.unknown_classes(replica, _classes_in(ask)):
        return UnknownClass(names=unknown)
    if unknown := await names.unknown_traits(replica, _traits_in(ask)):
        return UnknownTrait(names=unknown)
    query = _query(ask)
    pages = await searcher.done(replica, lambda woods, budget: _found_pages(woods, budget, query))
    if isinstance(pages, TooCostly):
        return pages
    first, *others = pages.pages
    if not others:
        return Candidates(candidates=_decode(first))
    await kept.keep_answer(pages.name, others)
    return Candidates(candidates=_decode(first), next=NextPage(answer=pages.name, page=1))


class _Pages(NamedTuple):
    """An answer, page by page, and the name made of its content."""

    name: UUID
    pages: Sequence[bytes]


def _found_pages(woods: Woods, budget: Budget, query: CandidatesQuery) -> _Pages:
    found = find_candidates(woods, query, budget=budget)
    slots = sum(max(1, len(group.resources)) for group in query.groups)

    def told() -> Iterator[Candidate]:
        for one in found.written_out(woods):
            budget.spend(_STEPS_PER_CANDIDATE + _STEPS_PER_SLOT * slots)
            yield _candidate(woods, one)

    pages = pages_of(told(), tell=budget.tell)
    # That of uuid5, a page at a time: to name all of a long answer in one piece takes long.
    digest = hashlib.sha1(NAMESPACE_OID.bytes, usedforsecurity=False)
    for page in pages:
        digest.update(page)
        budget.spend(len(page) // _BYTES_PER_STEP)
    return _Pages(UUID(bytes=digest.digest()[:16], version=5), pages)


async def later_page(kept: KeptAnswers, ask: AskMoreCandidates) -> Verdict:
    page = await kept.kept_page(ask.answer, ask.page)
    if page is None:
        return StartAgain()
    goes_on = None if page.is_last else NextPage(answer=ask.answer, page=ask.page + 1)
    return Candidates(candidates=_decode(page.body), next=goes_on)


def pages_of(
    candidates: Iterable[Candidate], room: int = ROOM, tell: Callable[[int], None] = lambda _: None
) -> list[bytes]:
    """Each as large as a message may be; the first is there even if it is empty. What is written is told to `tell`."""
    pages: list[bytes] = []
    page: list[bytes] = []
    size = 0
    for text in map(_encode, candidates):
        tell(len(text))
        if page and size + len(text) + 1 > room:
            pages.append(_page(page))
            page, size = [], 0
        page.append(text)
        size += len(text) + 1
    return [*pages, _page(page)]


def _page(texts: Iterable[bytes]) -> bytes:
    return b"[" + b",".join(texts) + b"]"


# What makes no sense


def flaw_in(ask: AskCandidates) -> NotAllowed | None:
    """The first thing that no books could answer; None if there is none."""
    return next(_flaws(ask), None)


def _flaws(ask: AskCandidates) -> Iterator[NotAllowed]:
    seen: set[str] = set()
    in_subtrees = {suffix for each in ask.same_subtree for suffix in each}
    for place, group in enumerate(ask.groups):
        if group.suffix in seen:
            reason = f"there are two groups of suffix {group.suffix!r}"
            yield NotAllowed(field=f"groups[{place}].suffix", reason=reason)
        seen.add(group.suffix)
        yield from _flaws_of(group, f"groups[{place}]", in_subtrees)
    if not any(group.resources for group in ask.groups):
        yield NotAllowed(field="groups", reason="no group asks for any resource")
    apart = seen - {""}
    if len(apart) > 1 and ask.group_policy is None:
        reason = f"{len(apart)} groups have a suffix: say whether they are to be apart"
        yield NotAllowed(field="group_policy", reason=reason)
    for place, subtree in enumerate(ask.same_subtree):
        for suffix in subtree:
            if suffix not in apart:
                yield NotAllowed(field=f"same_subtree[{place}]", reason=f"no group has the suffix {suffix!r}")
    for trait in set(ask.root_forbidden) & set(ask.root_required):
        yield NotAllowed(field="root_forbidden", reason=f"{trait} is required of the root, too")


def _flaws_of(group: RequestGroup, field: str, in_subtrees: AbstractSet[str]) -> Iterator[NotAllowed]:
    if not group.resources and group.suffix not in in_subtrees:
        yield NotAllowed(
            field=f"{field}.resources",
            reason="nothing is asked for: only a group that same_subtree names may ask for a place alone",
        )
    forbidden = set(group.forbidden)
    for any_of in group.required:
        if forbidden.issuperset(any_of):
            yield NotAllowed(field=f"{field}.forbidden", reason=f"{any_of[0]} is required, too")


def _classes_in(ask: AskCandidates) -> set[str]:
    return {resource for group in ask.groups for resource in group.resources}


def _traits_in(ask: AskCandidates) -> set[str]:
    named = {*ask.root_required, *ask.root_forbidden}
    for group in ask.groups:
        named.update(group.forbidden, group.preferred, *group.required)
    return named


# Between the bus's words and the search's


def _query(ask: AskCandidates) -> CandidatesQuery:
    return CandidatesQuery(
        groups=tuple(map(_group, ask.groups)),
        group_policy=ask.group_policy,
        same_subtree=ask.same_subtree,
        root_required=ask.root_required,
        root_forbidden=ask.root_forbidden,
        limit=ask.limit,
    )


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


def _candidate(woods: Woods, found: Found) -> Candidate:
    """Who takes it lives on the tree that gives to it; what only shares is nobody's host, unless nothing else gives."""
    givers = [_standing(woods, amount.provider) for amount in found.amounts]
    host = next((giver for giver in givers if SHARES not in giver.traits), givers[0])
    return Candidate(
        share=Share(
            host=host.root,
            amounts=found.amounts,
            shapes=tuple(
                ShapeSeen(root=root, shape=_standing(woods, root).shape)
                for root in dict.fromkeys(giver.root for giver in givers)
            ),
        ),
        mappings=dict(found.mappings),
        preference=found.preference,
    )


def _standing(woods: Woods, provider: ProviderId) -> ProviderState:
    row = woods.row_of(provider)
    assert row is not None, f"provider {provider} was found, and is not there"
    return woods.state(row)
