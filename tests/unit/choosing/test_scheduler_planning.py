"""Plans, the verdict on every host, and capabilities: what they tell of a picture, and that nothing changes it."""

from collections import Counter
from typing import TypeVar

import msgspec
import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildInstance, BuildRejected
from bus.messages.planning import (
    AskCapabilities,
    AskPlan,
    CapabilitiesFound,
    Capability,
    HostHaving,
    PlanFound,
)
from engine.candidates.provider_index import SHARES
from engine.choosing import planning, plugins
from engine.choosing.choosing import Chosen, choose
from engine.choosing.planning import plan, reasons
from engine.flavors import Flavor
from engine.inventories import AggregateId, InventoryState, ServerGroup
from engine.picture.picture import Picture
from engine.refusals import ExhaustedPool, HostVerdict, Miss, PlannedCell
from engine.requests import Alternative, InstanceSpec
from engine.requests.spec import GranularGroup
from tests.contracts.placement_orders import an_id, provider
from tests.plugins import standard_plugins
from tests.unit.choosing.scheduler_worlds import a_host, a_picture, a_spec, a_state, vcpus
from tests.unit.scheduler.lone_scheduler import LoneScheduler

M = TypeVar("M", bound=Message)

PLUGINS = standard_plugins(io_ops_max=0, instances_max=5)
FAST, SLOW = "HW_CPU_X86_AVX2", "CUSTOM_SLOW"
POOL = AggregateId(an_id("pool"))


def mixed() -> Picture:
    """Hosts of two cells: roomy, tight, full, disabled, and one with a child of its own room."""
    states = (
        a_state("full", vcpus(4, used=4)),
        a_state("off", vcpus(16)),
        a_state("roomy", vcpus(16), cell="c2"),
        a_state("tight", vcpus(4, used=1), traits=(FAST,)),
        a_state("tree", {}),
        a_state("tree_NUMA0", vcpus(4), parent=provider("tree"), root=provider("tree")),
    )
    roots = [state for state in states if state.id == state.root]
    hosts = [
        a_host(root.name, cell=root.cell, mode="draining" if root.name == "off" else "up") for root in roots
    ]
    return a_picture(*states, hosts=tuple(hosts))


def pooled(disk: int) -> Picture:
    """Two hosts that take their disk from one pool."""
    return a_picture(
        a_state("h1", vcpus(8), aggregates=(POOL,)),
        a_state("h2", vcpus(8), aggregates=(POOL,)),
        a_state(
            "nas",
            {"DISK_GB": InventoryState(total=disk, max_unit=disk)},
            traits=(SHARES,),
            aggregates=(POOL,),
        ),
        hosts=(a_host("h1"), a_host("h2")),
    )


def filled(picture: Picture, spec: InstanceSpec) -> Counter[str]:
    """The slow way to find out how many fit: choose them all."""
    found = choose(picture, [spec] * 100, PLUGINS, salt=0)
    return Counter(each.cell for each in found if isinstance(each, Chosen))


@pytest.mark.parametrize("vcpu", [1, 2, 3, 5, 17])
def test_a_plan_counts_the_instances_that_a_choice_of_all_of_them_places(vcpu: int) -> None:
    picture, spec = mixed(), a_spec(vcpu)

    found = plan(picture, spec, PLUGINS)

    fits = filled(picture, spec)
    assert {cell.cell: cell.fit for cell in found.cells} == fits
    assert found.fit == sum(fits.values())
    assert not found.is_cut


def test_the_funnel_of_a_plan_sums_to_its_hosts() -> None:
    found = plan(mixed(), a_spec(), PLUGINS)

    assert found.funnel.hosts == 5
    assert found.qualify == 3 == found.funnel.hosts - sum(step.removed for step in found.funnel.steps)
    assert {miss.host for miss in found.funnel.nearest} == {"full", "off"}
    assert found.cells == (PlannedCell(cell="c1", hosts=2, fit=7), PlannedCell(cell="c2", hosts=1, fit=5))


