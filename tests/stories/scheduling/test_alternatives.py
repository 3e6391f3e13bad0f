"""Requests that accept several flavors: "gold, else silver, else a VM". One request, one claim for each instance."""

from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import uuid5

import pytest
from msgspec import structs

from bus.messages.build import BuildAccepted, BuildInstance, BuildRejected, DeleteInstance, InstanceState
from bus.messages.hosts import HostsReported
from bus.messages.placement import ClaimAnswered, ClaimResources, ReleaseClaim, ReportInventory
from bus.messages.planning import (
    AskDrain,
    AskExplanation,
    AskPlan,
    AskReasons,
    DrainFound,
    ExplanationsFound,
    PlanFound,
    ReasonsFound,
)
from bus.messages.stored_names import CreateGroup
from engine.flavors import Flavor, Image, JoinedGroup, Wait
from engine.hosts import NODE, HostFacts
from engine.inventories import ConsumerId, GroupId, ReportedInventory, ReportedProvider, ResourceAmount, Share
from engine.refusals import Claimed, NoValidHost
from tests.stories.cloud import (
    NAMES,
    QUICK,
    Cloud,
    DiesAfterItsClaim,
    InterferingOnce,
    a_build,
    cloud,
    host_id,
    instance_of,
)
from tests.stories.layouts import BOTH, STAGES
from tests.stories.scheduling.test_all_or_nothing import until_all

pytestmark = pytest.mark.asyncio

ON_GOLD = Flavor(name="gold", extra_specs={"resources:CUSTOM_GOLD": "1"})
ON_SILVER = Flavor(name="silver", extra_specs={"resources:CUSTOM_SILVER": "1"})
VM = Flavor(name="vm", vcpus=2, ram_mb=1024, root_gb=1)
PREFERS_GOLD = structs.replace(VM, extra_specs={"resources:CUSTOM_GOLD": "preferred:100"})


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
            await setup.add_host("h1", vcpu=vcpus)
            await setup.until_reported(*names, "h1")
        yield setup


def filler(node: str) -> ConsumerId:
    return ConsumerId(uuid5(NAMES, f"who holds {node}"))


async def hold_node(setup: Cloud, node: str, resource: str) -> None:
    amounts = (ResourceAmount(provider=host_id(node), resource=resource, amount=1),)
    claim = ClaimResources(
        cell="c1",
        consumer=filler(node),
        attempt=1,
        issued_at=datetime.now(UTC),
        share=Share(host=host_id(node), amounts=amounts),
    )
    answer = await setup.client.ask(claim)
    assert isinstance(answer, ClaimAnswered)
    assert answer.verdict == Claimed()


async def free_node(setup: Cloud, node: str) -> None:
    release = ReleaseClaim(cell="c1", consumer=filler(node), attempt=1, issued_at=datetime.now(UTC))
    await setup.conductors_in["c1"].publisher.send(release)


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
        await setup.send(build)

        states = await until_all(setup, build, "active")

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
        await setup.send(build)

        state = await setup.until_state(instance_of(build), "error")

        assert [(each.flavor, each.reason) for each in state.passed_over] == [
            ("gold", "no valid host"),
            ("silver", "no valid host"),
        ]
        for found in (*[each.no_valid_host for each in state.passed_over], state.no_valid_host):
            check_funnel(found, 1)
        assert state.no_valid_host is not None
        assert "VCPU asked 2, free 1" in state.no_valid_host.steps[0].example
        assert state.flavor is None


@BOTH
async def test_all_or_nothing_mixes_flavors_and_says_how_many_would_fit(bus: str, books: str) -> None:
    async with a_cloud(bus, books) as setup, setup.scheduler():
        too_many = gold_silver_vm(1, count=5, all_or_nothing=True)
        await setup.send(too_many)
        refused = await until_all(setup, too_many, "error")
        assert {each.reason for each in refused} == {
            "all or nothing: 5 instances are asked for, and 4 would fit"
        }
        for name in ("gold-0", "silver-0", "h1"):
            assert all(each.used == 0 for each in (await setup.providers())[name].inventories.values())

        build = gold_silver_vm(2, count=4, all_or_nothing=True)
        await setup.send(build)
        states = await until_all(setup, build, "active")
        assert got(states) == {("gold", "gold-0"): 1, ("silver", "silver-0"): 1, ("vm", "h1"): 2}


