"""May these consumers hold the allocations that an administrator sets for them?

An administrator knows no attempts. So a write is judged by the consumer's generation alone, and a consumer that holds
nothing counts as absent. Claimed consumers and those created by an administrator are in one table:

- A consumer that was claimed keeps its attempt when its allocations are rewritten: later messages of the conductor are
  judged as before.
- When its allocations are deleted, its attempt ends, as by a release.
- When it is created again after its attempt ended, it takes the next attempt: no late message can free what it holds.
- A consumer that never had an attempt leaves no row behind.

All consumers of one write change together or not at all. What some give back counts as free for the others.
"""

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime

from bus.messages.audit import MendConsumer, MendedClaim, SeenConsumer
from bus.messages.books import (
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
from bus.messages.placement import NO_OWNER
from engine.inventories import ConsumerId, ProviderId, Vocabulary, unknown_names
from engine.refusals import DoesNotFit, NotAllowed, Shortfall
from placement_worker.core.drafts import (
    Amounts,
    ConsumerDraft,
    LedgerDraft,
    UsageDraft,
    amounts_in,
    shortfall_of,
    shortfalls_of,
)
from placement_worker.core.ledger import (
    BatchDecision,
    ClaimChanges,
    ClaimKeys,
    Consumer,
    Ledger,
    keys_of_shares,
)


def keys_of_allocation_writes(writes: Sequence[AllocationWrite]) -> ClaimKeys:
    allocations = [one for write in writes if isinstance(write, SetAllocations) for one in write.consumers]
    emptied = [write.consumer for write in writes if isinstance(write, DeleteAllocations)]
    return keys_of_allocations(allocations, emptied)


def keys_of_allocations(
    allocations: Sequence[ConsumerAllocations],
    consumers: Iterable[ConsumerId] = (),
    providers: Iterable[ProviderId] = (),
) -> ClaimKeys:
    """The rows to lock: those that these allocations name, and besides them these consumers and providers."""
    amounts = [amount for one in allocations for amount in one.amounts]
    return keys_of_shares(
        consumers=[*[one.consumer for one in allocations], *consumers],
        providers=[*[amount.provider for amount in amounts], *providers],
        classes=[amount.resource for amount in amounts],
        allocations=allocations,
    )


def new_consumer(allocations: ConsumerAllocations, cell: str) -> Consumer:
    """The row of a consumer that an administrator creates: it has no attempt. `cell` is that of its providers."""
    return Consumer(
        id=allocations.consumer,
        type=allocations.type or "",
        project=allocations.project or NO_OWNER,
        user=allocations.user or NO_OWNER,
        cell=cell,
        generation=1,
    )


def decide_allocations(
    ledger: Ledger, writes: Sequence[AllocationWrite], vocabulary: Vocabulary, now: datetime
) -> BatchDecision[WriteVerdict, ClaimChanges]:
    """Judge each write on the ledger as the earlier writes of the batch left it."""
    draft = LedgerDraft(ledger)
    verdicts: list[WriteVerdict] = []
    for write in writes:
        match write:
            case SetAllocations():
                unknown = _unknown(ledger, vocabulary, write.consumers)
                verdicts.append(allocate(draft, write.consumers, unknown, now))
            case DeleteAllocations():
                verdicts.append(_delete(draft, write, now))
    return BatchDecision(tuple(verdicts), draft.changes())


def _unknown(
    ledger: Ledger, vocabulary: Vocabulary, consumers: Iterable[ConsumerAllocations]
) -> tuple[str, ...]:
    named = {amount.resource for one in consumers for amount in one.amounts}
    return unknown_names(named, vocabulary.classes, ledger.classes)


def allocate(
    draft: LedgerDraft, consumers: Sequence[ConsumerAllocations], unknown: tuple[str, ...], now: datetime
) -> WriteVerdict:
    """Set what these consumers hold, all or none of them. `unknown` are resource classes they name that do not exist."""
    refused = _twice(consumers) or next(_moved(draft, consumers), None) or _unknown_provider(draft, consumers)
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
    draft.gain(usage for plan in plans for usage in (plan.wanted or plan.held))
    for plan in plans:
        _live_on(draft, plan, now)
    return Done()


class _Plan:
    """The write to one consumer's allocations: what the consumer gives back and what it takes."""

    __slots__ = ("allocations", "consumer", "held", "wanted")

    def __init__(self, draft: LedgerDraft, allocations: ConsumerAllocations) -> None:
        self.allocations = allocations
        self.consumer = draft.consumer(allocations.consumer)
        self.held = draft.amounts_of(self.consumer.held)
        self.wanted: Amounts = draft.amounts_of(allocations.amounts)


def _twice(consumers: Sequence[ConsumerAllocations]) -> NotAllowed | None:
    named: set[ConsumerId] = set()
    for position, one in enumerate(consumers):
        if one.consumer in named:
            return NotAllowed(
                field=f"consumers[{position}].consumer", reason=f"consumer {one.consumer} is named twice"
            )
        named.add(one.consumer)
    return None


def _moved(draft: LedgerDraft, consumers: Iterable[ConsumerAllocations]) -> Iterator[ConsumerMoved]:
    for one in consumers:
        consumer = draft.consumer(one.consumer)
        current = consumer.row.generation if consumer.held else None
        if one.judges_generation and one.generation != current:
            yield ConsumerMoved(consumer=one.consumer, seen=one.generation, current=current)


def _unknown_provider(draft: LedgerDraft, consumers: Iterable[ConsumerAllocations]) -> UnknownProvider | None:
    return next(
        (
            UnknownProvider(provider=amount.provider, field="allocations")
            for one in consumers
            for amount in one.amounts
            if draft.usage(amount.provider) is None
        ),
        None,
    )


def _shortfalls(plans: Sequence[_Plan]) -> Iterator[Shortfall]:
    for (usage, resource), each in _asked(plans).items():
        held = sum(plan.held.get(usage, {}).get(resource, 0) for plan in plans)
        yield from shortfalls_of(usage, resource, each, held)


def _asked(plans: Iterable[_Plan]) -> dict[tuple[UsageDraft, str], list[int]]:
    asked: dict[tuple[UsageDraft, str], list[int]] = {}
    for plan in plans:
        for usage, of_provider in plan.wanted.items():
            for resource, amount in of_provider.items():
                asked.setdefault((usage, resource), []).append(amount)
    return asked


def _live_on(draft: LedgerDraft, plan: _Plan, now: datetime) -> None:
    if plan.wanted:
        draft.write(plan.consumer, _rewritten(draft, plan), amounts_in(plan.wanted))
    elif plan.held:
        draft.end(plan.consumer, now)


def _rewritten(draft: LedgerDraft, plan: _Plan) -> Consumer:
    """The consumer's row after this write. A consumer whose attempt had ended takes the next attempt."""
    row, allocations = plan.consumer.row, plan.allocations
    was_alive = bool(plan.held)
    rows = [usage.row for usage in plan.wanted]
    # The cell that may report its provider may also swap and release what it holds.
    cell = next((one.cell for one in rows if one.cell), row.cell if was_alive else "")
    if not was_alive and not row.attempt:
        return new_consumer(allocations, cell)
    attempt = row.attempt if was_alive or not row.attempt else row.attempt + 1
    if attempt and not was_alive:
        draft.claimed(row.id, attempt)
    roots = [one.root for one in rows]
    kept_type = row.type if was_alive else ""
    return Consumer(
        id=row.id,
        type=kept_type if allocations.type is None else allocations.type,
        project=allocations.project or NO_OWNER,
        user=allocations.user or NO_OWNER,
        cell=cell,
        generation=row.generation + 1 if was_alive else 1,
        attempt=attempt,
        host=_host_of(row, roots, was_alive=was_alive) if attempt else None,
        group=row.group if was_alive else None,
        kept=row.kept if was_alive else (),
    )


def _host_of(row: Consumer, roots: Sequence[ProviderId], *, was_alive: bool) -> ProviderId | None:
    # A live consumer without a host is what a move on the same host holds beside its instance. It stays so.
    return row.host if row.host in roots or (was_alive and row.host is None) else roots[0]


def _delete(draft: LedgerDraft, write: DeleteAllocations, now: datetime) -> WriteVerdict:
    consumer = draft.consumer(write.consumer)
    if not consumer.held:
        return UnknownConsumer(consumer=write.consumer)
    draft.free(draft.amounts_of(consumer.held))
    draft.end(consumer, now)
    return Done()


# May the corrections of an audit be written? Each (`MendConsumer`) gives one consumer what its instance really has.
#
# A correction names the state of the consumer's row that the audit saw: its generation, its attempt, and whether that has
# ended. Each claim, swap, release and write by name changes one of these. If the row has changed since the audit,
# the correction is refused.
#
# An amount that the consumer does not hold yet must fit. A correction that takes no more than the consumer holds is granted
# even where an inventory has shrunk. A server group's policy is not checked: the instance already lives on that host.


def keys_of_mends(mends: Sequence[MendConsumer]) -> ClaimKeys:
    claims = [mend.claim for mend in mends if mend.claim is not None]
    amounts = [amount for claim in claims for amount in claim.share.amounts]
    hosts = [claim.share.host for claim in claims]
    return keys_of_shares(
        consumers=[mend.consumer for mend in mends],
        providers=[*hosts, *[amount.provider for amount in amounts]],
        classes=[amount.resource for amount in amounts],
        groups=[claim.group for claim in claims if claim.group],
        owned=claims,
    )


def decide_mends(
    ledger: Ledger, mends: Sequence[MendConsumer], vocabulary: Vocabulary, now: datetime
) -> BatchDecision[WriteVerdict, ClaimChanges]:
    """Judge each correction of an audit on the ledger as the earlier ones of the batch left it."""
    draft = LedgerDraft(ledger)
    verdicts = []
    for mend in mends:
        named = {amount.resource for amount in mend.claim.share.amounts} if mend.claim else ()
        unknown = unknown_names(named, vocabulary.classes, ledger.classes)
        verdicts.append(_mend(draft, mend, unknown, now))
    return BatchDecision(tuple(verdicts), draft.changes())


def _mend(draft: LedgerDraft, mend: MendConsumer, unknown: tuple[str, ...], now: datetime) -> WriteVerdict:
    consumer, claim = draft.consumer(mend.consumer), mend.claim
    if (seen := _seen_now(consumer)) != mend.seen:
        return ConsumerMoved(
            consumer=mend.consumer,
            seen=mend.seen.generation if mend.seen else None,
            current=seen.generation if seen else None,
        )
    if claim is None:
        if consumer.held:
            draft.free(draft.amounts_of(consumer.held))
            draft.end(consumer, now)
        return Done()
    if refused := _refused(draft, consumer, claim, unknown):
        return refused
    held, wanted = draft.amounts_of(consumer.held), draft.amounts_of(claim.share.amounts)
    draft.free(held)
    draft.take(wanted)
    draft.gain(wanted)
    before = consumer.row
    if before.attempt and before.ended_at is None and before.attempt != claim.attempt:
        draft.ended(before.id, before.attempt)
    draft.claimed(before.id, claim.attempt)
    if claim.group is not None:
        # As by a cell: it is mended to what a cell's row says.
        draft.groups.joined_by(claim.group, claim.project or NO_OWNER, by_cell=True)
    draft.write(consumer, _mended(before, claim), amounts_in(wanted))
    return Done()


def _seen_now(consumer: ConsumerDraft) -> SeenConsumer | None:
    row = consumer.row
    if not (row.generation or row.attempt):
        return None
    return SeenConsumer(generation=row.generation, attempt=row.attempt, ended=consumer.has_ended)


def _refused(
    draft: LedgerDraft, consumer: ConsumerDraft, claim: MendedClaim, unknown: tuple[str, ...]
) -> WriteVerdict | None:
    share = claim.share
    for provider in (share.host, *(amount.provider for amount in share.amounts)):
        if draft.usage(provider) is None:
            return UnknownProvider(provider=provider, field="claim.share")
    if unknown:
        return UnknownClass(names=unknown)
    if claim.group is not None and (wrong := draft.groups.other_definition(claim.group)):
        return wrong
    held, wanted = draft.amounts_of(consumer.held), draft.amounts_of(share.amounts)
    short = [
        shortfall
        for usage, of_provider in wanted.items()
        for resource, amount in of_provider.items()
        # Without an inventory there is nothing to take from.
        if (amount > (had := held.get(usage, {}).get(resource, 0)) or resource not in usage.used)
        and (shortfall := shortfall_of(usage, resource, amount, had))
    ]
    return DoesNotFit(shortfalls=tuple(short)) if short else None


def _mended(row: Consumer, claim: MendedClaim) -> Consumer:
    return Consumer(
        id=row.id,
        type=claim.type,
        project=claim.project or NO_OWNER,
        user=claim.user or NO_OWNER,
        cell=claim.cell,
        # As after a claim or a swap.
        generation=max(row.generation + 1, claim.attempt),
        attempt=claim.attempt,
        host=claim.share.host if claim.has_place else None,
        group=claim.group.id if claim.group and claim.has_place else None,
        kept=row.kept if row.type == claim.type else (),
    )