def test_asked_hosts_come_first_in_a_plan_and_those_that_qualify_need_no_reason() -> None:
    spec = structs.replace(a_spec(), hosts=("full", "nowhere", "roomy"))

    assert plan(mixed(), spec, PLUGINS).funnel.nearest == (
        Miss(host="full", reason="VCPU asked 1, free 0 of 4"),
        Miss(host="nowhere", reason="no host of this name is known"),
    )


@pytest.mark.parametrize(
    ("spec", "relaxations"),
    [
        # Each demand that keeps hosts out, and how many; none that helps no host.
        (
            structs.replace(a_spec(6), required=(FAST,), ignore_hosts=("tight",)),
            [(f"without trait {FAST}", 1)],
        ),
        (structs.replace(a_spec(1), required=(FAST,)), [(f"without trait {FAST}", 3)]),
        (a_spec(100), [("with 16 VCPU in place of 100", 1)]),
        # As many together as must be, and none further than needed.
        (
            structs.replace(a_spec(6), required=(FAST, SLOW), hosts=("tight", "roomy")),
            [
                (f"without trait {FAST} and without trait {SLOW}", 1),
                (f"without trait {SLOW} and with 3 VCPU in place of 6", 1),
            ],
        ),
        (
            structs.replace(a_spec(60), required=(FAST, SLOW), availability_zone="z", ignore_hosts=("off",)),
            [(f"in any zone and without trait {SLOW} and with 3 VCPU in place of 60", 1)],
        ),
    ],
    ids=["other host", "other trait", "less", "two", "three"],
)
def test_demands_are_relaxed_as_far_as_hosts_have_room(
    spec: InstanceSpec, relaxations: list[tuple[str, int]]
) -> None:
    found = plan(mixed(), spec, PLUGINS)

    assert [(each.change, each.hosts) for each in found.relaxations] == relaxations


def test_every_field_of_a_spec_is_relaxed_or_no_demand() -> None:
    """A new field of the spec must be thought of: what keeps hosts out should be among the relaxations."""
    no_demands = {"count", "preferred", "preferred_classes", "image", "policy"}
    # The cell is that of an instance which moves.
    of_who_asks = {"project", "flavor", "is_for_nodes", "cell", "mover"}
    otherwise = {"amounts", "groups", "isolates", "cells"}

    assert {*InstanceSpec.__struct_fields__} == {
        *(planning.DEMANDS_BY_ITEM | planning.DEMANDS_AS_A_WHOLE),
        *(no_demands | of_who_asks | otherwise),
    }


def test_a_pool_that_ran_out_is_named_with_its_numbers_and_the_hosts_that_need_it() -> None:
    found = plan(pooled(disk=5), a_spec(1, DISK_GB=10), PLUGINS)

    assert found.fit == 0
    assert found.pools == (
        ExhaustedPool(pool="nas", resource="DISK_GB", asked=10, free=5, capacity=5, hosts=2),
    )
    assert plan(pooled(disk=10), a_spec(1, DISK_GB=10), PLUGINS).pools == ()


def test_hosts_that_share_a_pool_are_filled_together() -> None:
    assert [plan(pooled(disk), a_spec(1, DISK_GB=10), PLUGINS).fit for disk in (10, 55, 900)] == [1, 5, 10]


def test_filling_compound_hosts_ends_at_a_limit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugins, "TURNS_MAX", 3)

    found = plan(pooled(disk=900), a_spec(1, DISK_GB=10), PLUGINS)

    assert (found.fit, found.is_cut) == (3, True)


def test_reasons_of_one_step_alone_and_of_hosts_that_qualify() -> None:
    assert [each.host for each in all_reasons(mixed(), a_spec(), 2, step="capacity")] == ["full"]
    assert all_reasons(mixed(), a_spec(), 2, step="qualify") == [
        HostVerdict(host="roomy", cell="c2", fit=5),
        HostVerdict(host="tight", cell="c1", fit=3),
        HostVerdict(host="tree", cell="c1", fit=4),
    ]


def all_reasons(picture: Picture, spec: InstanceSpec, limit: int, step: str = "") -> list[HostVerdict]:
    found: list[HostVerdict] = []
    after = ""
    while True:
        page, has_more = reasons(
            picture, [Alternative("", Flavor(), spec)], PLUGINS, step=step, after=after, limit=limit
        )
        found += page
        if not has_more:
            return found
        after = page[-1].host


