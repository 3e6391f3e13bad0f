"""Flavors that are stored under names: created once, named by requests, and kept by instances as they were."""

import pytest

from bus.messages.build import AskInstances, BuildAccepted, BuildInstance, BuildRejected, InstancesFound
from bus.messages.planning import AskPlan, PlanFound
from bus.messages.stored_names import CreateFlavor, DeleteFlavor, FlavorsFound
from engine.flavors import Flavor
from tests.stories.cloud import Cloud, a_build, cloud, instance_of
from tests.stories.layouts import STAGES
from tests.stories.scheduling.test_all_or_nothing import hosts

pytestmark = pytest.mark.asyncio

SMALL = Flavor(name="small", vcpus=2, extra_specs={"trait:CUSTOM_GOLD": "forbidden"})
GIANT = Flavor(name="giant", vcpus=64)


def named(number: int, *names: str, **fields: object) -> BuildInstance:
    return a_build(number, flavor=None, flavor_names=names, **fields)


async def size_of(setup: Cloud, request: BuildInstance) -> tuple[str, dict[str, int]]:
    found = await setup.client.ask(AskInstances(instances=(instance_of(request),)))
    assert isinstance(found, InstancesFound)
    (details,) = found.details
    assert details.size is not None
    return details.size.flavor, details.size.amounts


@STAGES
async def test_a_request_names_a_flavor_and_keeps_it_as_it_was(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await hosts(setup, h1=8)
        for _ in range(2):
            assert await setup.client.ask(CreateFlavor(flavor=SMALL)) == FlavorsFound(flavors=(SMALL,))
        request = named(1, "small")

        assert isinstance(await setup.client.ask(request), BuildAccepted)
        await setup.until_state(instance_of(request), "active")
        assert (setup.placed[0].flavor, await size_of(setup, request)) == (SMALL, ("small", {"VCPU": 2}))

        assert await setup.client.ask(DeleteFlavor(name="small")) == FlavorsFound(flavors=(SMALL,))
        assert await setup.client.ask(DeleteFlavor(name="small")) == FlavorsFound(flavors=())
        larger = Flavor(name="small", vcpus=3)
        await setup.client.ask(CreateFlavor(flavor=larger))
        # The same request is answered again, and its instance stays as it is.
        assert isinstance(await setup.client.ask(request), BuildAccepted)
        assert await size_of(setup, request) == ("small", {"VCPU": 2})
        assert len(setup.placed) == 1
        other = await setup.client.ask(named(1, "small", name="another"))
        assert isinstance(other, BuildRejected)
        assert other.field == "request_id"
        await setup.client.ask(named(2, "small"))
        await setup.until_state(instance_of(named(2, "small")), "active")
        assert await size_of(setup, named(2, "small")) == ("small", {"VCPU": 3})


@STAGES
async def test_several_names_are_alternatives_and_an_unknown_one_ends_in_error(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await hosts(setup, h1=8)
        for flavor in (GIANT, SMALL):
            await setup.client.ask(CreateFlavor(flavor=flavor))

        await setup.client.ask(named(1, "giant", "small"))
        active = await setup.until_state(instance_of(named(1)), "active")
        assert active.flavor == SMALL
        assert [each.flavor for each in active.passed_over] == ["giant"]

        assert isinstance(await setup.client.ask(named(2, "small", "tiny")), BuildAccepted)
        failed = await setup.until_state(instance_of(named(2)), "error")
        assert failed.reason == (
            "flavor_names has 'tiny': there is no flavor of this name; `moor flavor list` shows all"
        )
        both = await setup.client.ask(a_build(3, flavor_names=("small",)))
        assert isinstance(both, BuildRejected)
        assert (both.field, both.value) == ("flavor_names", "small")

        planned = await setup.client.ask(AskPlan(request=named(4, "small")))
        assert isinstance(planned, PlanFound)
        assert planned.fit == 3
        unknown = await setup.client.ask(AskPlan(request=named(4, "tiny")))
        assert isinstance(unknown, BuildRejected)
        assert unknown.field == "request.flavor_names"
