"""Finds hosts for a batch of instances: chooses them in the picture, and claims them from placement.

If placement refuses a claim, the next round chooses again; the number of claims for an instance is limited. Before a
client is told that there is no host, the picture catches up with placement and the claimer chooses once more. So an
outdated picture may cost a retry, but never refuses a request for which there is a host.
"""

import asyncio
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol, get_args

from msgspec import json, structs

from bus.messages.placement import ClaimAnswered, ClaimResources, SwapClaim
from bus.workers.connections import asking_for
from engine.choosing.choosing import (
    ALTERNATE_POOL_MAX,
    Chosen,
    choose,
    hosts_among,
    more_alternates,
    other_way,
)
from engine.choosing.plugins import Plugins
from engine.choosing.verdicts import (
    EndedElsewhere,
    Holds,
    NextTry,
    OtherHost,
    Outcome,
    SearchRefused,
    after_refusal,
    amounts_of,
    outcome_of_held,
)
from engine.hosts import host_in_cell
from engine.inventories import ALTERNATES_MAX, Choice, GroupMember, ProviderId, Share
from engine.picture.picture import Picture
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    ClaimVerdict,
    DoesNotFit,
    GroupRefused,
    NoValidHost,
    ShapeMoved,
    Superseded,
    TooOld,
)
from engine.requests import InstanceSpec
from kit.errors import Transient, WrongAnswer
from kit.metrics import Histogram, Readings
from scheduler_worker.claiming.all_or_nothing import TogetherFinder
from scheduler_worker.hosts import KnowsHosts, Newcomers
from scheduler_worker.metrics import CHOSEN, CLAIMS
from scheduler_worker.requests.reading import AskAll, Search
from scheduler_worker.settings import PACE, SchedulerPace

if TYPE_CHECKING:
    from engine.flavors import Flavor

log = logging.getLogger(__name__)

# The order to the cell has the flavor of each alternate that has another one, and must fit into a parcel.
OTHER_FLAVORS_BYTES_MAX = 48 * 1024


class FollowsPlacement(Protocol):
    """Keeps the picture up to date with placement."""

    async def catch_up(self) -> None:
        """On return, the picture has every write that was committed before the call."""

    def moved(self, moved: ShapeMoved) -> bool:
        """Merge the provider trees that come with a refused claim. Returns whether the refusal has all that changed."""