def test_a_plan_of_granular_groups_counts_what_a_choice_places_and_may_do_without_a_group() -> None:
    one_cell = GranularGroup("1", amounts=(("VCPU", 3),))
    two_cells = (one_cell, GranularGroup("2", amounts=(("VCPU", 2),)))
    fits = InstanceSpec(amounts=(("VCPU", 5),), groups=two_cells)
    picture = mixed()

    found = plan(picture, fits, PLUGINS)
    apart = plan(picture, structs.replace(fits, isolates=True), PLUGINS)

    assert {cell.cell: cell.fit for cell in found.cells} == filled(picture, fits) == {"c2": 3}
    assert (apart.fit, apart.qualify) == (0, 0)
    assert [each.change for each in apart.relaxations] == [
        *("without group 1", "without group 2", "with several groups at one provider"),
    ]


@pytest.mark.parametrize(("policy", "fit"), [("affinity", 5), ("anti-affinity", 6), ("soft-affinity", 12)])
def test_a_server_group_bounds_a_plan(policy: str, fit: int) -> None:
    group = msgspec.convert({"id": an_id("group"), "policy": policy, "max_per_host": 2}, ServerGroup)
    spec = structs.replace(a_spec(), server_group=group)

    assert plan(mixed(), spec, PLUGINS).fit == fit


# The questions


async def asked(question: Message, kind: type[M]) -> M:
    answer = await LoneScheduler(picture=mixed(), plugins=PLUGINS).ask(question)
    assert isinstance(answer, kind), answer
    return answer


ONE = BuildInstance(flavor=Flavor(vcpus=1))


async def test_a_project_may_not_plan_for_another_one() -> None:
    question = AskPlan(request=structs.replace(ONE, project="bank"), project="shop")

    assert await asked(question, BuildRejected) == BuildRejected(
        request_id=None,
        field="request.project",
        value="bank",
        reason="is not the project 'shop', for which the plan is asked",
    )
    assert (await asked(structs.replace(question, project="bank"), PlanFound)).fit == 12
    assert (await asked(structs.replace(question, project=""), PlanFound)).fit == 12


async def test_the_hosts_with_a_trait_a_class_or_a_fact_are_told_with_their_values() -> None:
    assert await asked(AskCapabilities(having=FAST), CapabilitiesFound) == CapabilitiesFound(
        capabilities=(Capability(name=FAST, kind="trait", value="", hosts=1),),
        hosts=(HostHaving(host="tight", cell="c1", value=""),),
    )
    cores = await asked(AskCapabilities(having="VCPU", limit=2), CapabilitiesFound)
    assert cores.capabilities == (
        Capability(name="VCPU", kind="class", value="4", hosts=3, values=2),
        Capability(name="VCPU", kind="class", value="16", hosts=2, values=2),
    )
    assert cores.hosts == (
        HostHaving(host="full", cell="c1", value="4", free=0),
        HostHaving(host="off", cell="c1", value="16", free=16),
    )
    assert cores.next == "off"
    rest = await asked(AskCapabilities(having="VCPU", after="off"), CapabilitiesFound)
    assert [each.host for each in rest.hosts] == ["roomy", "tight", "tree"]
    assert rest.next == ""
    in_c2 = await asked(AskCapabilities(having="cell", value="c2"), CapabilitiesFound)
    assert in_c2.hosts == (HostHaving(host="roomy", cell="c2", value="c2"),)
    assert [each.value for each in in_c2.capabilities] == ["c2"]


async def test_a_capability_that_no_host_has_is_refused_with_names_near_it() -> None:
    answer = await asked(AskCapabilities(having="HW_CPU_X86_AVX"), BuildRejected)

    assert (answer.field, answer.value) == ("having", "HW_CPU_X86_AVX")
    assert answer.reason.endswith(f"; near it: {FAST}")
    alone = await asked(AskCapabilities(value="4"), BuildRejected)
    assert alone.field == "value"
