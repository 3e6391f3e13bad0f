"""`moor demo` as a person runs it."""

import pytest

from tests.stories.moor_process import Ran, moor
from tests.stories.real_servers import real_servers

pytestmark = pytest.mark.asyncio


def assert_it_went_well(ran: Ran) -> None:
    assert ran.code == 0, ran.err + ran.out
    assert "301 of 301" in ran.out
    assert "giant found no host among 40:" in ran.out
    assert "40 removed by capacity" in ran.out
    assert "took an alternate" in ran.out
    assert "✓ all 301 requests ended" in ran.out
    assert "✓ nothing is used beyond its capacity" in ran.out
    assert "✓ placement's books agree with themselves" in ran.out
    assert "conflicts were retried and won" in ran.out
    assert "✓ 0 conflicts" not in ran.out


async def test_it_builds_what_can_be_built_and_says_why_the_rest_was_not() -> None:
    assert_it_went_well(await moor("demo", "--boots", "300", "--hosts", "40"))


@pytest.mark.rabbitmq
@pytest.mark.postgresql
async def test_on_real_servers_it_is_the_same_and_leaves_nothing_in_use() -> None:
    async with real_servers() as (bus, database):
        ran = await moor("demo", "--boots", "300", "--hosts", "40", "--bus", bus, "--db", database)

    assert_it_went_well(ran)
    assert "✓ 301 instances are deleted again" in ran.out