class Claimer:
    """Finds a host for each search: it chooses one from the picture, asks placement for the claim, and chooses again if placement
    refuses (engine/choosing/verdicts.py).
    """

    def __init__(
        self,
        picture: Picture,
        replica: FollowsPlacement,
        registry: KnowsHosts,
        ask_all: AskAll,
        *,
        make_sure: Callable[[], Awaitable[None]],
        plugins: Plugins,
        alternates_max: int,
        chance: random.Random,
        clock: Callable[[], datetime],
        pace: SchedulerPace = PACE,
    ) -> None:
        self.picture = picture
        self._newcomers = Newcomers(picture)
        self.replica = replica
        self.registry = registry
        self.ask_all = ask_all
        self._make_sure = make_sure
        self._plugins = plugins
        self._alternates_max = alternates_max
        self.pace = pace
        self.chance = chance
        self._clock = clock
        # Among hosts equally good, each worker prefers others.
        self._salt = chance.getrandbits(32)
        # Placement's answers so far, by the verdict's type.
        self.verdicts: Counter[type[ClaimVerdict]] = Counter(dict.fromkeys(get_args(ClaimVerdict), 0))
        self._choices = Histogram(CHOSEN)
        # The claims of all batches that are not answered yet.
        self._under_way: set[asyncio.Future[None]] = set()
        # How often claims were answered so far.
        self._answered = 0
        self._together = TogetherFinder(self)

    @property
    def readings(self) -> Readings:
        """How long choices took, and claims by verdict. Every refusal is a conflict: the picture was outdated."""
        return (
            self._choices,
            CLAIMS.numbers(
                {(str(kind.__struct_config__.tag),): count for kind, count in self.verdicts.items()}
            ),
        )

    async def find_at_once(self, searches: Sequence[Search]) -> None:
        """Choose and claim once for each search. Searches whose claim is granted have their outcome; the others have no
        chosen host afterwards, as before the call.
        """
        try:
            self._choose([one for one in searches if one.is_searching])
            await self._claim_chosen(searches)
        finally:
            lost = [one for one in searches if one.is_searching]
            self.picture.drop(one.key for one in lost)
            for one in lost:
                one.chosen = None
        self._refill_all(searches)

    async def find_hosts(self, searches: Sequence[Search]) -> None:
        """Choose and claim in rounds, until each search has its outcome."""
        searches = [one for one in searches if one.is_searching]
        try:
            # Each search is bounded by its number of claims.
            while await self._round(searches):
                await self._pause(searches)
        finally:
            # A search that could not ask begins anew with its request, if at all: by then it may be decided otherwise,
            # and nothing would drop its choice.
            self.picture.drop(one.key for one in searches if one.is_searching)
        self._refill_all(searches)

    async def find_together(self, searches: Sequence[Search]) -> SearchRefused | None:
        """Find a host for each of these searches, or for none of them. Returns why there are no hosts for all; then the
        searches' own outcomes do not count.
        """
        refused = await self._together.find(searches)
        if refused is None:
            self._refill_all(searches)
        return refused

    async def _pause(self, searches: Sequence[Search]) -> None:
        """Pause before the next round: for a time drawn at random if a search tries the same host again, since its provider tree may
        still be changing; otherwise not at all.
        """
        insists = any(one.insisted for one in searches if one.is_searching)
        await asyncio.sleep(self.chance.uniform(0, self.pace.shape_pause_ms_max) / 1000 if insists else 0)

    async def _round(self, searches: Sequence[Search]) -> int:
        """Each search without an outcome chooses and claims once. Returns how many still have none.

        A search that finds no host waits for the verdicts of the others: a refused claim gives room back. Only when no
        claim is left to wait for, the claimer makes sure that there is no host.
        """
        nowhere = self._choose([one for one in searches if one.is_searching and one.chosen is None])
        if nowhere and not _chosen(searches):
            await self._make_sure_of_none([one for one, _ in nowhere])
        await self._claim_chosen(searches)
        return sum(one.is_searching for one in searches)

    async def _make_sure_of_none(self, lost: Sequence[Search]) -> None:
        """Make sure that there is no host, before a client is told so, or gets another flavor than the best one.

        Another batch may hold room for a choice that placement then refuses, so its verdicts are waited for. And the
        room may be held by this very instance: another batch, another worker or an earlier try had the same request, and
        its claim was granted. So placement is asked which share it holds, after the verdicts are in.

        Further batches may claim at each look, for as long as requests come. Then there is no host if there was none in
        `claims_max` looks: each time, others had taken what was free.
        """
        for looks in range(1, self.pace.claims_max + 1):
            await self.until_current([one for one in lost if one.is_searching])
            nowhere = self.choose_any_flavor([one for one in lost if one.is_searching])
            if not nowhere or _chosen(lost):
                return
            if not self.is_claiming or looks == self.pace.claims_max:
                for one, why in nowhere:
                    one.outcome = why
                return

    @property
    def is_claiming(self) -> bool:
        """Are any claims not answered yet?"""
        return bool(self._under_way)

    @contextmanager
    def claiming(self) -> Iterator[None]:
        """A context to send claims in: while any caller is in it, `is_claiming` is true and `until_current` waits."""
        answered = asyncio.get_running_loop().create_future()
        self._under_way.add(answered)
        try:
            yield
        finally:
            self._under_way.discard(answered)
            self._answered += 1
            answered.set_result(None)

    async def until_current(self, lost: Sequence[Search] = ()) -> None:
        """Wait for the verdicts of all claims, then adopt what placement has granted to these searches, then let the picture
        catch up, and hosts that have just come tell of themselves. That comes last: what a choice after this counts, such
        as a share that nobody has claimed yet, must not grow old meanwhile.
        """
        if self._under_way:
            await asyncio.wait(tuple(self._under_way))
        if lost:
            await self.adopt_held(lost)
        answered = self._answered
        await self._make_sure()
        if self._answered != answered:
            # The shares of claims that were answered meanwhile count at once, and what was released before them does not yet.
            await self._make_sure()
        if await self._newcomers.until_told():
            await self._make_sure()

    async def adopt_held(self, lost: Sequence[Search]) -> None:
        for one, verdict in zip(lost, await self._ask([one.probe() for one in lost]), strict=True):
            if one.claims_again_after(verdict):
                continue
            match verdict:
                case AlreadyClaimed():
                    log.debug("a share that was claimed before is adopted")
                    one.outcome = self._adopted(one, verdict)
                case Superseded(ended=True) | TooOld():
                    one.outcome = EndedElsewhere()
            one.forget_refusals()

    # Choosing

    def _choose(self, choosing: Sequence[Search]) -> list[tuple[Search, NoValidHost]]:
        """Choose a host for each search, as `choose_now` does. A search that insists on one host, which no longer
        qualifies, passes over that host and chooses another one. Returns the searches that found no host, each with the
        reasons.
        """
        nowhere = self.choose_now(choosing)
        insisting = [one for one, _ in nowhere if one.insisted]
        for one in insisting:
            log.debug("the host to try again does not qualify any more: it is passed over")
            one.pass_over(one.insisted)
        return [(one, why) for one, why in nowhere if one not in insisting] + self.choose_now(insisting)

    def choose_now(self, choosing: Sequence[Search]) -> list[tuple[Search, NoValidHost]]:
        """Choose a host for each search, and hold it in the picture at once. Returns the searches that found none, each
        with the reasons.
        """
        nowhere = []
        if not choosing:
            return []
        began_at = self._clock()
        found = choose(
            self.picture,
            [one.wanted for one in choosing],
            self._plugins,
            self._salt,
            self._alternates_max,
            draw=self.chance.getrandbits(32) if self._plugins.subset > 1 else 0,
        )
        self._choices.observe((self._clock() - began_at).total_seconds(), len(choosing))
        for one, where in zip(choosing, found, strict=True):
            if isinstance(where, NoValidHost):
                nowhere.append((one, where))
            else:
                one.chosen = where
        self._hold(choosing)
        return nowhere

    def choose_any_flavor(self, choosing: Sequence[Search]) -> list[tuple[Search, NoValidHost]]:
        """Choose a host for each search, as `choose_now` does: for the best flavor that its request accepts, and if there
        is none, for the next one. Returns the searches that found no host for any flavor.
        """
        for one in choosing:
            one.begin_again()
        nowhere = []
        while choosing:
            lost = self.choose_now(choosing)
            nowhere += [(one, why) for one, why in lost if not one.may_fall_back]
            falling = [(one, why) for one, why in lost if one.may_fall_back]
            for one, why in falling:
                one.fall_back(why)
            choosing = [one for one, _ in falling]
        return nowhere

    def _hold(self, searches: Sequence[Search]) -> None:
        chosen = _chosen(searches)
        self.picture.hold((*one.key, where.choice.share) for one, where in chosen)
        for one, where in chosen:
            if (group := one.spec.server_group) is not None:
                instance, attempt = one.key
                self.picture.groups.hold(
                    GroupMember(
                        group=group.id, consumer=instance, attempt=attempt, host=where.choice.share.host
                    )
                )

    def _refill_all(self, searches: Sequence[Search]) -> None:
        """Choose further alternates for instances that have fewer than they may have; and for those whose request accepts
        several flavors, alternates with the flavors after theirs.
        """
        pools: dict[tuple[str, InstanceSpec], tuple[Choice, ...]] = {}
        for one in searches:
            self._refill(one)
            if one.alternatives and one.may_fall_back:
                self._offer_other_flavors(one, pools)

    def _offer_other_flavors(
        self, one: Search, pools: dict[tuple[str, InstanceSpec], tuple[Choice, ...]]
    ) -> None:
        """Let the cell go on with the next flavors when no host can build this one. Each has alternates of its own, behind
        those of the better flavors. `pools` keeps the best hosts of each cell for a spec.
        """
        holds, count = one.outcome, self._alternates_max
        if not isinstance(holds, Holds):
            return
        taken = {each.share.host for each in (holds.choice, *holds.alternates)}
        others: list[Choice] = []
        flavors: dict[ProviderId, Flavor] = {}
        left = OTHER_FLAVORS_BYTES_MAX
        for each in one.worse_flavors:
            pool = pools.get((holds.cell, each.spec))
            if pool is None:
                pool = pools[holds.cell, each.spec] = more_alternates(
                    self.picture,
                    each.spec,
                    self._plugins,
                    cell=holds.cell,
                    salt=self._salt,
                    count=ALTERNATE_POOL_MAX,
                    start=0,
                )
            start = one.instance.int % max(len(pool), 1)
            # A host can have one flavor only: the better one.
            free = [choice for choice in (*pool[start:], *pool[:start]) if choice.share.host not in taken]
            # The order has the flavor beside each of its hosts.
            size = len(json.encode(each.flavor))
            free = free[: min(count, left // size)]
            left -= size * len(free)
            others += free
            taken |= {choice.share.host for choice in free}
            flavors |= {choice.share.host: each.flavor for choice in free}
        alternates = (*holds.alternates, *others)[:ALTERNATES_MAX]
        one.outcome = structs.replace(holds, alternates=alternates, other_flavors=flavors)

    def _refill(self, one: Search) -> None:
        """Choose further alternates for an instance that has fewer than it may have, because refused claims used them
        up or none were chosen with the host.
        """
        holds = one.outcome
        if not isinstance(holds, Holds) or hosts_among(holds.alternates) >= self._alternates_max:
            return
        taken = [host_in_cell(holds.cell, each.name).lower() for each in (holds.choice, *holds.alternates)]
        spec = one.elsewhere
        more = more_alternates(
            self.picture,
            structs.replace(spec, ignore_hosts=(*spec.ignore_hosts, *taken)),
            self._plugins,
            cell=holds.cell,
            salt=self._salt,
            count=self._alternates_max - hosts_among(holds.alternates),
            start=one.instance.int,
        )
        one.outcome = structs.replace(holds, alternates=(*holds.alternates, *more)[:ALTERNATES_MAX])

    # Claiming

    async def _claim_chosen(self, searches: Sequence[Search]) -> None:
        claiming = _chosen(searches)
        needs_more = False
        with self.claiming():
            traces = [one.trace for one, _ in claiming]
            verdicts = await self._ask([one.order() for one, _ in claiming], traces)
            self.verdicts.update(map(type, verdicts))
            for (one, chosen), verdict in zip(claiming, verdicts, strict=True):
                needs_more |= self._take(one, chosen, verdict)
        if needs_more:
            await self.replica.catch_up()

    def _take(self, one: Search, chosen: Chosen, verdict: ClaimVerdict) -> bool:
        """Go on with a search by placement's verdict on its claim. Returns whether the picture must catch up with
        placement, since the verdict does not tell all that changed.
        """
        if isinstance(verdict, Claimed):
            self.picture.granted(*one.key)
            one.granted()
            return False
        self.picture.drop((one.key,))
        if one.claims_again_after(verdict):
            if one.is_searching:
                self._hold((one,))
            return False
        needs_more = isinstance(verdict, GroupRefused) or (
            isinstance(verdict, ShapeMoved) and not self.replica.moved(verdict)
        )
        step: Outcome | NextTry
        if isinstance(verdict, AlreadyClaimed):
            step = self._adopted(one, verdict)
        else:
            step = after_refusal(verdict, self.registry.name_of)
        if isinstance(step, NextTry):
            limits = self.pace
            way = self._other_way(one, chosen, verdict)
            if way is not None and isinstance(step, OtherHost):
                log.debug("a claim is refused: another way on the same host is tried")
                one.try_other_way(way, step, claims_max=limits.claims_max)
            else:
                one.refused(step, shape_tries_max=limits.shape_tries_max, claims_max=limits.claims_max)
            if one.is_searching and one.chosen is not None:
                self._hold((one,))
        elif isinstance(step, SearchRefused) and step.over_quota and one.may_fall_back:
            log.debug("a claim is refused by quota: the next flavor is tried")
            one.fall_back(step.reason)
        else:
            one.outcome = step
        return needs_more

    def _other_way(self, one: Search, chosen: Chosen, verdict: ClaimVerdict) -> Choice | None:
        """Another way to take the amounts from the providers of the same host, chosen by what the verdict says is free
        on them. None if there is none, or if placement refused the claim for any reason but too little room on single
        providers.
        """
        if not isinstance(verdict, DoesNotFit) or verdict.full is not None:
            return None
        if len(one.shortfalls) >= self.pace.claims_max:
            return None
        one.shortfalls += verdict.shortfalls
        return other_way(self.picture, one.spec, self._plugins, chosen.choice, one.shortfalls)

    def _adopted(self, one: Search, held: AlreadyClaimed) -> Outcome:
        if one.alternatives:
            one.take_flavor_of(amounts_of(held.share), self._traits_of(held.share))
        return outcome_of_held(
            held,
            self.registry.get(held.share.host),
            dict(one.spec.amounts),
            one.chosen,
            alternates_max=self._alternates_max,
            row_wait_s=self.pace.host_row_wait_s,
        )

    def _traits_of(self, share: Share) -> set[str]:
        """The traits of the providers that give this share, as far as the picture knows them."""
        index = self.picture.index
        rows = [index.row_of(each.provider) for each in share.amounts]
        return {trait for row in rows if row is not None for trait in index.state(row).traits}

    async def _ask(
        self, claims: Sequence[ClaimResources | SwapClaim], traces: Sequence[str] = ()
    ) -> list[ClaimVerdict]:
        verdicts = []
        with asking_for(traces) if any(traces) else nullcontext():
            answers = await self.ask_all(claims)
        for answer in answers:
            if not isinstance(answer, ClaimAnswered):
                raise WrongAnswer(f"placement answered a claim by {answer!r}")
            verdicts.append(answer.verdict)
        if any(self._unknown_holder(each) for each in verdicts):
            await self._make_sure()
        self._wait_for_rows(claims, verdicts)
        return verdicts

    def _wait_for_rows(
        self, claims: Sequence[ClaimResources | SwapClaim], verdicts: Sequence[ClaimVerdict]
    ) -> None:
        """Raise `Transient` if an instance holds a share of a host that this worker does not know.

        Another worker has heard of the host and will write its row soon, so the batch is tried again. An instance whose
        request is older than `host_row_wait_s` does not wait: `outcome_of_held` refuses it.
        """
        began_after = self._clock() - timedelta(seconds=self.pace.host_row_wait_s)
        for claim, verdict in zip(claims, verdicts, strict=True):
            unknown = self._unknown_holder(verdict)
            if unknown is not None and claim.issued_at > began_after:
                raise Transient(
                    f"a share is held of provider {unknown}, a host that this worker does not know yet"
                )

    def _unknown_holder(self, verdict: ClaimVerdict) -> ProviderId | None:
        if isinstance(verdict, AlreadyClaimed) and self.registry.get(verdict.share.host) is None:
            return verdict.share.host
        return None


def _chosen(searches: Sequence[Search]) -> list[tuple[Search, Chosen]]:
    """The searches that have chosen a host to claim, each with its choice."""
    return [(one, one.chosen) for one in searches if one.is_searching and one.chosen is not None]
