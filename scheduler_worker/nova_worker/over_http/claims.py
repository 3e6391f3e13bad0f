"""Claims, swaps and releases as writes of allocations over HTTP.

Claims of one batch are one write. Placement grants all of them or none; if it grants none, each claim is written by itself.

This placement knows no attempts. A consumer's generation tells whether somebody else has written in between: a swap or a release is
written at the generation that our last claim made or that we have last read. What a consumer holds tells whether a claim was granted
before. What a consumer held before any claim of ours counts as attempt 0.
"""

import asyncio
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial

from msgspec import structs

from bus.errors import Transient
from bus.message import ConsumerId, Message, ProviderId
from bus.messages.placement import (
    NO_OWNER,
    AlreadyClaimed,
    ClaimAnswered,
    Claimed,
    ClaimResources,
    ClaimVerdict,
    DoesNotFit,
    GroupMember,
    ReleaseClaim,
    Released,
    ResourceAmount,
    Share,
    Shortfall,
    Superseded,
    SwapClaim,
)
from scheduler_worker.nova_worker.over_http.api import (
    Amounts,
    Conflict,
    Held,
    HoldingsToWrite,
    PlacementApi,
    all_of,
)
from scheduler_worker.nova_worker.over_http.books import HttpBooks

# Of so many consumers it is remembered what they hold, until the answer about them is delivered.
CLAIMS_KEPT = 100_000
# So many claims are one write: with more of them, more are repeated when one of them is refused.
TOGETHER_MAX = 20
# So many writes at once: more answer large batches sooner, fewer make fewer conflicts.
WRITES_AT_ONCE = 8
# A write that conflicts with others on its provider is tried so often, after pauses drawn at random; then another host is.
CONFLICT_TRIES_MAX, CONFLICT_PAUSE_S_MAX = 4, 0.5


