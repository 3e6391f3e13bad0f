"""May the corrections of an audit be written? Each (`MendConsumer`) gives one consumer what its instance really has.

A correction names the state of the consumer's row that the audit saw: its generation, its attempt, and whether that has
ended. Each claim, swap, release and write by name changes one of these. If the row has changed since the audit,
the correction is refused.

An amount that the consumer does not hold yet must fit. A correction that takes no more than the consumer holds is granted
even where an inventory has shrunk. A server group's policy is not checked: the instance already lives on that host.
"""

from collections.abc import Sequence
from datetime import datetime

from bus.messages.administration import (
    ConsumerMoved,
    Done,
    UnknownClass,
    UnknownProvider,
    WriteVerdict,
)
from bus.messages.audit import MendConsumer, MendedClaim, SeenConsumer
from bus.messages.placement import NO_OWNER
from engine.capacity import Vocabulary, shortfall_of, unknown_names
from engine.refusals import DoesNotFit
from placement_worker.core.drafts import ConsumerDraft, LedgerDraft, amounts_in
from placement_worker.core.ledger import (
    BatchDecision,
    ClaimChanges,
    ClaimKeys,
    Consumer,
    Ledger,
    keys_of_shares,
)


def keys_of_mends(mends: Sequence[MendConsumer]) -> ClaimKeys:
    claims = [mend.claim for mend in mends if mend.claim is not None]
    amounts = [amount for claim in claims for amount in claim.share.amounts]
    hosts = [claim.share.host for claim in claims]
    return keys_of_shares(
        consumers=[mend.consumer for mend in mends],
        providers=[*hosts, *[amount.provider for amount in amounts]],
        classes=[amount.resource for amount in amounts],
        groups=[claim.group for claim in claims if claim.group],
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
