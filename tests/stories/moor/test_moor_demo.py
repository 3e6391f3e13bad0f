"""`moor demo` as a person runs it."""

from collections.abc import Sequence

import pytest

from tests.stories.moor.moor_process import Result, moor
from tests.stories.real_servers import real_servers

ON_HOSTS = (
    "301 of 301",
    "giant found no host among 40:",
    "40 removed by capacity",
    "took an alternate",
    "✓ all 301 requests ended",
    "✓ none of 40 hosts is used beyond its capacity",
    "✓ the books of placement, the API level, the cells and their hosts agree",
    "conflicts were retried and won",
)
ON_NODES = (
    "boots ended",
    "ironic-2     0 nodes   killed",
    "requests ended",
    "instances are each alone on a node, and 20 on hypervisors",
    "no node has an unknown instance",
    "placement offers exactly the nodes that Ironic has available, of 30",
    "✓ ironic-2 was killed: its ",
    "✓ the books of placement, the API level and the cells agree, and there are no dead letters",
)
# A stop on purpose is no failure.
NEVER_ON_HOSTS = ("✓ 0 conflicts", "fails, trying again")
NEVER_ON_NODES = ("✓ after 0 maintenance flips",)


def assert_it_went_well(ran: Result, said: Sequence[str], never: Sequence[str]) -> None:
    printed = ran.out + ran.err
    assert ran.code == 0, printed
    assert [each for each in said if each not in printed] == []
    assert [each for each in never if each in printed] == []


async def test_the_demo_builds_what_fits_and_explains_the_rest() -> None:
    assert_it_went_well(await moor("demo", "--boots", "300", "--hosts", "40"), ON_HOSTS, NEVER_ON_HOSTS)


@pytest.mark.rabbitmq
@pytest.mark.postgresql
async def test_the_demo_on_real_servers_leaves_nothing_in_use() -> None:
    async with real_servers() as (bus, database):
        ran = await moor("demo", "--boots", "300", "--hosts", "40", "--bus", bus, "--db", database)

    assert_it_went_well(ran, (*ON_HOSTS, "✓ 301 instances are deleted again"), NEVER_ON_HOSTS)


async def test_on_bare_metal_a_daemon_is_killed_and_nothing_is_lost() -> None:
    assert_it_went_well(
        await moor("demo", "--bare-metal", "--nodes", "30", "--daemons", "2"), ON_NODES, NEVER_ON_NODES
    )


@pytest.mark.rabbitmq
@pytest.mark.postgresql
async def test_the_bare_metal_demo_on_real_servers_leaves_nothing_in_use() -> None:
    async with real_servers() as (bus, database):
        ran = await moor("demo", "--bare-metal", "--nodes", "30", "--bus", bus, "--db", database)

    assert_it_went_well(ran, (*ON_NODES, "instances are deleted again"), NEVER_ON_NODES)
