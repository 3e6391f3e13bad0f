"""Handlers of computes that bring a host into a new shape: what its tree is now, and the reshape itself.

The rules are in core/writes/host_reshapes.py.
"""

from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import structs

from bus.errors import Bug
from bus.message import ConsumerId  # noqa: TC001 - imported like every other type
from bus.messages.administration import ConsumerState, Done
from bus.messages.cells import page_that_fits
from bus.messages.host_shapes import (
    AskHostShape,
    HostHolder,
    HostReshaped,
    HostShapeFound,
    ReshapeHost,
    ReshapeVerdict,
)
from bus.messages.placement import ReportAccepted
from bus.workers.handling import Answer, Handlers, ReadOnly, Received, Said, Weighed
from placement_worker.core.vocabulary import Vocabulary
from placement_worker.core.writes.host_reshapes import (
    SentReshape,
    consumer_keys_of,
    decide_final_report,
    decide_growth,
    decide_moves,
    judge_reshape,
    tree_keys_of,
    unused,
)
from placement_worker.store import PlacementStore, PlacementTransaction

HOLDERS_PER_PAGE = 500


def host_shape_handlers(
    store: PlacementStore, vocabulary: Vocabulary, clock: Callable[[], datetime]
) -> Handlers:
    async def on_reshapes(asks: Sequence[Received[ReshapeHost]], tx: PlacementTransaction) -> list[Said]:
        said: list[Said] = []
        for ask in asks:
            verdict = await reshape(tx, SentReshape(ask.message, ask.cell), vocabulary, clock())
            said.append(Answer(ask, HostReshaped(root=ask.message.root, verdict=verdict)))
        return said

    async def on_questions(asks: Sequence[Received[AskHostShape]]) -> list[Said]:
        return [Answer(ask, await _found(store, ask)) for ask in asks]

    return {
        # One in each transaction: a second one would lock its consumers after the trees of the first.
        ReshapeHost: Weighed(on_reshapes, lambda _: 1, 1),
        AskHostShape: ReadOnly(on_questions),
    }


async def reshape(
    tx: PlacementTransaction, sent: SentReshape, vocabulary: Vocabulary, now: datetime
) -> ReshapeVerdict:
    """Judge a reshape, and write its steps if all of them are granted."""
    order = sent.order
    ledger = await tx.lock_allocations(consumer_keys_of(order))
    forest = await tx.lock_trees(tree_keys_of(order))
    verdict = judge_reshape(ledger, forest, sent, vocabulary, now)
    if not isinstance(verdict, ReportAccepted):
        await tx.write_claims(unused(ledger))
        return verdict
    growth = decide_growth(forest, sent, vocabulary)
    await tx.write_trees(growth.changes)
    # The locks are held already. This reads the ids of new providers, and generations that have grown.
    ledger = await tx.lock_allocations(consumer_keys_of(order))
    moves = decide_moves(ledger, order, now)
    await tx.write_claims(moves.changes)
    final = decide_final_report(await tx.lock_trees(tree_keys_of(order)), sent, vocabulary)
    await tx.write_trees(final.changes)
    (written,) = final.verdicts
    if not (isinstance(moves.verdict, Done) and isinstance(written, ReportAccepted)):
        raise Bug(
            f"a reshape of {order.root} was judged {verdict!r}, and written as {moves.verdict!r}, {written!r}"
        )
    return structs.replace(written, shape_moved=True)


async def _found(store: PlacementStore, ask: Received[AskHostShape]) -> HostShapeFound:
    """What placement has of a host's tree. Providers and holders are read one after another: if something changes meanwhile,
    the reshape that is based on it is refused.
    """
    question = ask.message
    if ask.cell not in (None, question.cell):
        return HostShapeFound(root=question.root)
    async with store.transaction() as tx:
        providers = await tx.read_trees((question.root,))
    if not providers or providers[0].cell != question.cell:
        return HostShapeFound(root=question.root)
    found: dict[ConsumerId, ConsumerState] = {}
    last: ConsumerId | None = None
    for provider in providers:
        some = await store.holders_of(provider.id, question.after, HOLDERS_PER_PAGE)
        if len(some) == HOLDERS_PER_PAGE:
            # There may be more: the page ends with the last one that is certain.
            last = some[-1].id if last is None else min(last, some[-1].id)
        found |= {each.id: each for each in some}
    ids = [each for each in sorted(found) if last is None or each <= last]
    inside = {provider.id for provider in providers}
    holders = [
        HostHolder(
            consumer=each,
            generation=found[each].generation,
            amounts=tuple([amount for amount in found[each].held if amount.provider in inside]),
        )
        for each in ids
    ]
    page = page_that_fits(holders) if holders else ()
    is_cut = last is not None or len(page) < len(holders)
    return HostShapeFound(
        root=question.root,
        providers=providers if question.after is None else (),
        holders=page,
        next=page[-1].consumer if is_cut and page else None,
    )
