"""Instances that have used up their alternates get others, as long as a host fits. Every worker is real."""

from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import InstanceState
from bus.messages.stored_names import CreateGroup, GroupsFound
from engine.flavors import Flavor, JoinedGroup
from engine.inventories import GroupId
from laboratory.computes.faults import FailsToBuild, FaultScript
from tests.stories.cloud import a_build, instance_of
from tests.stories.layouts import SQL_STAGES, STAGES
from tests.stories.moves.test_moves import Movers, movers

pytestmark = pytest.mark.asyncio

APART = GroupId(UUID(int=77))
SMALL = Flavor(name="small", vcpus=1, ram_mb=64, root_gb=1)


def failing(**fields: object) -> FaultScript:
    fault = structs.replace(FailsToBuild(reason="no disk"), **fields)
    return FaultScript(seed=5, spawn_ms=5, faults=(fault,))


async def all_ended(here: Movers, number: int, count: int) -> list[InstanceState]:
    """The instances of a request for so many that are to be apart, when each of them is active or in error."""
    created = await here.setup.client.ask(CreateGroup(id=APART, policy="anti-affinity"))
    assert isinstance(created, GroupsFound), created
    build = a_build(number, flavor=SMALL, count=count, group=JoinedGroup(id=APART))
    await here.setup.send(build)
    return [
        await here.setup.until_state(instance_of(build, index), "active", "error") for index in range(count)
    ]


@SQL_STAGES
async def test_fifty_that_must_be_apart_are_all_built_though_a_third_of_the_builds_fail(
    bus: str, books: str
) -> None:
    hosts = [f"h{number}" for number in range(80)]
    async with movers(bus, books, *hosts, script=failing(probability=0.3)) as here:
        ended = await all_ended(here, 1, 50)

        assert [each.reason for each in ended if each.state != "active"] == []
        assert len({each.host for each in ended}) == 50
        used = await here.setup.used()
        assert sorted(used.values()) == [0] * 30 + [1] * 50
        assert {host for host, cores in used.items() if cores} == {each.host for each in ended}
        assert any(each.is_refused for state in ended for each in state.failures)


@STAGES
async def test_when_no_further_host_fits_it_ends_with_every_reason(bus: str, books: str) -> None:
    names = [f"h{number}" for number in range(5)]
    async with movers(bus, books, *names, script=failing(hosts=("h1", "h2", "h3", "h4"))) as here:
        ended = await all_ended(here, 1, 2)

        (active,) = [each for each in ended if each.state == "active"]
        (error,) = [each for each in ended if each.state == "error"]
        assert active.host == "h0"
        failed = {each.host for each in error.failures if not each.is_refused}
        assert failed == {"h1", "h2", "h3", "h4"}
        assert "; no alternate is left: no host among 5" in error.reason
        await here.until_used(h0=1, h1=0, h2=0, h3=0, h4=0)
