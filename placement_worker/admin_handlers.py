"""Handlers for administrators' writes, and for questions about consumers and names, as they arrive on the bus. The writes
themselves are in admin_writes.py; the HTTP API uses the same functions.
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from functools import partial

from bus.messages.administration import (
    AlreadyThere,
    AskConsumer,
    AskHolders,
    AskNames,
    AskUsages,
    ConsumerFound,
    Done,
    HoldersFound,
    NamesFound,
    ProviderWritten,
    RenameClass,
    UsagesFound,
    Write,
    WriteAnswered,
    WriteVerdict,
)
from bus.messages.cells import page_that_fits
from bus.messages.quotas import AskQuotas, QuotasFound
from bus.workers.handling import Answer, Bury, Handler, Handlers, Received, Said, answering
from placement_worker.admin_writes import WRITES, WriteBatch
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.store import PlacementTransaction, Records


def write_handlers(vocabulary: Vocabulary, clock: Callable[[], datetime]) -> Handlers:
    """The handlers of administrators' writes, by message type.

    Writes of one kind share a handler, so that neighbours in the queue are written in one batch.
    """

    def by(batch: WriteBatch) -> Handler:
        async def on_writes(asks: Sequence[Received[Write]], tx: PlacementTransaction) -> list[Said]:
            verdicts = await batch(tx, [ask.message for ask in asks], vocabulary, clock())
            return [_answer(ask, verdict) for ask, verdict in zip(asks, verdicts, strict=True)]

        return on_writes

    handlers = {batch: by(batch) for batch in dict.fromkeys(WRITES.values())}
    return {kind: handlers[batch] for kind, batch in WRITES.items()}


def question_handlers(records: Records) -> Handlers:
    return {
        AskConsumer: answering(partial(_consumer, records)),
        AskHolders: answering(partial(_holders, records)),
        AskUsages: answering(partial(_usages, records)),
        AskNames: answering(partial(_names, records)),
        AskQuotas: answering(partial(_quotas, records)),
    }


def _answer(ask: Received[Write], verdict: WriteVerdict) -> Said:
    # A provider or trait that exists already is as good as created. For a rename, a taken name is a refusal.
    is_as_wanted = isinstance(verdict, Done | ProviderWritten) or (
        isinstance(verdict, AlreadyThere) and not isinstance(ask.message, RenameClass)
    )
    if not ask.reply_to and not is_as_wanted:
        # No one waits for an answer, and a refused write must not vanish: it becomes a dead letter.
        return Bury(ask, f"not written, {_in_words(verdict)}")
    return Answer(ask, WriteAnswered(verdict=verdict))


def _in_words(verdict: WriteVerdict) -> str:
    what = ", ".join(f"{field} {getattr(verdict, field)}" for field in verdict.__struct_fields__)
    return f"{verdict.__struct_config__.tag}: {what}"


async def _consumer(records: Records, ask: AskConsumer) -> ConsumerFound:
    return ConsumerFound(consumer=await records.consumer(ask.consumer))


async def _usages(records: Records, ask: AskUsages) -> UsagesFound:
    return UsagesFound(usages=await records.usages(ask.project, ask.user))


async def _holders(records: Records, ask: AskHolders) -> HoldersFound:
    """Answer which consumers hold something of a provider: as many as fit into one message.

    The next page starts after the last consumer of this one.
    """
    holders = await records.holders_of(ask.provider, ask.after, ask.limit + 1)
    page = page_that_fits(holders[: ask.limit])
    return HoldersFound(holders=page, next=page[-1].id if len(page) < len(holders) else None)


async def _names(records: Records, ask: AskNames) -> NamesFound:
    names = await records.custom_names(ask.of, ask.after, ask.limit + 1)
    if len(names) <= ask.limit:
        return NamesFound(names=names)
    return NamesFound(names=names[: ask.limit], next=names[ask.limit - 1])


async def _quotas(records: Records, ask: AskQuotas) -> QuotasFound:
    found = await records.quotas(ask.project, ask.after, ask.limit + 1)
    page = page_that_fits(found[: ask.limit])
    return QuotasFound(quotas=page, next=page[-1].project if len(page) < len(found) else "")
