"""A reshape of several trees locks rows in the common order."""

from datetime import UTC, datetime
from uuid import UUID

from bus.messages.books import ConsumerAllocations, ProviderInventories, Reshape
from bus.workers.handlers import Received, Weighed
from engine.inventories import ConsumerId, ProviderId
from placement_worker.admin_writes import write_handlers
from placement_worker.store_sql import PlacementStore
from placement_worker.wiring import STANDARD
from tests.simulation.cloud import Cloud
from tests.simulation.drawing import draw
from tests.simulation.faulty_database import FaultyDatabase, watched_stores
from tests.simulation.loop import simulated
from tests.simulation.process import SimProcess

AT = datetime(2026, 1, 1, tzinfo=UTC)


@simulated
async def test_a_reshape_of_several_trees_locks_all_consumers_before_any_tree() -> None:
    cloud = Cloud(draw(1))
    process = SimProcess("placement-1", 1, 1, cloud)
    store = PlacementStore(FaultyDatabase(cloud.rows.books.tables, process))
    handler = write_handlers(STANDARD, lambda: AT)[Reshape]
    assert isinstance(handler, Weighed)
    with watched_stores(cloud.now):
        async with store.transaction() as transaction:
            asked = Received(
                _reshape(1, 2), id="1", trace="", sender="moor-operator", reply_to="", attempts=0
            )
            await handler.handle([asked], transaction)
    assert cloud.findings.broken is None


def _reshape(*numbers: int) -> Reshape:
    return Reshape(
        inventories=tuple(
            ProviderInventories(provider=ProviderId(UUID(int=each)), generation=0, inventories={})
            for each in numbers
        ),
        allocations=tuple(
            ConsumerAllocations(
                consumer=ConsumerId(UUID(int=10 + each)), amounts=(), project="p", user="u", generation=None
            )
            for each in numbers
        ),
    )
