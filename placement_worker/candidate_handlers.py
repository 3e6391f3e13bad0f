"""Answer queries for allocation candidates on the bus. An answer is of one moment, and is sent one page at a time.

Pages that do not fit into the first message are stored in the database, under an id made of the content. So any placement
worker can send the next page, also after a restart, for as long as the change log is kept.
"""

import asyncio
import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from uuid import NAMESPACE_OID, UUID

import msgspec

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
from bus.messages.cells import VALUES_BYTES_MAX
from bus.messages.placement import NotAllowed, ProviderState, ShapeSeen, Share
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said, answering
from placement_worker.classes_and_traits import KnownNames
from placement_worker.core.candidates.budget import Budget
from placement_worker.core.candidates.found import FoundCandidate
from placement_worker.core.candidates.provider_index import SHARES, ProviderIndex
from placement_worker.core.candidates.query import CandidatesQuery, Group, Preferred
from placement_worker.core.candidates.search import find_candidates
from placement_worker.searching import Searcher
from placement_worker.store import KeptAnswers
from placement_worker.view import ProviderView

Verdict = Candidates | StartAgain | UnknownClass | UnknownTrait | NotAllowed | TooCostly

# Steps to build a candidate and write it as text; and how many bytes of text one step reads again.
_STEPS_PER_CANDIDATE, _STEPS_PER_SLOT = 60, 20
_BYTES_PER_STEP = 128

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(tuple[Candidate, ...]).decode


def candidate_handlers(
    view: ProviderView, names: KnownNames, kept: KeptAnswers, searcher: Searcher
) -> Handlers:
    async def first(asks: Sequence[Received[AskCandidates]]) -> list[Said]:
        """Users are served at the same time, and each one's questions one after another: so no user's questions of a batch
        wait for another's.
        """
        said: list[Said] = []

        async def serve(sender: str) -> None:
            for ask in asks:
                if ask.sender == sender:
                    verdict = await first_page(view, names, kept, searcher, ask)
                    said.append(Answer(ask, CandidatesFound(verdict=verdict)))
                    await asyncio.sleep(0)

        senders = dict.fromkeys(ask.sender for ask in asks)
        # Waits for all, so that none goes on in the background if one fails.
        for done in await asyncio.gather(*map(serve, senders), return_exceptions=True):
            if done is not None:
                raise done
        return said

    async def more(ask: AskMoreCandidates) -> CandidatesFound:
        return CandidatesFound(verdict=await later_page(kept, ask))

    return {AskCandidates: ReadOnly(first), AskMoreCandidates: answering(more)}


async def first_page(
    view: ProviderView,
    names: KnownNames,
    kept: KeptAnswers,
    searcher: Searcher,
    asked: Received[AskCandidates],
) -> Verdict:
    ask = asked.message
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
    found = await searcher.done(
        replica, lambda index, budget: _found_pages(index, budget, query), asked.sender
    )
    if isinstance(found, TooCostly):
        return found
    answer, (first, *others) = found
    if not others:
        return Candidates(candidates=_decode(first))
    await kept.keep_answer(answer, others)
    return Candidates(candidates=_decode(first), next=NextPage(answer=answer, page=1))


def _found_pages(index: ProviderIndex, budget: Budget, query: CandidatesQuery) -> tuple[UUID, list[bytes]]:
    """Search for candidates, and encode them as pages. Returns the answer's id, which is made of the pages, and the
    pages.
    """
    found = find_candidates(index, query, budget=budget)
    slots = sum(max(1, len(group.resources)) for group in query.groups)

    def told() -> Iterator[Candidate]:
        for one in found.written_out(index):
            budget.spend(_STEPS_PER_CANDIDATE + _STEPS_PER_SLOT * slots)
            yield _candidate(index, one)

    pages = pages_of(told(), tell=budget.tell)
    # Computes a uuid5 page by page: to hash a long answer in one piece would block for too long.
    digest = hashlib.sha1(NAMESPACE_OID.bytes, usedforsecurity=False)
    for page in pages:
        digest.update(page)
        budget.spend(len(page) // _BYTES_PER_STEP)
    return UUID(bytes=digest.digest()[:16], version=5), pages


async def later_page(kept: KeptAnswers, ask: AskMoreCandidates) -> Verdict:
    page = await kept.kept_page(ask.answer, ask.page)
    if page is None:
        return StartAgain()
    goes_on = None if page.is_last else NextPage(answer=ask.answer, page=ask.page + 1)
    return Candidates(candidates=_decode(page.body), next=goes_on)


def pages_of(
    candidates: Iterable[Candidate],
    room: int = VALUES_BYTES_MAX,
    tell: Callable[[int], None] = lambda _: None,
) -> list[bytes]:
    """Encode candidates as JSON lists, each as long as a message may be. Without candidates there is one empty list.

    `tell` is called with the length of each candidate's text, so that a budget can count it.
    """
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
