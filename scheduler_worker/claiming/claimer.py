"""From wishes to hosts that hold their shares: choose in the picture, and ask placement. What its verdicts
make of them is in judging.py.

Rounds are bounded for each instance. Before one is told that there is no host, placement is read anew, and it chooses
once more: a stale picture may cost a retry, never a wrong no.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta

import tenacity

from bus.errors import Transient, WrongAnswer
from bus.message import Message, ProviderId
from bus.messages.build import NoValidHost
from bus.messages.placement import (
    AlreadyClaimed,
    ClaimAnswered,
    ClaimResources,
    ClaimVerdict,
    Superseded,
    TooOld,
)
from scheduler_worker.claiming.judging import RELEASED, Judge
from scheduler_worker.claiming.searching import Over, Search, claim_of, probe_of
from scheduler_worker.core.choosing.choosing import choose
from scheduler_worker.core.choosing.plugins import Plugins
from scheduler_worker.core.instances.lifecycle import FIRST_ATTEMPT
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.replica.replica import Replica
from scheduler_worker.settings import SchedulerSettings

AskAll = Callable[[Sequence[Message]], Awaitable[Sequence[Message]]]


class Claimer:
    """Finds hosts for a batch. What it decides by is the picture; what decides is placement."""

    def __init__(
        self,
        picture: Picture,
        replica: Replica,
        registry: HostRegistry,
        ask_all: AskAll,
        *,
        make_sure: Callable[[], Awaitable[None]],
        plugins: Plugins,
        settings: SchedulerSettings,
        chance: random.Random,
        clock: Callable[[], datetime],
    ) -> None:
        self._picture = picture
        self._replica = replica
        self._choices = replica.choices
        self._registry = registry
        self._ask_all = ask_all
        self._make_sure = make_sure
        self._plugins = plugins
        self._settings = settings
        self._chance = chance
        self._clock = clock
        # Among hosts equally good each worker prefers others.
        self._salt = chance.getrandbits(32)
        self._judge = Judge(picture, replica, registry, plugins=plugins, settings=settings, salt=self._salt)
        # Claims of all batches that are not answered yet.
        self._under_way: set[asyncio.Future[None]] = set()

    async def find_at_once(self, searches: Sequence[Search]) -> None:
        """One round: those who hold their first choice then have that for an outcome."""
        try:
            self._choose(searches)
            await self._ask(_asking(searches))
        finally:
            lost = [one for one in searches if one.outcome is None]
            self._choices.drop((one.row.id, FIRST_ATTEMPT) for one in lost)
            for one in lost:
                one.chosen = None
        for one in searches:
            self._judge.refill(one)

    async def find_hosts(self, searches: Sequence[Search]) -> None:
        """Until each search has its outcome."""
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_result(bool),
            # Bounded by the claims of each search, who then has an outcome.
            stop=tenacity.stop_never,
            wait=lambda _: self._pause_s(searches),
        )
        try:
            await retrying(self._round, searches)
        finally:
            # Whoever could not ask begins anew, if at all: it may be decided by then, and nobody would let go of these.
            self._choices.drop((one.row.id, FIRST_ATTEMPT) for one in searches if one.outcome is None)
        for one in searches:
            self._judge.refill(one)

    def _pause_s(self, searches: Sequence[Search]) -> float:
        """Who moved a shape may be moving it still; who was refused goes on to the next host at once."""
        if not any(one.insisted for one in searches if one.outcome is None):
            return 0.0
        return self._chance.uniform(0, self._settings.shape_pause_ms_max) / 1000

    async def _round(self, searches: Sequence[Search]) -> int:
        """Everybody who has no outcome chooses and asks once; how many still have none.

        Who finds no host waits for the verdicts of those who did: what they hold is room that a refusal gives back.
        Only when nobody is left to wait for, it is made sure that there is none.
        """
        nowhere = self._choose([one for one in searches if one.outcome is None and one.chosen is None])
        asking = _asking(searches)
        if nowhere and not asking:
            await self._despair([one for one, _ in nowhere])
            asking = _asking(searches)
        await self._ask(asking)
        return sum(one.outcome is None for one in searches)

    async def _despair(self, lost: Sequence[Search]) -> None:
        """Make sure that there is no host, before anybody is told.

        What other batches hold only by choice may turn out to be held by nobody, so their verdicts are waited for. And
        it may be itself who takes the room: another batch, another worker, or an earlier life of this one has the same
        request and got its claim through. So placement is asked what it holds, after the verdicts are in.
        """
        while True:
            if self._under_way:
                await asyncio.wait(tuple(self._under_way))
            await self._make_sure()
            await self._adopt_what_is_held([one for one in lost if one.outcome is None])
            nowhere = self._choose_now([one for one in lost if one.outcome is None])
            if not nowhere or _asking(lost):
                return
            if not self._under_way:
                for one, why in nowhere:
                    one.outcome = why
                return

    async def _adopt_what_is_held(self, lost: Sequence[Search]) -> None:
        for one, verdict in zip(lost, await self._claim([probe_of(one) for one in lost]), strict=True):
            match verdict:
                case AlreadyClaimed():
                    one.outcome = self._judge.adopted(one, None, verdict)
                case Superseded(ended=True) | TooOld():
                    one.outcome = Over(RELEASED)
            # Those that were passed over were so for what was not in the picture; now it is.
            one.ignored.clear()

    # Choosing

    def _choose(self, choosing: Sequence[Search]) -> list[tuple[Search, NoValidHost]]:
        """A host that was insisted on and no longer qualifies is passed over like any other."""
        nowhere = self._choose_now(choosing)
        insisting = [one for one, _ in nowhere if one.insisted]
        for one in insisting:
            one.give_in()
        return [(one, why) for one, why in nowhere if one not in insisting] + self._choose_now(insisting)

    def _choose_now(self, choosing: Sequence[Search]) -> list[tuple[Search, NoValidHost]]:
        """Hosts for all for whom there are any, held at once; the others, and why."""
        nowhere = []
        held = []
        if not choosing:
            return []
        found = choose(
            self._picture,
            [one.wanted for one in choosing],
            self._plugins,
            self._salt,
            self._settings.alternates_max,
        )
        for one, where in zip(choosing, found, strict=True):
            if isinstance(where, NoValidHost):
                nowhere.append((one, where))
            else:
                one.chosen = where
                held.append((one.row.id, FIRST_ATTEMPT, where.choice.share))
        self._choices.hold(held)
        return nowhere

    # Claiming

    async def _ask(self, asking: Sequence[Search]) -> None:
        needs_more = False
        answered = asyncio.get_running_loop().create_future()
        self._under_way.add(answered)
        try:
            verdicts = await self._claim([claim_of(one) for one in asking])
            for one, verdict in zip(asking, verdicts, strict=True):
                one.claims += 1
                needs_more |= self._judge.judge(one, verdict)
        finally:
            self._under_way.discard(answered)
            answered.set_result(None)
        if needs_more:
            await self._replica.catch_up()

    async def _claim(self, claims: Sequence[ClaimResources]) -> list[ClaimVerdict]:
        verdicts = []
        for answer in await self._ask_all(claims):
            if not isinstance(answer, ClaimAnswered):
                raise WrongAnswer(f"placement answered a claim by {answer!r}")
            verdicts.append(answer.verdict)
        if any(self._holder_unknown(each) for each in verdicts):
            await self._make_sure()
        self._wait_for_rows(claims, verdicts)
        return verdicts

    def _wait_for_rows(self, claims: Sequence[ClaimResources], verdicts: Sequence[ClaimVerdict]) -> None:
        """Another worker has heard of a host, this one has not, and its row is still to be written: then try again. A row
        that is not written in time will not be: the judge ends that request.
        """
        began_after = self._clock() - timedelta(seconds=self._settings.host_row_wait_s)
        for claim, verdict in zip(claims, verdicts, strict=True):
            unknown = self._holder_unknown(verdict)
            if unknown is not None and claim.issued_at > began_after:
                raise Transient(
                    f"a share is held of provider {unknown}, which is no host that we know of yet"
                )

    def _holder_unknown(self, verdict: ClaimVerdict) -> ProviderId | None:
        if isinstance(verdict, AlreadyClaimed) and self._registry.get(verdict.share.host) is None:
            return verdict.share.host
        return None


def _asking(searches: Sequence[Search]) -> list[Search]:
    return [one for one in searches if one.outcome is None and one.chosen is not None]