@BOTH
async def test_a_waiting_request_takes_the_first_room_for_any_flavor(bus: str, books: str) -> None:
    async with a_cloud(bus, books, silver=0, vcpus=2) as setup:
        await hold_node(setup, "gold-0", "CUSTOM_GOLD")
        await setup.fill("h1", vcpu=1)
        async with setup.scheduler("s1"), setup.scheduler("s2"):
            builds = [gold_silver_vm(number, wait=Wait(for_s=3600)) for number in (1, 2)]
            for build in builds:
                assert isinstance(await setup.client.ask(build), BuildAccepted)
                state = await setup.until_state(instance_of(build), "waiting")
                assert [each.flavor for each in state.passed_over] == ["gold", "silver"]
            first, second = map(instance_of, builds)

            consumer = ConsumerId(uuid5(NAMES, "who fills h1"))
            release = ReleaseClaim(cell="c1", consumer=consumer, attempt=1, issued_at=datetime.now(UTC))
            await setup.conductors_in["c1"].publisher.send(release)
            as_vm = await setup.until_state(first, "active")
            await free_node(setup, "gold-0")
            as_gold = await setup.until_state(second, "active")

        assert got([as_vm, as_gold]) == {("vm", "h1"): 1, ("gold", "gold-0"): 1}
        assert [each.flavor for each in as_vm.passed_over] == ["gold", "silver"]
        assert as_gold.passed_over == ()


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


async def test_a_node_that_another_scheduler_took_first_leads_to_the_next_flavor() -> None:
    async with a_cloud() as setup:
        faster = InterferingOnce(lambda: hold_node(setup, "gold-0", "CUSTOM_GOLD"))
        async with setup.scheduler("s1", station=faster.station):
            build = gold_silver_vm(1)
            await setup.send(build)
            state = await setup.until_state(instance_of(build), "active")

        assert got([state]) == {("silver", "silver-0"): 1}
        assert [each.host for each in state.refusals] == ["gold-0"]
        (passed,) = state.passed_over
        check_funnel(passed.no_valid_host, 3)


@BOTH
async def test_a_class_that_is_preferred_yields_a_node_and_then_a_hypervisor(bus: str, books: str) -> None:
    async with a_cloud(bus, books) as setup, setup.scheduler():
        build = a_build(1, flavor=PREFERS_GOLD, count=2, image=Image(source="debian"))
        await setup.send(build)

        states = await until_all(setup, build, "active")

        assert sorted((each.host, len(each.passed_over)) for each in states) == [("gold-0", 0), ("h1", 1)]
        kinds = {order.chosen.name: (order.chosen.kind, order.image) for order in setup.placed}
        assert kinds == {"gold-0": (NODE, Image(source="debian")), "h1": ("", Image(source="debian"))}


async def test_members_of_a_group_are_kept_apart_whatever_flavor_they_get() -> None:
    async with a_cloud(gold=1, silver=0, vcpus=16) as setup, setup.scheduler():
        group = GroupId(uuid5(NAMES, "apart"))
        await setup.client.ask(CreateGroup(id=group, policy="anti-affinity"))
        build = gold_silver_vm(1, count=3, group=JoinedGroup(id=group))
        await setup.send(build)

        states = await until_all(setup, build, "active", "error")

        assert got([each for each in states if each.state == "active"]) == {
            ("gold", "gold-0"): 1,
            ("vm", "h1"): 1,
        }


