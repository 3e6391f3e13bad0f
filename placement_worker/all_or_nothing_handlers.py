"""Answer claims in which one request asks for many consumers at once."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from bus.message import ConsumerId
from bus.messages.all_or_nothing import (
    AllClaimed,
    ClaimsAnswered,
    ClaimTogether,
    NoneClaimed,
    RefusedPlace,
)
from bus.messages.cells import page_that_fits
from bus.messages.placement import NotAllowed, ShapeMoved
from bus.workers.handling import Answer, Handlers, Received, Said, Weighed
from placement_worker.core.claims_together import Refusal, TogetherJudgement, claims_of, decide_together
from placement_worker.core.ledger import SentOrder
from placement_worker.core.shares import MovedRoots
from placement_worker.store import PlacementTransaction

# How many consumers one transaction claims for at most: all its locks are held until the last of them is judged.
CONSUMERS_AT_ONCE_MAX = 2_000


def together_handlers(clock: Callable[[], datetime], horizon: timedelta) -> Handlers:
    async def on_claims(asks: Sequence[Received[ClaimTogether]], tx: PlacementTransaction) -> list[Said]:
        answers: dict[int, AllClaimed | NoneClaimed | NotAllowed] = {}
        readable: dict[int, list[SentOrder]] = {}
        for number, ask in enumerate(asks):
            claims = claims_of(ask.message)
            if isinstance(claims, NotAllowed):
                answers[number] = claims
            else:
                readable[number] = [SentOrder(claim, ask.cell) for claim in claims]
        if readable:
            ledger = await tx.lock_claims([sent.order for claims in readable.values() for sent in claims])
            decision = decide_together(ledger, [*readable.values()], clock(), horizon)
            await tx.write_claims(decision.changes)
            answers |= zip(readable, map(_told, decision.verdicts), strict=True)
        return [
            Answer(ask, ClaimsAnswered(claim=ask.message.claim, verdict=answers[number]))
            for number, ask in enumerate(asks)
        ]

    return {ClaimTogether: Weighed(on_claims, lambda asked: len(asked.places), CONSUMERS_AT_ONCE_MAX)}


def _told(judgement: TogetherJudgement) -> AllClaimed | NoneClaimed:
    """The verdict as it is sent. It names as many of the refused consumers as one message has room for, and counts all of
    them.
    """
    if isinstance(judgement, AllClaimed):
        return judgement
    refused = [_refused(consumer, each) for consumer, each in judgement]
    return NoneClaimed(refused=page_that_fits(refused), count=len(refused))


def _refused(consumer: ConsumerId, refusal: Refusal) -> RefusedPlace:
    if isinstance(refusal, MovedRoots):
        return RefusedPlace(consumer=consumer, verdict=ShapeMoved(roots=refusal.roots, gone=refusal.gone))
    return RefusedPlace(consumer=consumer, verdict=refusal)
