"""An oracle for claims, as simple as possible: one order at a time, each number counted anew.

It is slow on purpose, shares no line with placement_worker/core, and stores no usage. It returns only the parts of a
verdict that callers may rely on, as a tuple.
"""

from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from bus.messages.placement import ClaimResources, ReleaseClaim, SwapClaim
from engine.inventories import ConsumerId, ProviderId, ReportedInventory, Share
from placement_worker.core.ledger import ClaimOrder, Sent
from tests.simulation.write_rules import capacity, summed

Said = tuple[object, ...]
Amounts = dict[tuple[ProviderId, str], int]


@dataclass
class PlainProvider:
    root: ProviderId
    cell: str
    stocks: dict[str, ReportedInventory]
    generation: int


@dataclass
class ConsumerHistory:
    cell: str
    attempt: int
    generation: int = 0
    ended: bool = False
    host: ProviderId | None = None
    holds: Amounts = field(default_factory=dict)
    kind: str = "INSTANCE"

    @property
    def was_claimed(self) -> bool:
        """Has a claim or a swap ever made it? A release that came before its claim leaves a history, too."""
        return self.generation > 0


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

    def answer(self, asked: Sent[ClaimOrder]) -> Said:
        order = asked.order
        past = self.pasts.get(order.consumer)
        if asked.speaks_for is not None and asked.speaks_for != order.cell:
            return ("not allowed", "cell")
        if past is not None and past.cell != order.cell:
            if isinstance(order, ClaimResources) and not past.was_claimed:
                # What another sender's release left behind does not bind this one.
                past = None
            elif not (asked.speaks_for is None and isinstance(order, ClaimResources)):
                return ("not allowed", "cell")
        if isinstance(order, ClaimResources) and past is not None and past.kind != "INSTANCE":
            return ("not allowed", "consumer")
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
        heir = self._heir_of(order)
        migration = self.pasts.get(order.returns) if order.returns else None
        if migration is not None and (migration.ended or migration.cell != order.cell):
            migration = None
        if no := self._wrong_consumers(order, heir, migration):
            return no
        is_over = heir is not None and heir.attempt >= order.held_attempt
        kind = order.heir.type if order.heir and not is_over else ""
        takes_all = kind == "CLEANUP" and not order.returns

        wanted, given_up = (
            summed(order.share.amounts),
            added(past.holds, migration.holds if migration else {}),
        )
        is_back = order.returns is not None and self._still_there(order.share, given_up, past, migration)
        rest = past.holds if takes_all else minus(past.holds, wanted) if kind else {}
        given_back = {} if takes_all else given_up
        if not is_back and (no := self._why_not(order.cell, order.share, given_back)):
            return no
        if migration is not None:
            assert order.returns is not None
            self.ended.append((order.returns, migration.attempt))
            self.pasts[order.returns] = replace(migration, ended=True, host=None, holds={})
        self.ended.append((order.consumer, past.attempt))
        if rest:
            assert order.heir is not None
            self.pasts[order.heir.id] = ConsumerHistory(
                cell=past.cell,
                attempt=past.attempt,
                generation=heir.generation + 1 if heir else 1,
                host=past.host if takes_all or past.host != order.share.host else None,
                holds=rest,
                kind=kind,
            )
            self.claimed.append((order.heir.id, past.attempt))
        self._grant(order.consumer, past, order.attempt, order.share, {provider for provider, _ in rest})
        return ("claimed",)

    def _heir_of(self, order: SwapClaim) -> ConsumerHistory | None:
        """What is known about the heir. What another cell's release left behind does not count."""
        heir = self.pasts.get(order.heir.id) if order.heir else None
        return heir if heir is not None and (heir.cell == order.cell or heir.was_claimed) else None

    def _wrong_consumers(
        self, order: SwapClaim, heir: ConsumerHistory | None, migration: ConsumerHistory | None
    ) -> Said | None:
        """The heir or the migration is no consumer that this swap may begin or end."""
        heir_id = order.heir.id if order.heir else None
        kind = order.heir.type if order.heir else "CLEANUP"
        for name, is_wrong in (
            ("returns", order.returns == order.consumer),
            ("heir.id", heir_id is not None and heir_id in (order.consumer, order.returns)),
            ("heir.type", order.returns is not None and kind == "MIGRATION"),
            ("heir.id", heir is not None and (heir.cell != order.cell or not heir.ended)),
            ("heir.id", heir is not None and heir.was_claimed and heir.kind != kind),
            ("returns", migration is not None and migration.kind != "MIGRATION"),
        ):
            if is_wrong:
                return ("not allowed", name)
        return None

    def _still_there(
        self, share: Share, holds: Amounts, past: ConsumerHistory, migration: ConsumerHistory | None
    ) -> bool:
        places = {past.host, migration.host if migration else None}
        return share.host in places and not minus(summed(share.amounts), holds)

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
            generation=max(past.generation + 1, attempt),
            host=share.host,
            holds=summed(share.amounts),
            kind=past.kind,
        )
        for provider in bumped | {amount.provider for amount in share.amounts}:
            self.providers[provider].generation += 1
        self.claimed.append((consumer, attempt))

    def _already(self, past: ConsumerHistory) -> Said:
        lives_at = past.host or self.providers[next(iter(past.holds))[0]].root
        return ("already claimed", past.attempt, lives_at, frozenset(past.holds.items()))

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
            for (provider, resource), asked in summed(share.amounts).items()
            if asked != (given := given_back.get((provider, resource), 0))
            and (no := self._short(provider, resource, asked, given))
        ]
        return ("does not fit", *short) if short else None

    def _short(self, provider: ProviderId, resource: str, asked: int, given_back: int) -> Said | None:
        stock = self.providers[provider].stocks.get(resource)
        if stock is None:
            return (provider, resource, "no_inventory", asked, 0, 0)
        free = capacity(stock) - (self.used(provider, resource) - given_back)
        for rule, bound, broken in (
            ("min_unit", stock.min_unit, asked < stock.min_unit),
            ("max_unit", stock.max_unit, asked > stock.max_unit),
            ("step_size", stock.step_size, asked % stock.step_size != 0),
            ("capacity", 0, asked > free and asked > given_back),
        ):
            if broken:
                return (provider, resource, rule, asked, free, bound)
        return None


def added(one: Amounts, other: Amounts) -> Amounts:
    return {key: one.get(key, 0) + other.get(key, 0) for key in {**one, **other}}


def minus(one: Amounts, other: Amounts) -> Amounts:
    """Where the first has more than the second: how much more."""
    return {key: amount - other.get(key, 0) for key, amount in one.items() if amount > other.get(key, 0)}
