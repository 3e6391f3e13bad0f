"""An oracle for claims, as simple as possible: one order at a time, each number counted anew.

It is slow on purpose, shares no line with placement_worker/core, and stores no usage. Of a verdict it returns only what
callers may rely on, as a tuple.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bus.message import ConsumerId, ProviderId
from bus.messages.placement import ClaimResources, ReleaseClaim, Share, SwapClaim
from placement_worker.core.ledger import SentOrder

Said = tuple[object, ...]
Amounts = dict[tuple[ProviderId, str], int]


@dataclass
class PlainInventory:
    total: int
    reserved: int = 0
    ratio: float = 1.0
    min_unit: int = 1
    max_unit: int = 2_147_483_647
    step_size: int = 1

    @property
    def capacity(self) -> int:
        return int((self.total - self.reserved) * self.ratio)


@dataclass
class PlainProvider:
    root: ProviderId
    cell: str
    stocks: dict[str, PlainInventory]
    generation: int


@dataclass
class ConsumerHistory:
    """Everything known about one consumer."""

    cell: str
    attempt: int
    generation: int = 0
    ended: bool = False
    host: ProviderId | None = None
    holds: Amounts = field(default_factory=dict)


@dataclass
class Oracle:
    providers: dict[ProviderId, PlainProvider]
    shapes: dict[ProviderId, int]
    now: datetime
    horizon: timedelta
    pasts: dict[ConsumerId, ConsumerHistory] = field(default_factory=dict)
    claimed: list[tuple[ConsumerId, int]] = field(default_factory=list)
    ended: list[tuple[ConsumerId, int]] = field(default_factory=list)

    def used(self, provider: ProviderId, resource: str) -> int:
        return sum(past.holds.get((provider, resource), 0) for past in self.pasts.values())

    def answer(self, asked: SentOrder) -> Said:
        order = asked.order
        past = self.pasts.get(order.consumer)
        if asked.speaks_for is not None and asked.speaks_for != order.cell:
            return ("not allowed", "cell")
        chooses_cells = asked.speaks_for is None and isinstance(order, ClaimResources)
        if past is not None and past.cell != order.cell and not chooses_cells:
            return ("not allowed", "cell")
        if isinstance(order, ReleaseClaim):
            return self._release(order, past)
        if isinstance(order, SwapClaim):
            return self._swap(order, past)
        return self._claim(order, past)

    def _claim(self, order: ClaimResources, past: ConsumerHistory | None) -> Said:
        if past is None and order.issued_at < self.now - self.horizon:
            return ("too old", self.horizon.total_seconds())
        if past is not None and past.attempt > order.attempt:
            return ("superseded", past.attempt, past.ended)
        if past is not None and past.attempt == order.attempt and past.ended:
            return ("superseded", past.attempt, True)
        if past is not None and not past.ended:
            return self._already(past)
        no = self._why_not(order.cell, order.share, {})
        if no:
            return no
        past = replace(past, cell=order.cell) if past else ConsumerHistory(cell=order.cell, attempt=0)
        self._grant(order.consumer, past, order.attempt, order.share)
        return ("claimed",)

    def _release(self, order: ReleaseClaim, past: ConsumerHistory | None) -> Said:
        if past is None:
            if order.issued_at < self.now - self.horizon:
                return ("too old", self.horizon.total_seconds())
            self.pasts[order.consumer] = ConsumerHistory(cell=order.cell, attempt=order.attempt, ended=True)
            return ("released", False)
        if past.attempt > order.attempt:
            return ("superseded", past.attempt, past.ended)
        freed = not past.ended
        if freed:
            self.ended.append((order.consumer, past.attempt))
        past.attempt, past.ended, past.host, past.holds = order.attempt, True, None, {}
        return ("released", freed)

    def _swap(self, order: SwapClaim, past: ConsumerHistory | None) -> Said:  # noqa: PLR0911 - one for each rule
        if order.attempt <= order.held_attempt:
            return ("not allowed", "attempt")
        if past is None:
            return ("superseded", 0, False)
        if past.attempt == order.attempt and not past.ended:
            return self._already(past)
        if past.attempt != order.held_attempt or past.ended:
            return ("superseded", past.attempt, past.ended)
        heir = self.pasts.get(order.cleanup) if order.cleanup else None
        if order.cleanup == order.consumer:
            return ("not allowed", "cleanup")
        if heir is not None and heir.cell != order.cell:
            return ("not allowed", "cell")
        if heir is not None and not heir.ended:
            return ("not allowed", "cleanup")
        is_cleaned_up = heir is not None and heir.attempt >= order.held_attempt
        keeps = order.cleanup is not None and not is_cleaned_up

        no = self._why_not(order.cell, order.share, {} if keeps else past.holds)
        if no:
            return no
        self.ended.append((order.consumer, past.attempt))
        bumped = {provider for provider, _ in past.holds} if keeps else set()
        if keeps:
            assert order.cleanup is not None
            self.pasts[order.cleanup] = ConsumerHistory(
                cell=past.cell,
                attempt=past.attempt,
                generation=heir.generation + 1 if heir else 1,
                host=past.host,
                holds=past.holds,
            )
            self.claimed.append((order.cleanup, past.attempt))
        self._grant(order.consumer, past, order.attempt, order.share, bumped)
        return ("claimed",)

    def _grant(
        self,
        consumer: ConsumerId,
        past: ConsumerHistory,
        attempt: int,
        share: Share,
        bumped: set[ProviderId] | frozenset[ProviderId] = frozenset(),
    ) -> None:
        self.pasts[consumer] = ConsumerHistory(
            cell=past.cell,
            attempt=attempt,
            generation=past.generation + 1,
            host=share.host,
            holds=summed(share),
        )
        for provider in bumped | {amount.provider for amount in share.amounts}:
            self.providers[provider].generation += 1
        self.claimed.append((consumer, attempt))

    def _already(self, past: ConsumerHistory) -> Said:
        return ("already claimed", past.attempt, past.host, frozenset(past.holds.items()))

    def _why_not(self, cell: str, share: Share, given_back: Amounts) -> Said | None:
        named = [
            share.host,
            *[amount.provider for amount in share.amounts],
            *[seen.root for seen in share.shapes],
        ]
        standing = [self.providers[provider] for provider in named if provider in self.providers]
        if any(one.cell not in ("", cell) for one in standing):
            return ("not allowed", "share.cell")
        gone = {provider for provider in named if provider not in self.providers}
        moved = {
            self.providers[seen.root].root
            for seen in share.shapes
            if seen.root in self.providers and self.shapes.get(seen.root) != seen.shape
        }
        if gone or moved:
            return ("moved", frozenset(moved), frozenset(gone))
        if self.providers[share.host].root != share.host:
            return ("not allowed", "share.host")
        if all(self.providers[amount.provider].root != share.host for amount in share.amounts):
            return ("not allowed", "share.amounts")
        short = [
            no
            for (provider, resource), asked in summed(share).items()
            if (no := self._short(provider, resource, asked, given_back.get((provider, resource), 0)))
        ]
        return ("does not fit", *short) if short else None

    def _short(self, provider: ProviderId, resource: str, asked: int, given_back: int) -> Said | None:
        stock = self.providers[provider].stocks.get(resource)
        if stock is None:
            return (provider, resource, "no_inventory", asked, 0, 0)
        free = stock.capacity - (self.used(provider, resource) - given_back)
        for rule, bound, broken in (
            ("min_unit", stock.min_unit, asked < stock.min_unit),
            ("max_unit", stock.max_unit, asked > stock.max_unit),
            ("step_size", stock.step_size, asked % stock.step_size != 0),
            ("capacity", 0, asked > free and asked > given_back),
        ):
            if broken:
                return (provider, resource, rule, asked, free, bound)
        return None


def summed(share: Share) -> Amounts:
    amounts: Amounts = {}
    for amount in share.amounts:
        key = amount.provider, amount.resource
        amounts[key] = amounts.get(key, 0) + amount.amount
    return amounts
