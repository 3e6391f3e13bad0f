"""Several reshapes that come over the bus in one batch are written in one transaction, which keeps the order of locks."""

from datetime import UTC, datetime
from uuid import UUID

from bus.handling import Received
from bus.message import ConsumerId, ProviderId
from bus.messages.administration import ConsumerAllocations, ProviderInventories, Reshape
from placement_worker.administering import write_handlers
from placement_worker.wiring import STANDARD
from tests.simulation.cloud import Cloud
from tests.simulation.drawing import draw
from tests.simulation.loop import live
from tests.simulation.process import SimProcess
from tests.simulation.store_of_books import PlacementDoor

AT = datetime(2026, 1, 1, tzinfo=UTC)


def test_a_batch_of_reshapes_locks_all_consumers_before_any_tree() -> None:
    async def written() -> str:
        cloud = Cloud(draw(1))
        process = SimProcess("placement-1", 1, 1, cloud)
        door = PlacementDoor(cloud.rows.books, process, cloud)
        handler = write_handlers(STANDARD, lambda: AT)[Reshape]
        assert callable(handler)
        async with door.transaction() as transaction:
            await handler([_received(_reshape(n)) for n in (1, 2)], transaction)
        return cloud.findings.broken.how if cloud.findings.broken else ""

    assert live(written()) == ""


def _reshape(number: int) -> Reshape:
    return Reshape(
        inventories=(
            ProviderInventories(provider=ProviderId(UUID(int=number)), generation=0, inventories={}),
        ),
        allocations=(
            ConsumerAllocations(
                consumer=ConsumerId(UUID(int=10 + number)),
                amounts=(),
                project="p",
                user="u",
                generation=None,
            ),
        ),
    )


def _received(reshape: Reshape) -> Received[Reshape]:
    return Received(message=reshape, id="1", trace="", sender="moor-operator", reply_to="", attempts=0)
