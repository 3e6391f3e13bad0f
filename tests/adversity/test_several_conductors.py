"""One of two conductors of a cell is killed in the middle of 200 boots on real servers, of which many fail on their first host."""

import asyncio
from collections import Counter
from uuid import UUID

import pytest

from bus.messages.build import BuildInstance
from engine.flavors import Flavor, RequestId
from tests.adversity.real_cloud import RealCloud, real_cloud, wait_until

pytestmark = [pytest.mark.asyncio, pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(300)]

HOSTS = 10
BOOTS = 200
CONDUCTORS = ("conductor-c1+1", "conductor-c1+2")
SMALL = Flavor(name="small", vcpus=1, ram_mb=64, root_gb=1)


def a_build(number: int) -> BuildInstance:
    return BuildInstance(request_id=RequestId(UUID(int=number)), flavor=SMALL, deadline_s=250)


async def until_ended(here: RealCloud, count: int) -> None:
    states: Counter[str] = Counter()

    async def is_so() -> bool:
        states.clear()
        states.update(dict(await here.rows("SELECT state, count(*) FROM requested_instances GROUP BY state")))
        return states["active"] + states["error"] >= count

    await wait_until(is_so, f"{count} of {BOOTS} have ended", states)


async def test_a_conductor_is_killed_in_the_middle_and_the_other_one_of_its_cell_does_all_of_it_once() -> (
    None
):
    async with real_cloud("c1", HOSTS_PER_CELL=str(HOSTS), SPAWNS_FAILING="0.3") as here:
        await here.start("placement-1", "scheduler-1", *CONDUCTORS, "compute-c1")
        await here.until_up(HOSTS)
        builds = [a_build(number) for number in range(1, BOOTS + 1)]
        await asyncio.gather(*[here.client.publisher.send(build) for build in builds])
        await until_ended(here, BOOTS // 5)
        await here.kill(CONDUCTORS[0])
        await until_ended(here, BOOTS)

        states = await here.instances()
        assert len(states) == BOOTS
        # An instance has two alternates, so only three failures end it in error.
        assert [state for state in states if state.state == "error" and len(state.failures) < 3] == []
        await here.until_at_rest(lambda _: SMALL)
