"""All verdicts that claims, swaps and releases can get, and how the common ones of claims and swaps are made."""

from bus.messages.placement import (
    AlreadyClaimed,
    Claimed,
    DoesNotFit,
    GroupRefused,
    NotAllowed,
    QuotaExceeded,
    Released,
    Share,
    Superseded,
    TooOld,
)
from placement_worker.core.drafts.ledger_draft import ConsumerDraft, LedgerDraft
from placement_worker.core.shares import MovedRoots

ClaimJudgement = (
    Claimed
    | AlreadyClaimed
    | DoesNotFit
    | GroupRefused
    | QuotaExceeded
    | MovedRoots
    | Superseded
    | TooOld
    | Released
    | NotAllowed
)

CLAIMED = Claimed()


def already_claimed(draft: LedgerDraft, consumer: ConsumerDraft) -> AlreadyClaimed:
    roots = [draft.existing_usage(amount.provider).row.root for amount in consumer.held]
    # A consumer made by an administrator has no host: it lives at the root of the first amount it holds. So does a consumer
    # whose host became a part of another tree.
    host = consumer.row.host if consumer.row.host in roots else roots[0]
    return AlreadyClaimed(attempt=consumer.row.attempt, share=Share(host=host, amounts=consumer.held))


def superseded(consumer: ConsumerDraft) -> Superseded:
    return Superseded(attempt=consumer.row.attempt, ended=consumer.has_ended)
