"""Quotas over the bus: a project's limit refuses a build with its numbers, and nothing is tried on other hosts."""

from typing import Any

import pytest

from bus.messages.audit import MendConsumer, MendedClaim
from bus.messages.books import AskQuotas, Done, QuotasFound, SetQuota, WriteAnswered
from bus.messages.planning import AskExplanation, AskPlan, ExplanationsFound, PlanFound
from engine.flavors import Flavor
from engine.inventories import ResourceAmount, Share
from engine.refusals import Claimed, QuotaExceeded
from tests.stories.cloud import Cloud, a_build, cloud, filler_of
from tests.stories.layouts import STAGES
from tests.stories.scheduling.test_all_or_nothing import all_of
from tests.stories.scripted import Interfering, host_id
from tests.waiting import until

SHOP = "shop"


async def limit(setup: Cloud, **limits: int | None) -> None:
    assert await setup.client.ask(SetQuota(project=SHOP, limits=limits)) == WriteAnswered(verdict=Done())


async def used(setup: Cloud) -> dict[str, int]:
    (quota,) = (await setup.ask(AskQuotas(project=SHOP), QuotasFound)).quotas
    return quota.used


# With two processors.
TWO: dict[str, Any] = {"flavor": Flavor(name="two", vcpus=2), "project": SHOP}


@STAGES
async def test_a_build_over_the_quota_ends_in_error_with_its_numbers(bus: str, books: str) -> None:
    claims = Interfering()
    async with cloud(bus, books) as setup, setup.scheduling("h1", "h2", station=claims.station):
        await limit(setup, VCPU=3, instances=5)
        first = await setup.boot(1, **TWO)

        failed = await setup.boot(2, "error", **TWO)
        assert failed.reason == "over the quota of project shop: VCPU limit 3, used 2, asked 2"
        assert failed.no_valid_host is None
        # It was claimed once, and on no other host.
        assert claims.verdicts == [Claimed, QuotaExceeded]
        assert await used(setup) == {"VCPU": 2, "instances": 1}
        explained = await setup.ask(AskExplanation(instance=failed.id), ExplanationsFound)
        assert explained.explanations[0].state.reason == failed.reason

        # A release gives it back.
        await setup.delete(first.id)
        await until(lambda: used(setup), "the quota is free again", lambda found: found == {})
        await setup.boot(3, **TWO)
        # What an audit gives to an instance without a claim counts, too.
        share = Share(host=host_id("h1"), amounts=(ResourceAmount(host_id("h1"), "VCPU", 2),))
        mended = MendedClaim(cell="c1", attempt=1, share=share, project=SHOP)
        await setup.client.ask(MendConsumer(consumer=filler_of("lost"), claim=mended))
        assert await used(setup) == {"VCPU": 4, "instances": 2}


@STAGES
async def test_all_or_nothing_is_refused_with_the_numbers_of_all(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.scheduling("h1"):
        await limit(setup, instances=2)

        failed = await setup.built(all_of(1, 3, project=SHOP), "error")
        assert {state.reason for state in failed} == {
            "all or nothing: over the quota of project shop: instances limit 2, used 0, asked 3"
        }
        assert await used(setup) == {}
        await setup.built(all_of(2, 2, project=SHOP))


@pytest.mark.hits("a claim is refused by quota: the next flavor is tried")
@STAGES
async def test_a_flavor_over_the_quota_is_passed_over(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.scheduling("h1"):
        await limit(setup, VCPU=1)

        active = await setup.boot(1, alternatives=(Flavor(name="one", vcpus=1),), **TWO)
        assert active.flavor is not None
        assert active.flavor.name == "one"
        (passed,) = active.passed_over
        assert passed.reason == "over the quota of project shop: VCPU limit 1, used 0, asked 2"


@STAGES
async def test_a_plan_says_how_many_more_the_quota_allows(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.scheduling("h1"):
        assert await planned(setup) is None
        await limit(setup, VCPU=5, instances=40)

        assert await planned(setup) == (2, "VCPU")
        await limit(setup, instances=1)
        assert await planned(setup) == (1, "instances")
        await limit(setup, instances=None, VCPU=None, DISK_GB=0)
        assert await planned(setup) is None


async def planned(setup: Cloud) -> tuple[int, str] | None:
    found = await setup.ask(AskPlan(request=a_build(9, **TWO), project=SHOP), PlanFound)
    return None if found.quota is None else (found.quota.fit, found.quota.limits[0].name)
