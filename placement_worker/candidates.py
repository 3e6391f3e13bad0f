"""Answer questions for allocation candidates on the bus. An answer is one message: a longer one is refused with its length."""

import asyncio
import logging
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from typing import TypeVar

import msgspec
from greenlet import getcurrent, greenlet

from bus.messages.books import (
    AskCandidates,
    Candidate,
    Candidates,
    CandidatesFound,
    RequestGroup,
    UnknownClass,
    UnknownTrait,
)
from bus.workers.handlers import Handlers, answering
from engine.candidates.budget import DEFAULT_LIMITS, Budget, CutError, SearchLimits
from engine.candidates.provider_index import SHARES, ProviderIndex
from engine.candidates.query import CandidatesQuery, FoundCandidate, Group, Preferred
from engine.candidates.search import find_candidates
from engine.inventories import ProviderId, ProviderState, ShapeSeen, Share
from engine.refusals import NotAllowed, TooCostly
from kit.errors import Unavailable
from placement_worker.view import KnownNames, ProviderReplica, ProviderView

log = logging.getLogger(__name__)

# Run searches that may take long, in turns with all other tasks of the process.
#
# Most searches take a millisecond and run at once. A longer one starts again in a greenlet, which returns control to the
# loop every few milliseconds, from any depth of the search. It sees one state of the providers from its start to the end of
# its answer: writes during that time go into a copy.
#
# A few long searches run at a time, each within its budget of steps and memory. Some more wait, and use no memory; all others
# are refused: the caller may try again later.


# About 25 ms: an answer of ten thousand candidates takes half as many steps.
STEPS_AT_ONCE = 100_000
# About 2 ms. A claim waits for about ten turns of the loop.
STEPS_PER_TURN = 10_000
TAKING_TURNS_MAX = 2
WAITING_MAX = 64

Done = TypeVar("Done")
# Searches and writes the answer. It must not change anything that another search reads.
Search = Callable[[ProviderIndex, Budget], Done]


class _TakesLongError(Exception):
    """Ends a search that needs more than `STEPS_AT_ONCE` steps without a pause. It is then begun anew, with pauses in
    which other tasks run.
    """


class Searcher:
    """Runs searches so that long ones let other tasks of the process run in between. `turns` counts how often that happened."""

    def __init__(self, limits: SearchLimits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._at_once = asyncio.Semaphore(1)
        self._taking_turns = asyncio.Semaphore(TAKING_TURNS_MAX)
        self._waiting = 0
        self.turns = 0

    async def done(self, replica: ProviderReplica, search: Search[Done]) -> Done | TooCostly:
        """Run the search and return its result. It sees the providers of now, or if it has to wait, those of the time when it
        runs.

        Raises Unavailable if too many searches wait already.
        """
        try:
            try:
                return await self._short(replica, search)
            except _TakesLongError:
                return await self._later(replica, search)
        except CutError as cut:
            return cut.verdict

    async def _short(self, replica: ProviderReplica, search: Search[Done]) -> Done:
        """Try the search without a pause. Of many that take long to try, one runs in each iteration of the event loop."""
        async with self._at_once:
            budget = Budget(self._limits, _take_long, STEPS_AT_ONCE)
            try:
                return search(replica.index, budget)
            finally:
                if budget.steps > STEPS_PER_TURN:
                    await asyncio.sleep(0)

    async def _later(self, replica: ProviderReplica, search: Search[Done]) -> Done:
        if self._waiting >= WAITING_MAX:
            log.debug("a search is refused: too many long ones wait")
            raise Unavailable(
                f"{TAKING_TURNS_MAX} long searches are running, and {self._waiting} wait for them"
            )
        self._waiting += 1
        try:
            await self._taking_turns.acquire()
        finally:
            self._waiting -= 1
        try:
            with replica.reading() as index:
                return await self._in_turns(index, search)
        finally:
            self._taking_turns.release()

    async def _in_turns(self, index: ProviderIndex, search: Search[Done]) -> Done:
        budget = Budget(self._limits, getcurrent().switch, STEPS_PER_TURN)
        under_way = greenlet(search)
        try:
            done: Done = under_way.switch(index, budget)
            while not under_way.dead:
                self.turns += 1
                await asyncio.sleep(0)
                done = under_way.switch()
            return done
        finally:
            # If the caller has given up, this closes the search's generators where they are.
            under_way.throw()


def _take_long() -> None:
    raise _TakesLongError


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
