"""Which events an application receives on the feeds of its projects."""

from datetime import UTC, datetime

import pytest

from bus.memory import MemoryBroker
from bus.messages.build import InstanceEvent
from bus.messages.stored_names import KnownApplication
from bus.workers.station import Station
from scheduler_worker.applications import Applications
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.examples.values import STATE

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


@pytest.mark.asyncio
@pytest.mark.parametrize("kind", InstanceEvent.__subclasses__(), ids=lambda kind: kind.__name__)
async def test_every_event_about_an_instance_is_on_the_feed_of_its_project(kind: type[InstanceEvent]) -> None:
    store = MemorySchedulerStore()
    publisher = Station(MemoryBroker().as_user(), "s").publisher
    applications = Applications(store, publisher, 5.0, lambda: NOON)
    async with store.transaction() as transaction:
        await transaction.set_application("shop", NOON, KnownApplication(name="shop", projects=("p",)))
    await applications.refresh()

    assert applications.project_of(kind(cell="c1", instance=STATE)) == "p"
