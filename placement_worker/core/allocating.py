"""May these consumers hold what somebody says by name that they hold?

Whoever says so knows no attempts: a consumer is judged by its generation alone, and one that holds nothing is none. But
the books keep both ways of life apart in one row. A consumer that was claimed for keeps its attempt when its allocations
are rewritten, so that what conductors sent of it is judged as before; emptied, it ends as a release ends it. One that is
made anew where an attempt has ended takes the next one, so that nothing that is late can free what it holds. One that no
attempt was ever seen of leaves no row behind.

All consumers of one write change together, or none: what they give back counts for what they take.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from msgspec import Struct, structs

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import (
    AllocationWrite,
    ConsumerAllocations,
    ConsumerMoved,
    DeleteAllocations,
    Done,
    SetAllocations,
    UnknownClass,
    UnknownConsumer,
    UnknownProvider,
    WriteVerdict,
)
from bus.messages.placement import NO_OWNER, DoesNotFit, NotAllowed, Shortfall
from placement_worker.core.accounts import Account, shortfalls_of
from placement_worker.core.draft import Amounts, Draft, Life, amounts_in
from placement_worker.core.ledger import ClaimChanges, Consumer, Ledger, NamedShares
from placement_worker.core.vocabulary import Vocabulary, unknown_classes


class AllocationDecision(Struct, frozen=True):
    """A verdict for each write, in their order, and what all of them together write."""

    verdicts: tuple[WriteVerdict, ...]
    changes: ClaimChanges


def shares_named_by(writes: Sequence[AllocationWrite]) -> NamedShares:
    named = shares_named_by_consumers(
        one for write in writes if isinstance(write, SetAllocations) for one in write.consumers
    )
    emptied = tuple(write.consumer for write in writes if isinstance(write, DeleteAllocations))
    return structs.replace(named, consumers=tuple(dict.fromkeys(named.consumers + emptied)))


def shares_named_by_consumers(allocations: Iterable[ConsumerAllocations]) -> NamedShares:
    wishes = dict[ConsumerId, ConsumerAllocations]()
    providers = dict[ProviderId, None]()
    classes = dict[str, None]()
    for one in allocations:
        wishes[one.consumer] = one
        for amount in one.amounts:
            providers[amount.provider] = None
            classes[amount.resource] = None
    return NamedShares(tuple(wishes), tuple(providers), tuple(classes), tuple(wishes.values()))


def made_for(wish: ConsumerAllocations, cell: str) -> Consumer:
    """Its consumer, if none was there and no attempt was ever seen of it; what it holds stands in this cell."""
    return Consumer(
        id=wish.consumer,
        type=wish.type or "",
        project=wish.project or NO_OWNER,
        user=wish.user or NO_OWNER,
        cell=cell,
        generation=1,
    )


def decide_allocations(
    ledger: Ledger, writes: Sequence[AllocationWrite], vocabulary: Vocabulary, now: datetime
) -> AllocationDecision:
    """Judge each write by the books as the writes before it left them."""
    draft = Draft(ledger)
    verdicts: list[WriteVerdict] = []
    for write in writes:
        match write:
            case SetAllocations():
                unknown = _unknown(ledger, vocabulary, write.consumers)
                verdicts.append(allocate(draft, write.consumers, unknown, now))
            case DeleteAllocations():
                verdicts.append(_delete(draft, write, now))
    return AllocationDecision(tuple(verdicts), draft.changes())


def _unknown(
    ledger: Ledger, vocabulary: Vocabulary, consumers: Iterable[ConsumerAllocations]
) -> tuple[str, ...]:
    named = {amount.resource for one in consumers for amount in one.amounts}
    return unknown_classes(named, vocabulary, ledger.classes)


def allocate(
    draft: Draft, consumers: Sequence[ConsumerAllocations], unknown: tuple[str, ...], now: datetime
) -> WriteVerdict:
    """What they are to hold from now on, if all of it may be had; some of the classes they name may be `unknown`."""
    refused = _twice(consumers) or next(_moved(draft, consumers), None) or _strays(draft, consumers)
    if refused:
        return refused
    if unknown:
        return UnknownClass(names=unknown)
    plans = [_Plan(draft, one) for one in consumers]
    if short := tuple(_shortfalls(plans)):
        return DoesNotFit(shortfalls=short)
    for plan in plans:
        draft.free(plan.held)
        draft.take(plan.wanted)
    draft.gain(account for plan in plans for account in (plan.wanted or plan.held))
    for plan in plans:
        _live_on(draft, plan, now)
    return Done()


class _Plan:
    """One consumer, and what it gives back and takes of which stocks."""

    __slots__ = ("held", "life", "wanted", "wish")

    def __init__(self, draft: Draft, wish: ConsumerAllocations) -> None:
        self.wish = wish
        self.life = draft.life(wish.consumer)
        self.held = draft.amounts_of(self.life.held)
        self.wanted: Amounts = draft.amounts_of(wish.amounts)


def _twice(consumers: Sequence[ConsumerAllocations]) -> NotAllowed | None:
    named: set[ConsumerId] = set()
    for position, one in enumerate(consumers):
        if one.consumer in named:
            return NotAllowed(
                field=f"consumers[{position}].consumer", reason=f"consumer {one.consumer} is named twice"
            )
        named.add(one.consumer)
    return None


def _moved(draft: Draft, consumers: Iterable[ConsumerAllocations]) -> Iterator[ConsumerMoved]:
    for one in consumers:
        life = draft.life(one.consumer)
        current = life.row.generation if life.held else None
        if one.judges_generation and one.generation != current:
            yield ConsumerMoved(consumer=one.consumer, seen=one.generation, current=current)


def _strays(draft: Draft, consumers: Iterable[ConsumerAllocations]) -> UnknownProvider | None:
    return next(
        (
            UnknownProvider(provider=amount.provider, field="allocations")
            for one in consumers
            for amount in one.amounts
            if draft.account(amount.provider) is None
        ),
        None,
    )


def _shortfalls(plans: Sequence[_Plan]) -> Iterator[Shortfall]:
    for (account, resource), each in _asked(plans).items():
        held = sum(plan.held.get(account, {}).get(resource, 0) for plan in plans)
        yield from shortfalls_of(account, resource, each, held)


def _asked(plans: Iterable[_Plan]) -> dict[tuple[Account, str], list[int]]:
    asked: dict[tuple[Account, str], list[int]] = {}
    for plan in plans:
        for account, of_provider in plan.wanted.items():
            for resource, amount in of_provider.items():
                asked.setdefault((account, resource), []).append(amount)
    return asked


def _live_on(draft: Draft, plan: _Plan, now: datetime) -> None:
    if plan.wanted:
        plan.life.become(_rewritten(draft, plan), amounts_in(plan.wanted))
    elif plan.held:
        _end(draft, plan.life, now)


def _rewritten(draft: Draft, plan: _Plan) -> Consumer:
    """The consumer's row, if it lives on; or the first of a new life."""
    row, wish = plan.life.row, plan.wish
    lives = bool(plan.held)
    rows = [account.row for account in plan.wanted]
    # Who may speak for where it lives may swap and release it.
    cell = next((one.cell for one in rows if one.cell), row.cell if lives else "")
    if not lives and not row.attempt:
        return made_for(wish, cell)
    attempt = row.attempt if lives or not row.attempt else row.attempt + 1
    if attempt and not lives:
        draft.claimed(row.id, attempt)
    roots = [one.root for one in rows]
    kept_type = row.type if lives else ""
    return Consumer(
        id=row.id,
        type=kept_type if wish.type is None else wish.type,
        project=wish.project or NO_OWNER,
        user=wish.user or NO_OWNER,
        cell=cell,
        generation=row.generation + 1 if lives else 1,
        attempt=attempt,
        host=(row.host if row.host in roots else roots[0]) if attempt else None,
        group=row.group if lives else None,
    )


def _delete(draft: Draft, write: DeleteAllocations, now: datetime) -> WriteVerdict:
    life = draft.life(write.consumer)
    if not life.held:
        return UnknownConsumer(consumer=write.consumer)
    draft.free(draft.amounts_of(life.held))
    _end(draft, life, now)
    return Done()


def _end(draft: Draft, life: Life, now: datetime) -> None:
    row = life.row
    if not row.attempt:
        life.vanish()
        return
    draft.ended(row.id, row.attempt)
    ended = Consumer(
        id=row.id,
        type=row.type,
        project=row.project,
        user=row.user,
        cell=row.cell,
        generation=row.generation,
        attempt=row.attempt,
        ended_at=now,
    )
    life.become(ended, ())