class HttpClaims:
    def __init__(
        self,
        api: PlacementApi,
        books: HttpBooks,
        *,
        chance: random.Random,
    ) -> None:
        self._api = api
        self._books = books
        self._chance = chance
        self._room = asyncio.Semaphore(WRITES_AT_ONCE)
        # What each consumer holds since our last claim for it, or held when it was last read.
        self._known: OrderedDict[ConsumerId, Held] = OrderedDict()

    async def ask_all(self, orders: Sequence[Message]) -> Sequence[Message]:
        """The answer to each of these orders, in their order. Raises `Operational` if placement does not answer one of them."""
        claims = {
            each.consumer: each for each in orders if isinstance(each, ClaimResources) and not _asks(each)
        }
        granted = await self._claim_together([*claims.values()])
        return await all_of(
            self._answer(
                order,
                is_granted=isinstance(order, ClaimResources)
                and order.consumer in granted
                and order is claims[order.consumer],
            )
            for order in orders
        )

    async def _answer(self, order: Message, *, is_granted: bool) -> ClaimAnswered:
        verdict: ClaimVerdict = Claimed()
        if not isinstance(order, ClaimResources | SwapClaim | ReleaseClaim):
            raise TypeError(f"{order!r} is no order about a claim")
        if not is_granted:
            async with self._room:
                match order:
                    case ClaimResources():
                        verdict = await self._claim(order)
                    case SwapClaim():
                        verdict = await self._swap(order)
                    case ReleaseClaim():
                        verdict = await self._release(order)
        return ClaimAnswered(consumer=order.consumer, attempt=order.attempt, verdict=verdict)

    async def _claim_together(self, claims: Sequence[ClaimResources]) -> frozenset[ConsumerId]:
        """Write these claims by as few requests as possible. Returns whose claims were granted; the others are not decided."""
        # Those on one host in one request: two requests at once about one provider would be in each other's way.
        ordered = sorted(claims, key=lambda each: each.share.host.int)
        pages = [ordered[first : first + TOGETHER_MAX] for first in range(0, len(ordered), TOGETHER_MAX)]
        granted = await all_of(self._are_granted(page) for page in pages if len(page) > 1)
        return frozenset(consumer for page in granted for consumer in page)

    async def _are_granted(self, claims: Sequence[ClaimResources]) -> Iterable[ConsumerId]:
        """The consumers of these claims, if all were granted; otherwise none."""
        allocated = {each.consumer: _new(each) for each in claims}
        async with self._room:
            refused = await self._again(lambda: self._api.allocate_all(allocated))
        if refused is not None:
            return ()
        self._granted(claims)
        return allocated

    async def _claim(self, order: ClaimResources) -> ClaimVerdict:
        if _asks(order):
            return await self._already(order) or Released(freed=False)
        # A new instance holds nothing, so this is not asked before.
        refused = await self._again(lambda: self._api.allocate(order.consumer, _new(order)))
        if refused is None:
            self._granted((order,))
            return Claimed()
        if refused.of_consumer:
            return await self._already(order) or Superseded(attempt=order.attempt, ended=True)
        return _no_room(order.share, refused)

    async def _swap(self, order: SwapClaim) -> ClaimVerdict:
        """All that the consumer holds becomes this share: an evacuated instance takes one beside, or gives it back."""
        held = self._known.get(order.consumer) or await self._api.held_by(order.consumer)
        if not held.amounts:
            return Superseded(attempt=order.attempt, ended=True)
        if frozenset(held.amounts) == frozenset(order.share.amounts):
            return Claimed()
        refused = await self._again(partial(self._rewrite, order.consumer, held, order.share.amounts))
        if refused is None:
            self._note(order)
            return Claimed()
        if refused.of_consumer:
            self._known.pop(order.consumer, None)
            return Superseded(attempt=order.attempt, ended=True)
        return _no_room(order.share, refused)

    async def _release(self, order: ReleaseClaim) -> ClaimVerdict:
        """Free what our claim made it hold, unless somebody has written to the consumer since."""
        held = self._known.get(order.consumer)
        if held is None or not held.amounts:
            return Released(freed=False)
        refused = await self._again(partial(self._rewrite, order.consumer, held, ()))
        if refused is not None and not refused.of_consumer:
            raise Transient(f"placement does not release what {order.consumer} holds: {refused.reason}")
        # Not earlier: a release that gets no answer is tried again.
        self._known.pop(order.consumer, None)
        return Released(freed=refused is None)

    async def _rewrite(
        self, consumer: ConsumerId, held: Held, amounts: tuple[ResourceAmount, ...]
    ) -> Conflict | None:
        """Have the consumer hold these amounts, if it still is at the generation at which it held the others."""
        written = HoldingsToWrite(
            _amounts(amounts), held.project or NO_OWNER, held.user or NO_OWNER, held.generation
        )
        refused = await self._api.allocate(consumer, written)
        if refused is None:
            self._remember(
                consumer, structs.replace(held, amounts=amounts, generation=(held.generation or 0) + 1)
            )
        return refused

    async def _again(self, write: Callable[[], Awaitable[Conflict | None]]) -> Conflict | None:
        """Write, and again while others write to the same providers."""
        refused: Conflict | None = None
        for number in range(CONFLICT_TRIES_MAX):
            refused = await write()
            if refused is None or not refused.of_provider:
                return refused
            if number + 1 < CONFLICT_TRIES_MAX:
                await asyncio.sleep(self._chance.uniform(0, CONFLICT_PAUSE_S_MAX))
        return refused

    def _granted(self, orders: Sequence[ClaimResources]) -> None:
        """One write has granted all of these. Each is of a new consumer."""
        for order in orders:
            held = Held(order.share.amounts, 1, order.project, order.user)
            self._remember(order.consumer, held)
            self._note(order)
        self._books.wrote({order.consumer: _amounts(order.share.amounts) for order in orders})

    def _remember(self, consumer: ConsumerId, held: Held) -> None:
        self._known[consumer] = held
        self._known.move_to_end(consumer)
        while len(self._known) > CLAIMS_KEPT:
            self._known.popitem(last=False)

    def _note(self, order: ClaimResources | SwapClaim) -> None:
        """The consumer lives on this host now."""
        if order.group is not None:
            self._books.joined(
                GroupMember(
                    group=order.group.id,
                    consumer=order.consumer,
                    attempt=order.attempt,
                    host=order.share.host,
                )
            )

    async def _already(self, order: ClaimResources) -> AlreadyClaimed | None:
        """The share that the consumer holds; None if it holds none."""
        held = await self._api.held_by(order.consumer)
        if not held.amounts:
            return None
        self._remember(order.consumer, held)
        if frozenset(held.amounts) == frozenset(order.share.amounts):
            self._note(order)
            return AlreadyClaimed(attempt=order.attempt, share=order.share)
        # A provider that is not known here yet is named, so that it is read.
        providers = [each.provider for each in held.amounts]
        host = next(
            (each for each in providers if not self._books.knows(each)), self._books.root_of(providers[0])
        )
        return AlreadyClaimed(attempt=0, share=Share(host=host, amounts=held.amounts))


def _asks(order: ClaimResources) -> bool:
    """A claim of no host only asks what the consumer holds."""
    return order.share.host.int == 0


def _new(order: ClaimResources) -> HoldingsToWrite:
    return HoldingsToWrite(_amounts(order.share.amounts), order.project or NO_OWNER, order.user or NO_OWNER)


def _amounts(amounts: Iterable[ResourceAmount]) -> Amounts:
    sums: dict[ProviderId, dict[str, int]] = {}
    for each in amounts:
        of_provider = sums.setdefault(each.provider, {})
        of_provider[each.resource] = of_provider.get(each.resource, 0) + each.amount
    return sums


def _no_room(share: Share, refused: Conflict) -> DoesNotFit:
    """Another host may do. Placement tells the first amount that did not fit in words alone."""
    first = next((each for each in share.amounts if each.resource in refused.reason), share.amounts[0])
    short = Shortfall(provider=first.provider, resource=first.resource, asked=first.amount, free=0)
    return DoesNotFit(shortfalls=(short,))
