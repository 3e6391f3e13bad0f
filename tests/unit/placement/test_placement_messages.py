"""No message of placement is larger than a reader accepts, and none leaves anything out."""

from collections.abc import Sequence

import pytest

from bus.codec import encode
from bus.message import PARCEL_BYTES_MAX, Envelope, Message
from bus.messages.placement import ClaimAnswered, ClaimResources
from bus.workers.handling import Answer, ReadOnly, Received, Said, Weighed
from engine.refusals import ShapeMoved
from placement_worker.handlers import handlers
from placement_worker.settings import PlacementSettings
from placement_worker.view import ProviderView
from placement_worker.wiring import STANDARD
from tests.contracts.placement_orders import (
    NOON,
    WEB,
    a_provider,
    a_report,
    a_share,
    amounts,
    provider,
)
from tests.stores_in_memory import MemoryPlacementStore


@pytest.mark.asyncio
async def test_a_refusal_with_many_moved_trees_fits_into_one_message() -> None:
    """The ids of all roots are in it, too."""
    names = [f"{number:04}{'x' * 150}" for number in range(900)]
    reports = [a_report(a_provider(name), root=provider(name)) for name in names]
    roots = {provider(name): 99 for name in names}
    host = provider(names[0])
    share = a_share(host, amounts(host, VCPU=1), roots)
    order = ClaimResources(cell="c1", consumer=WEB, attempt=1, issued_at=NOON, share=share)

    (answer,) = (await handled(reports, [order]))[-1]

    assert isinstance(answer, Answer)
    assert isinstance(answer.message, ClaimAnswered)
    assert isinstance(answer.message.verdict, ShapeMoved)
    assert answer.message.verdict.roots == tuple(roots)
    assert len(answer.message.verdict.trees) > len(roots) / 2
    assert len(encode(Envelope(message=answer.message))) <= PARCEL_BYTES_MAX


async def handled(*batches: Sequence[Message]) -> list[Sequence[Said]]:
    """What placement says to each of these batches, which are of one kind of message each."""
    store, said = MemoryPlacementStore(), []
    of_type = handlers(
        store, ProviderView(store), PlacementSettings(), vocabulary=STANDARD, clock=lambda: NOON
    )
    for batch in batches:
        handler = of_type[type(batch[0])]
        assert not isinstance(handler, ReadOnly | Weighed)
        async with store.transaction() as tx:
            asks = [
                Received(message=each, id="1", trace="", sender="", reply_to="me", attempts=0)
                for each in batch
            ]
            said.append(await handler(asks, tx))
    return said
