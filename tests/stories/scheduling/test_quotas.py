"""Quotas over the bus: a project's limit refuses a build with its numbers, and nothing is tried on other hosts."""

import pytest

from bus.messages.administration import AskQuotas, Done, QuotasFound, SetQuota, WriteAnswered
from bus.messages.build import BuildInstance, DeleteInstance
from bus.messages.planning import AskExplanation, AskPlan, ExplanationsFound, PlanFound
from engine.flavors import Flavor
from engine.refusals import Claimed, QuotaExceeded
from tests.stories.cloud import Cloud, a_build, cloud, instance_of
from tests.stories.layouts import STAGES
from tests.stories.scheduling.test_all_or_nothing import all_of, hosts, nothing, until_all
from tests.stories.scripted import InterferingOnce
from tests.waiting import until

pytestmark = pytest.mark.asyncio

SHOP = "shop"


async def limit(setup: Cloud, **limits: int | None) -> None:
    answer = await setup.client.ask(SetQuota(project=SHOP, limits=limits))
    assert answer == WriteAnswered(verdict=Done())


async def used(setup: Cloud) -> dict[str, int]:
    answer = await setup.client.ask(AskQuotas(project=SHOP))
    assert isinstance(answer, QuotasFound)
    (quota,) = answer.quotas
    return quota.used


async def build(setup: Cloud, request: BuildInstance) -> None:
    """It is sent once, not asked: a question is repeated on a slow machine. A copy that comes between the claim and its row is
    claimed again, and placed by the share that the instance holds.
    """
    await setup.send(request)


def two_cpus(number: int, **fields: object) -> BuildInstance:
    return a_build(number, flavor=Flavor(name="two", vcpus=2), project=SHOP, **fields)


@STAGES
async def test_a_build_over_the_quota_ends_in_error_with_its_numbers(bus: str, books: str) -> None:
    claims = InterferingOnce(nothing)
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler(station=claims.station):
        await hosts(setup, h1=8, h2=8)
        await limit(setup, VCPU=3, instances=5)
        await build(setup, two_cpus(1))
        await setup.until_state(instance_of(two_cpus(1)), "active")

        await build(setup, two_cpus(2))

        failed = await setup.until_state(instance_of(two_cpus(2)), "error")
        assert failed.reason == "over the quota of project shop: VCPU limit 3, used 2, asked 2"
        assert failed.no_valid_host is None
        # It was claimed once, and on no other host.
        assert claims.verdicts == [Claimed, QuotaExceeded]
        assert await used(setup) == {"VCPU": 2, "instances": 1}
        explained = await setup.client.ask(AskExplanation(instance=instance_of(two_cpus(2))))
        assert isinstance(explained, ExplanationsFound)
        assert explained.explanations[0].state.reason == failed.reason

        # A release gives it back.
        await setup.client.ask(DeleteInstance(instance=instance_of(two_cpus(1))))
        await setup.until_state(instance_of(two_cpus(1)), "deleted")
        await until(lambda: used(setup), "the quota is free again", lambda found: found == {})
        await build(setup, two_cpus(3))
        await setup.until_state(instance_of(two_cpus(3)), "active")


@STAGES
async def test_all_or_nothing_is_refused_with_the_numbers_of_all(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await hosts(setup, h1=8)
        await limit(setup, instances=2)

        await build(setup, all_of(1, 3, project=SHOP))

        failed = await until_all(setup, all_of(1, 3, project=SHOP), "error")
        assert {state.reason for state in failed} == {
            "all or nothing: over the quota of project shop: instances limit 2, used 0, asked 3"
        }
        assert await used(setup) == {}
        await build(setup, all_of(2, 2, project=SHOP))
        await until_all(setup, all_of(2, 2, project=SHOP), "active")


@STAGES
async def test_a_flavor_over_the_quota_is_passed_over(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await hosts(setup, h1=8)
        await limit(setup, VCPU=1)

        await build(setup, two_cpus(1, alternatives=(Flavor(name="one", vcpus=1),)))

        active = await setup.until_state(instance_of(two_cpus(1)), "active")
        assert active.flavor is not None
        assert active.flavor.name == "one"
        (passed,) = active.passed_over
        assert passed.reason == "over the quota of project shop: VCPU limit 1, used 0, asked 2"


@STAGES
async def test_a_plan_says_how_many_more_the_quota_allows(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await hosts(setup, h1=8)

        assert await planned(setup) is None
        await limit(setup, VCPU=5, instances=40)

        assert await planned(setup) == (2, "VCPU")
        await limit(setup, instances=1)
        assert await planned(setup) == (1, "instances")
        await limit(setup, instances=None, VCPU=None, DISK_GB=0)
        assert await planned(setup) is None


async def planned(setup: Cloud) -> tuple[int, str] | None:
    found = await setup.client.ask(AskPlan(request=two_cpus(9), project=SHOP))
    assert isinstance(found, PlanFound)
    return None if found.quota is None else (found.quota.fit, found.quota.limits[0].name)
