"""Requests that accept several flavors: "gold, else silver, else a VM". One request, one claim for each instance."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from msgspec import structs

from bus.messages.build import BuildInstance, BuildRejected, InstanceState
from bus.messages.hosts import HostsReported
from bus.messages.placement import ReportInventory
from bus.messages.planning import (
    AskExplanation,
    AskPlan,
    AskReasons,
    ExplanationsFound,
    PlanFound,
    ReasonsFound,
)
from engine.flavors import Flavor
from engine.hosts import NODE, HostFacts
from engine.inventories import ReportedInventory, ReportedProvider
from engine.refusals import NoValidHost
from tests.stories.cloud import QUICK, Cloud, a_build, cloud, funnel_of, instance_of
from tests.stories.layouts import BOTH, STAGES
from tests.stories.scripted import DiesAfterItsClaim, host_id

ON_GOLD = Flavor(name="gold", extra_specs={"resources:CUSTOM_GOLD": "1"})
ON_SILVER = Flavor(name="silver", extra_specs={"resources:CUSTOM_SILVER": "1"})
VM = Flavor(name="vm", vcpus=2, ram_mb=1024, root_gb=1)


def gold_silver_vm(number: int, **fields: object) -> BuildInstance:
    return a_build(number, flavor=ON_GOLD, alternatives=(ON_SILVER, VM), **fields)


async def add_node(setup: Cloud, name: str, resource: str) -> None:
    provider = ReportedProvider(
        id=host_id(name), name=name, inventories={resource: ReportedInventory(total=1)}
    )
    await setup.report(ReportInventory(cell="c1", root=host_id(name), providers=(provider,)))
    facts = HostFacts(id=host_id(name), name=name, kind=NODE)
    await setup.stations_in["c1"].publisher.send(HostsReported(cell="c1", hosts=(facts,)))


@asynccontextmanager
async def a_cloud(
    bus: str = "memory", books: str = "memory", *, gold: int = 1, silver: int = 1, vcpus: int = 4
) -> AsyncIterator[Cloud]:
    """Nodes of two classes, and a hypervisor. The story starts schedulers."""
    async with cloud(bus, books) as setup, setup.placement():
        async with setup.scheduler("first"):
            names = [f"gold-{number}" for number in range(gold)] + [f"silver-{n}" for n in range(silver)]
            for name in names:
                await add_node(setup, name, f"CUSTOM_{name.partition('-')[0].upper()}")
            await setup.until_reported(*names)
            await setup.add_hosts("h1", vcpu=vcpus)
        yield setup


def got(states: list[InstanceState]) -> Counter[tuple[str, str]]:
    """How many instances got each flavor on each host."""
    return Counter((each.flavor.name if each.flavor else "", each.host) for each in states)


def check_funnel(found: NoValidHost | None, hosts: int) -> None:
    assert found is not None
    assert found.hosts == hosts
    assert sum(step.removed for step in found.steps) == hosts


@STAGES
async def test_each_instance_gets_the_best_flavor_that_is_left(bus: str, books: str) -> None:
    async with a_cloud(bus, books) as setup, setup.scheduler():
        build = gold_silver_vm(1, count=4)
        states = await setup.built(build)

        assert got(states) == {("gold", "gold-0"): 1, ("silver", "silver-0"): 1, ("vm", "h1"): 2}
        orders = {order.instance: order for order in setup.placed}
        for state in states:
            order, flavor = orders[state.id], state.flavor
            assert flavor is not None
            assert order.flavor == flavor
            held = {each.resource: each.amount for each in order.chosen.share.amounts}
            assert (
                held
                == {
                    "gold": {"CUSTOM_GOLD": 1},
                    "silver": {"CUSTOM_SILVER": 1},
                    "vm": {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 1},
                }[flavor.name]
            )
            better = ["gold", "silver", "vm"][: ["gold", "silver", "vm"].index(flavor.name)]
            assert [each.flavor for each in state.passed_over] == better
            for each in state.passed_over:
                check_funnel(each.no_valid_host, 3)


@BOTH
async def test_a_refusal_has_the_funnel_of_each_flavor(bus: str, books: str) -> None:
    async with a_cloud(bus, books, gold=0, silver=0, vcpus=1) as setup, setup.scheduler():
        build = gold_silver_vm(1)
        (state,) = await setup.built(build, "error")

        assert [(each.flavor, each.reason) for each in state.passed_over] == [
            ("gold", "no valid host"),
            ("silver", "no valid host"),
        ]
        for found in (*[each.no_valid_host for each in state.passed_over], state.no_valid_host):
            check_funnel(found, 1)
        assert "VCPU asked 2, free 1" in funnel_of(state).steps[0].example
        assert state.flavor is None


@pytest.mark.hits("a share that was claimed before is adopted")
@pytest.mark.parametrize("gold", [0, 1])
async def test_a_claim_of_a_scheduler_that_died_is_taken_with_its_flavor(gold: int) -> None:
    """The only node is held by this very instance: it is not searched for a VM."""
    async with a_cloud(gold=gold, silver=0) as setup:
        build = gold_silver_vm(1)
        dying = DiesAfterItsClaim()
        async with setup.scheduler("s1", station=dying.station, drain_s_max=0):
            await setup.send(build)
            await dying.claimed.wait()
        async with setup.scheduler("s2", settings=QUICK):
            state = await setup.until_state(instance_of(build), "active")

        (order,) = setup.placed
        assert state.flavor == order.flavor == (ON_GOLD if gold else VM)
        held = {each.resource: each.amount for each in order.chosen.share.amounts}
        assert held == ({"CUSTOM_GOLD": 1} if gold else {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 1})
        assert len(state.passed_over) == (0 if gold else 2)


@BOTH
async def test_plans_and_explanations_are_about_each_flavor(bus: str, books: str) -> None:
    async with a_cloud(bus, books, gold=1, silver=0) as setup, setup.scheduler():
        build = gold_silver_vm(1)
        planned = await setup.ask(AskPlan(request=build), PlanFound)
        assert (planned.flavor, planned.fit) == ("gold", 1)
        assert [(each.flavor, each.fit) for each in planned.alternatives] == [("silver", 0), ("vm", 2)]
        verdicts = await setup.ask(AskReasons(request=build), ReasonsFound)
        assert [(each.host, each.flavor, each.fit) for each in verdicts.hosts] == [
            ("gold-0", "gold", 1),
            ("h1", "vm", 2),
        ]
        wrong = await setup.ask(
            AskPlan(request=structs.replace(build, alternatives=(VM, Flavor(vcpus=-1)))), BuildRejected
        )
        assert wrong.field == "request.alternatives[1].vcpus"

        await setup.send(build, gold_silver_vm(2))
        states = [await setup.until_state(instance_of(gold_silver_vm(number)), "active") for number in (1, 2)]
        (as_vm,) = [each for each in states if each.host == "h1"]
        explained = await setup.ask(AskExplanation(instance=as_vm.id, plan_now=True), ExplanationsFound)
        (explanation,) = explained.explanations
        assert [each.flavor for each in explanation.state.passed_over] == ["gold", "silver"]
        assert explained.plan is not None
        assert explained.plan.fit == 0
        assert [each.fit for each in explained.plan.alternatives] == [0, 1]
