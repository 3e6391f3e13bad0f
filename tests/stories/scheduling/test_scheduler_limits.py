"""The limit of instances per host holds however many schedulers choose at the same time."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest
from msgspec import structs

from bus.messages.build import AskInstances, InstancesFound, InstanceState
from placement_worker.store_sql import SqlPlacementTransaction
from tests.stores_in_memory import MemoryPlacementStore
from tests.stories.cloud import QUICK, a_build, cloud, wait_until

pytestmark = pytest.mark.asyncio

HOSTS = 20
LIMIT = 50
REQUESTS, COUNT = 400, 10
SETTINGS = structs.replace(QUICK, instances_per_host_max=LIMIT)


class WatchedStation(MemoryPlacementStore):
    """Counts the instances of each host after every commit."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[SqlPlacementTransaction]:
        async with super().transaction() as transaction:
            yield transaction
        living = "SELECT count(*) FROM consumers WHERE held != '{}' GROUP BY host"
        self.most = max([self.most, *[count for (count,) in self.tables.driver.execute(living)]])


async def test_four_schedulers_give_no_host_more_instances_than_it_may_have() -> None:
    async with cloud("memory", "memory") as setup, AsyncExitStack() as stack:
        books = setup.books = WatchedStation()
        await stack.enter_async_context(setup.placement())
        for number in range(4):
            await stack.enter_async_context(setup.scheduler(f"scheduler-{number}", settings=SETTINGS))
        names = [f"host-{number}" for number in range(HOSTS)]
        for name in names:
            await setup.add_host(name, vcpu=100)
        await setup.until_reported(*names)

        builds = [a_build(number, count=COUNT) for number in range(1, REQUESTS + 1)]
        await asyncio.gather(*[setup.client.ask_all(builds[start::4]) for start in range(4)])
        questions = [AskInstances(request_id=build.request_id) for build in builds]
        states: list[InstanceState] = []

        async def have_ended() -> bool:
            # In one call: a question for each instance would take as long as the boots.
            found = await setup.client.ask_all(questions)
            states[:] = [
                state for each in found if isinstance(each, InstancesFound) for state in each.instances
            ]
            ended = [state for state in states if state.state in ("active", "error")]
            return len(ended) == REQUESTS * COUNT

        await wait_until(have_ended, "all have ended")
        assert await books.audit() == ()
        assert books.most == LIMIT
        assert Counter(state.state for state in states) == {
            "active": HOSTS * LIMIT,
            "error": REQUESTS * COUNT - HOSTS * LIMIT,
        }
        assert set((await setup.used()).values()) == {LIMIT}
