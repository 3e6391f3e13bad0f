"""How many instances a host may have is kept however many schedulers choose at once."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from msgspec import structs

from placement_worker.store import PlacementTransaction
from placement_worker.store_memory import MemoryPlacementStore
from tests.stories.cloud import QUICK, a_build, cloud, instance_of

pytestmark = pytest.mark.asyncio

HOSTS = 20
LIMIT = 50
REQUESTS, COUNT = 400, 10
SETTINGS = structs.replace(QUICK, instances_per_host_max=LIMIT)


class Watched(MemoryPlacementStore):
    """Looks after every commit how many instances each host has."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[PlacementTransaction]:
        async with super().transaction() as transaction:
            yield transaction
        living = Counter(self._tables.consumers[consumer].host for consumer in self._tables.held)
        self.most = max([self.most, *living.values()])


async def test_four_schedulers_give_no_host_more_instances_than_it_may_have() -> None:
    async with cloud("memory", "memory") as here, AsyncExitStack() as stack:
        books = here.books = Watched()
        await stack.enter_async_context(here.placement())
        for number in range(4):
            await stack.enter_async_context(here.scheduler(f"scheduler-{number}", settings=SETTINGS))
        names = [f"host-{number}" for number in range(HOSTS)]
        for name in names:
            await here.add_host(name, vcpu=100)
        await here.until_provided(*names)

        builds = [a_build(number, count=COUNT) for number in range(1, REQUESTS + 1)]
        await asyncio.gather(*[here.client.ask_all(builds[start::4]) for start in range(4)])
        instances = [instance_of(build, index) for build in builds for index in range(COUNT)]
        states = [await here.until_state(instance, "active", "error") for instance in instances]

        assert await books.audit() == ()
        assert books.most == LIMIT
        assert Counter(state.state for state in states) == {
            "active": HOSTS * LIMIT,
            "error": len(instances) - HOSTS * LIMIT,
        }
        assert set((await here.used()).values()) == {LIMIT}
