"""Handlers of an audit's questions to placement, and of the writes that correct what the audit has found."""

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta

from bus.messages.administration import Done, WriteAnswered
from bus.messages.books import (
    AskBooks,
    AskContradictions,
    BooksFound,
    ContradictionsFound,
    MendConsumer,
    RecountBooks,
)
from bus.messages.cells import page_that_fits
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said, answering
from placement_worker.core.mending import decide_mends, keys_of_mends
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.store import PlacementStore, PlacementTransaction

# How many contradictions an answer has; their number is always told.
CONTRADICTIONS_MAX = 500


def books_handlers(store: PlacementStore, vocabulary: Vocabulary, clock: Callable[[], datetime]) -> Handlers:
    async def on_contradictions(asks: Sequence[Received[AskContradictions]]) -> list[Said]:
        found = await store.audit()
        answer = ContradictionsFound(contradictions=found[:CONTRADICTIONS_MAX], count=len(found))
        return [Answer(ask, answer) for ask in asks]

    async def on_mends(asks: Sequence[Received[MendConsumer]], tx: PlacementTransaction) -> list[Said]:
        mends = [ask.message for ask in asks]
        ledger = await tx.lock_allocations(keys_of_mends(mends))
        decision = decide_mends(ledger, mends, vocabulary, clock())
        await tx.write_claims(decision.changes)
        answered = zip(asks, decision.verdicts, strict=True)
        return [Answer(ask, WriteAnswered(verdict=verdict)) for ask, verdict in answered]

    async def on_recounts(asks: Sequence[Received[RecountBooks]], tx: PlacementTransaction) -> list[Said]:
        await tx.recount()
        return [Answer(ask, WriteAnswered(verdict=Done())) for ask in asks]

    return {
        AskBooks: answering(lambda ask: _page(store, ask, clock())),
        AskContradictions: ReadOnly(on_contradictions),
        MendConsumer: on_mends,
        RecountBooks: on_recounts,
    }


async def _page(store: PlacementStore, ask: AskBooks, now: datetime) -> BooksFound:
    """Answer an audit's question for consumers: as many as fit into one message.

    The next page starts after the last consumer of this one.
    """
    if ask.consumers:
        new_since = now - timedelta(seconds=ask.new_s) if ask.new_s else None
        wanted = [each for each in ask.consumers if ask.after is None or each > ask.after]
        found = await store.book_entries(wanted, new_since)
    else:
        found = await store.books_page(ask.after, ask.limit + 1)
    page = page_that_fits(found[: ask.limit])
    return BooksFound(consumers=page, next=page[-1].id if len(page) < len(found) else None)