@BOTH
async def test_plans_and_explanations_are_about_each_flavor(bus: str, books: str) -> None:
    async with a_cloud(bus, books, gold=1, silver=0) as setup, setup.scheduler():
        build = gold_silver_vm(1)
        planned = await setup.client.ask(AskPlan(request=build))
        assert isinstance(planned, PlanFound)
        assert (planned.flavor, planned.fit) == ("gold", 1)
        assert [(each.flavor, each.fit) for each in planned.alternatives] == [("silver", 0), ("vm", 2)]
        verdicts = await setup.client.ask(AskReasons(request=build))
        assert isinstance(verdicts, ReasonsFound)
        assert [(each.host, each.flavor, each.fit) for each in verdicts.hosts] == [
            ("gold-0", "gold", 1),
            ("h1", "vm", 2),
        ]
        wrong = await setup.client.ask(
            AskPlan(request=structs.replace(build, alternatives=(VM, Flavor(vcpus=-1))))
        )
        assert isinstance(wrong, BuildRejected)
        assert wrong.field == "request.alternatives[1].vcpus"

        await setup.send(build, gold_silver_vm(2))
        states = [await setup.until_state(instance_of(gold_silver_vm(number)), "active") for number in (1, 2)]
        (as_vm,) = [each for each in states if each.host == "h1"]
        explained = await setup.client.ask(AskExplanation(instance=as_vm.id, plan_now=True))
        assert isinstance(explained, ExplanationsFound)
        (explanation,) = explained.explanations
        assert [each.flavor for each in explanation.state.passed_over] == ["gold", "silver"]
        assert explained.plan is not None
        assert explained.plan.fit == 0
        assert [each.fit for each in explained.plan.alternatives] == [0, 1]


async def test_an_instance_keeps_the_flavor_that_it_got_for_its_moves() -> None:
    async with a_cloud(gold=1, silver=0) as setup, setup.scheduler():
        await hold_node(setup, "gold-0", "CUSTOM_GOLD")
        build = gold_silver_vm(1)
        await setup.send(build)
        await setup.until_state(instance_of(build), "active")
        await setup.add_host("h2")
        await setup.until_reported("h2")
        await free_node(setup, "gold-0")
        await setup.until_current()

        drained = await setup.client.ask(AskDrain(host="h1"))

        assert isinstance(drained, DrainFound)
        assert [each.to for each in drained.instances] == ["h2"]


async def test_a_cell_gets_alternates_of_the_next_flavors_behind_its_own() -> None:
    async with a_cloud(gold=2, silver=1) as setup, setup.scheduler():
        build = gold_silver_vm(1)
        await setup.send(build)
        await setup.until_state(instance_of(build), "active")

        (order,) = setup.placed

        assert [each.name for each in order.alternates[1:]] == ["silver-0", "h1"]
        assert {order.chosen.name, order.alternates[0].name} == {"gold-0", "gold-1"}
        assert order.other_flavors == {host_id("silver-0"): ON_SILVER, host_id("h1"): VM}
        assert order.tells_flavor


async def test_an_instance_that_was_deleted_gives_the_better_flavor_to_the_next_one() -> None:
    async with a_cloud() as setup, setup.scheduler():
        builds = [gold_silver_vm(number) for number in (1, 2)]
        await setup.send(builds[0])
        await setup.until_state(instance_of(builds[0]), "active")
        await setup.send(DeleteInstance(instance=instance_of(builds[0])))
        await setup.until_state(instance_of(builds[0]), "deleted")
        await setup.send(builds[1])

        state = await setup.until_state(instance_of(builds[1]), "active")

        assert got([state]) == {("gold", "gold-0"): 1}


async def test_each_alternate_has_its_own_flavor_when_only_some_get_a_host_at_once() -> None:
    async with a_cloud(gold=2, silver=1) as setup, setup.scheduler():
        several, alone = gold_silver_vm(1, count=3), a_build(2, flavor=VM)
        await setup.send(several, alone)
        for index in range(3):
            await setup.until_state(instance_of(several, index), "active")
        await setup.until_state(instance_of(alone), "active")

        orders = [each for each in setup.placed if each.request_id == several.request_id]

        flavors = {"gold": ON_GOLD, "silver": ON_SILVER, "h1": VM}
        told = [
            (each.name, order.other_flavors.get(each.share.host, order.flavor))
            for order in orders
            for each in (order.chosen, *order.alternates)
        ]
        assert told == [(name, flavors[name.partition("-")[0]]) for name, _ in told]
        assert {"gold", "silver"} == {order.flavor.name for order in orders}
