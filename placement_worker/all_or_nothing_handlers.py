"""Answer claims in which one request asks for many consumers at once. Such a claim comes in one or several pages.

All pages but the last one are stored, and the claim is decided when the last page comes. The sender sends that page when
all others are answered. So they are committed by then, whichever workers got them. Stored pages are deleted after a time,
as pages of long answers are. If pages are gone, the sender sends the claim again from its first page.
"""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

import msgspec

from bus.message import ConsumerId
from bus.messages.all_or_nothing import (
    AllClaimed,
    ClaimsAnswered,
    ClaimTogether,
    NoneClaimed,
    PageKept,
    PagesMissing,
    RefusedPlace,
)
from bus.messages.cells import page_that_fits
from bus.messages.placement import NotAllowed, ShapeMoved
from bus.workers.handling import Answer, Handlers, Received, Said, Weighed
from placement_worker.core.claims_together import Refusal, TogetherJudgement, claims_of, decide_together
from placement_worker.core.ledger import SentOrder
from placement_worker.core.shares import MovedRoots
from placement_worker.store import PlacementTransaction

# How many consumers one transaction claims for at most. A single claim for more of them is not allowed: all its locks would
# be held until the last of them is judged.
CONSUMERS_AT_ONCE_MAX = 2_000

_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(ClaimTogether).decode


def together_handlers(clock: Callable[[], datetime], horizon: timedelta) -> Handlers:
    async def on_claims(asks: Sequence[Received[ClaimTogether]], tx: PlacementTransaction) -> list[Said]:
        await _keep([ask.message for ask in asks], tx)
        answers: list[AllClaimed | NoneClaimed | PageKept | PagesMissing | NotAllowed] = []
        whole: dict[int, list[SentOrder]] = {}
        for number, ask in enumerate(asks):
            read = await _whole(ask, tx)
            if isinstance(read, list):
                whole[number] = read
                read = PageKept()
            answers.append(read)
        if whole:
            ledger = await tx.lock_claims([sent.order for claims in whole.values() for sent in claims])
            decision = decide_together(ledger, [*whole.values()], clock(), horizon)
            await tx.write_claims(decision.changes)
            for number, judgement in zip(whole, decision.verdicts, strict=True):
                answers[number] = _told(judgement)
        return [
            Answer(ask, ClaimsAnswered(claim=ask.message.claim, page=ask.message.page, verdict=verdict))
            for ask, verdict in zip(asks, answers, strict=True)
        ]

    return {ClaimTogether: Weighed(on_claims, _weight, CONSUMERS_AT_ONCE_MAX)}


def _weight(page: ClaimTogether) -> int:
    # The earlier pages have about as many places as this one.
    return len(page.places) * (page.pages if page.page == page.pages else 1)


async def _keep(pages: Sequence[ClaimTogether], tx: PlacementTransaction) -> None:
    """Store the pages that are not the last one of their claim.

    They are stored in the order of their ids, so that two workers with the same pages do not wait for each other in a
    circle.
    """
    earlier = {(page.claim, page.page): page for page in pages if page.page < page.pages}
    for _, page in sorted(earlier.items()):
        await tx.keep_page(page.claim, page.page, _encode(page))


async def _whole(
    ask: Received[ClaimTogether], tx: PlacementTransaction
) -> list[SentOrder] | PageKept | PagesMissing | NotAllowed:
    """The single claims of a large claim, if this is its last page and all other pages are stored.

    Otherwise the answer to this page: it is stored, pages are missing, or the claim is not allowed.
    """
    last = ask.message
    if last.page < last.pages:
        return PageKept()
    if last.page > last.pages:
        return NotAllowed(field="page", reason=f"page {last.page} of {last.pages} pages")
    kept = await tx.kept_pages(last.claim) if last.pages > 1 else {}
    if missing := [number for number in range(1, last.pages) if number not in kept]:
        return PagesMissing(pages=tuple(missing))
    pages = [*(_decode(kept[number]) for number in range(1, last.pages)), last]
    if (consumers := sum(len(page.places) for page in pages)) > CONSUMERS_AT_ONCE_MAX:
        return NotAllowed(
            field="places",
            reason=f"{consumers} consumers in all pages, at most {CONSUMERS_AT_ONCE_MAX} are allowed",
        )
    claims = claims_of(pages)
    return [SentOrder(claim, ask.cell) for claim in claims] if isinstance(claims, list) else claims


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
