"""Claims that are refused because the picture was outdated are retried elsewhere, a bounded number of times; and instances that
have used up their alternates get others.
"""

import itertools
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import ClaimRefused, InstanceState
from bus.messages.projects import CreateGroup, GroupsFound
from engine.flavors import Flavor, JoinedGroup
from engine.inventories import GroupId
from engine.refusals import Claimed, NotAllowed, ShapeMoved
from kit.health import About, Health
from kit.health_server import Metrics
from laboratory.computes.faults import FailsToBuild, FaultScript
from laboratory.load.orders import claims_of
from scheduler_worker.store_sql import InstanceQuery
from tests.stories.cloud import QUICK_PACE, a_build, a_host, cloud, instance_of
from tests.stories.layouts import ONE_BROKER, SQL_STAGES, STAGES
from tests.stories.moves.test_moves import Movers, movers
from tests.stories.scripted import Interfering


@ONE_BROKER
async def test_when_all_retries_run_out_the_request_ends_with_the_reason(bus: str, books: str) -> None:
    few = structs.replace(QUICK_PACE, shape_tries_max=2, claims_max=5)
    moving, numbers = Interfering(always=True), itertools.count(1)
    async with cloud(bus, books) as setup, setup.scheduling("h1", station=moving.station, pace=few):
        # The host's shape changes before each of its claims.
        moving.action = lambda: setup.report(a_host("h1", traits=(f"CUSTOM_{next(numbers)}",)))
        state = await setup.boot(1, "active", "error")

        assert state.state == "error"
        assert state.reason.startswith("5 claims were refused, and no more are tried")
        assert set(moving.verdicts) == {ShapeMoved}
        await setup.until_used(h1=0)


@ONE_BROKER
async def test_a_host_that_went_to_another_cell_is_passed_over(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1", vcpu=100)
        await setup.add_host("h2")

        async def move() -> None:
            """Move the host to another cell, as a bare-metal node moves whose conductor group changes."""
            host = a_host("h1", vcpu=100)
            await setup.report(structs.replace(host, providers=(), removed=(host.root,)))
            await setup.report(a_host("h1", "c2", vcpu=100))

        moving_away = Interfering(move)
        async with setup.scheduler(station=moving_away.station):
            await setup.until_registered("h1", "h2")

            assert (await setup.boot(1)).host == "h2"
            assert moving_away.verdicts == [NotAllowed, Claimed]


async def test_a_scheduler_counts_its_claims_by_verdict_and_an_instance_keeps_those_that_were_refused() -> (
    None
):
    interfering = Interfering()
    async with cloud("memory", "memory") as setup, setup.placement():
        async with setup.scheduler(station=interfering.station) as parts:
            await setup.add_hosts("h1", vcpu=1)
            # Another scheduler is faster.
            interfering.action = lambda: setup.fill("h1", 1)
            state = await setup.boot(1, "error")
            await setup.add_hosts("h2")
            await setup.built(a_build(2))
            page = Metrics(Health(About("scheduler", "1.2"), parts)).page().decode()

        assert state.refusals == (ClaimRefused(host="h1", reason="VCPU asked 1, free 0"),)
        assert claims_of([state]) == (1, 1)
        placed = await setup.rows.instances(InstanceQuery(instances=(instance_of(a_build(2)),)))
        assert claims_of([row.told for row in placed]) == (1, 0)
        assert 'moor_claims_total{verdict="does_not_fit"} 1.0' in page
        assert 'moor_claims_total{verdict="claimed"} 1.0' in page


APART = GroupId(UUID(int=77))
SMALL = Flavor(name="small", vcpus=1, ram_mb=64, root_gb=1)


def failing(**fields: object) -> FaultScript:
    fault = structs.replace(FailsToBuild(reason="no disk"), **fields)
    return FaultScript(seed=5, spawn_ms=5, faults=(fault,))


async def all_ended(here: Movers, number: int, count: int) -> list[InstanceState]:
    """The instances of a request for so many that are to be apart, when each of them is active or in error."""
    await here.setup.ask(CreateGroup(id=APART, policy="anti-affinity"), GroupsFound)
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


@pytest.mark.hits("no alternate is left: hosts that had no room are tried again")
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
        await here.setup.until_used(h0=1, h1=0, h2=0, h3=0, h4=0)
