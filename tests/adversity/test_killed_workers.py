"""Every kind of worker is killed, and broker and database restarted, in the middle of thousands of boots on real servers."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from operator import not_
from typing import Any

import pytest

from bus.messages.build import DeleteInstance
from engine.flavors import InstanceId
from engine.hosts import HostState
from tests.adversity.real_cloud import RealCloud, a_build, instance_of, real_cloud
from tests.waiting import until

pytestmark = [pytest.mark.rabbitmq, pytest.mark.postgresql, pytest.mark.timeout(400)]

CELLS = ("c1", "c2")
WORKERS = ("placement-1", "placement-2", "scheduler-1", "scheduler-2", "conductor-c1", "conductor-c2")
HOSTS = 200
BOOTS = pytest.mark.parametrize("boots", [600, pytest.param(5000, marks=pytest.mark.proof)])
KILLED_COMPUTE = "c1"
DELETED_EVERY = 10
IS_OVER = ("active", "error", "deleted")

# The consumers that hold something, and where; one row per host.
HOLDINGS = """
    SELECT c.uuid, p.uuid
    FROM holders h JOIN consumers c ON c.id = h.consumer_id JOIN providers p ON p.id = h.provider_id
"""


async def until_nothing_is_held_but_by_the_living(here: RealCloud) -> None:
    """Wait until each active instance holds its share on its host and nowhere else, and nothing else is held."""
    ids = {host.name: host.id for host in await here.hosts()}

    async def contradictions() -> set[tuple[Any, ...]]:
        living = {(state.id, ids[state.host]) for state in await here.instances() if state.state == "active"}
        return living ^ {*await here.rows(HOLDINGS)}

    await until(contradictions, "what is held is held by what is active", not_)


async def each_ended_once_as_it_was_asked(here: RealCloud, boots: int, deleted: Sequence[InstanceId]) -> None:
    """Compare the state at the API level with the state in the cell."""
    states = {state.id: state for state in await here.instances()}
    assert len(states) == boots
    assert {id_ for id_, state in states.items() if state.state == "deleted"} == set(deleted)
    assert all(state.reason for state in states.values() if state.state == "error")
    in_cells = await here.rows("SELECT id, state FROM cell_instances")
    assert len({id_ for id_, _ in in_cells}) == len(in_cells), "no instance has been in two cells"
    assert [(id_, state, states[id_].state) for id_, state in in_cells if state != states[id_].state] == []
    assert Counter(state.state for state in states.values())["active"] > boots // 2
    # An instance with a host has two alternates, so only three failures end it in error.
    unlucky = [state for state in states.values() if state.state == "error"]
    assert [state for state in unlucky if len(state.failures) < 3] == []


async def nobody_has_built_what_is_not_active(here: RealCloud) -> None:
    """Check the instances that hosts report. Computes that were killed report fewer than there are."""
    has: Counter[str] = Counter()
    for state in await here.instances():
        has[state.host] += state.state == "active"

    def is_true(host: HostState) -> bool:
        built = has[host.name]
        return host.instances <= built if host.cell == KILLED_COMPUTE else host.instances == built

    await until(
        here.hosts,
        "hosts have what is active on them and nothing else",
        lambda hosts: all(map(is_true, hosts)),
    )


@BOOTS
async def test_every_kind_of_worker_is_killed_and_the_servers_restarted_in_the_middle_of_boots(
    boots: int,
) -> None:
    """Computes are killed too. Their instances are only in memory, so they are lost as on a host that loses power, and
    go to an alternate or end with the reason.
    """
    async with real_cloud(*CELLS, HOSTS_PER_CELL=str(HOSTS // len(CELLS)), SPAWNS_FAILING="0.05") as here:
        await here.start(*WORKERS, *(f"compute-{cell}" for cell in CELLS))
        await here.until_up(HOSTS)
        doomed: list[InstanceId] = []

        async def delete_some() -> None:
            doomed.extend(instance_of(build) for build in asked[::DELETED_EVERY])
            await here.send([DeleteInstance(instance=instance) for instance in doomed])

        deeds: list[Callable[[], Awaitable[None]]] = [
            partial(here.kill_and_start_again, "scheduler-1"),
            partial(here.kill_and_start_again, "conductor-c1"),
            delete_some,
            partial(here.kill_and_start_again, "placement-1"),
            partial(here.kill_and_start_again, f"compute-{KILLED_COMPUTE}"),
            here.under_test.restart,
            here.restart_database,
            partial(here.kill_and_start_again, "placement-2"),
            partial(here.kill_and_start_again, "scheduler-2"),
            partial(here.kill_and_start_again, "conductor-c2"),
        ]
        builds = [a_build(number) for number in range(1, boots + 1)]
        # Each deed is done when some of its share of the boots have ended, and most are under way.
        share = boots // len(deeds)
        async with asyncio.TaskGroup() as asking:
            for number, deed in enumerate(deeds):
                asked = builds[: (number + 1) * share]
                asking.create_task(here.send(asked[number * share :]))
                await here.until_in(number * share + share // 10, *IS_OVER)
                await deed()
        await here.until_in(boots, *IS_OVER)
        await until_nothing_is_held_but_by_the_living(here)

        await each_ended_once_as_it_was_asked(here, boots, doomed)
        assert await here.audited() == ()
        await nobody_has_built_what_is_not_active(here)
        await here.nothing_is_buried()
