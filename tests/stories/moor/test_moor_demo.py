"""`moor demo` as a person runs it."""

import pytest

from tests.stories.moor.moor_process import Result, moor
from tests.stories.real_servers import real_servers

pytestmark = pytest.mark.asyncio


def assert_it_went_well(ran: Result) -> None:
    assert ran.code == 0, ran.err + ran.out
    assert "301 of 301" in ran.out
    assert "giant found no host among 40:" in ran.out
    assert "40 removed by capacity" in ran.out
    assert "took an alternate" in ran.out
    assert "✓ all 301 requests ended" in ran.out
    assert "✓ none of 40 hosts is used beyond its capacity" in ran.out
    assert "✓ the books of placement, the API level, the cells and their hosts agree" in ran.out
    assert "conflicts were retried and won" in ran.out
    assert "✓ 0 conflicts" not in ran.out
    # A stop on purpose is no failure.
    assert "fails, trying again" not in ran.err + ran.out


async def test_the_demo_builds_what_fits_and_explains_the_rest() -> None:
    assert_it_went_well(await moor("demo", "--boots", "300", "--hosts", "40"))


@pytest.mark.rabbitmq
@pytest.mark.postgresql
async def test_the_demo_on_real_servers_leaves_nothing_in_use() -> None:
    async with real_servers() as (bus, database):
        ran = await moor("demo", "--boots", "300", "--hosts", "40", "--bus", bus, "--db", database)

    assert_it_went_well(ran)
    assert "✓ 301 instances are deleted again" in ran.out


def assert_metal_went_well(ran: Result, nodes: int) -> None:
    assert ran.code == 0, ran.err + ran.out
    assert "boots ended" in ran.out
    assert "ironic-2     0 nodes   killed" in ran.out
    assert "requests ended" in ran.out
    assert "instances are each alone on a node, and 20 on hypervisors" in ran.out
    assert "no node has an unknown instance" in ran.out
    assert f"placement offers exactly the nodes that Ironic has available, of {nodes}" in ran.out
    assert "✓ ironic-2 was killed: its " in ran.out
    assert (
        "✓ the books of placement, the API level and the cells agree, and there are no dead letters"
        in ran.out
    )
    assert "✓ after 0 maintenance flips" not in ran.out


async def test_on_bare_metal_a_daemon_is_killed_and_nothing_is_lost() -> None:
    assert_metal_went_well(await moor("demo", "--bare-metal", "--nodes", "30", "--daemons", "2"), 30)


@pytest.mark.rabbitmq
@pytest.mark.postgresql
async def test_the_bare_metal_demo_on_real_servers_leaves_nothing_in_use() -> None:
    async with real_servers() as (bus, database):
        ran = await moor("demo", "--bare-metal", "--nodes", "30", "--bus", bus, "--db", database)

    assert_metal_went_well(ran, 30)
    assert "instances are deleted again" in ran.out
