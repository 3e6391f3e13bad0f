"""A libvirt host gets another shape only if no guest is bound to CPUs or pages that the old shape has elsewhere; the others are pinned
to what the new shape shares.
"""

from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from compute_sim.core.trees import CannotReshape, ProviderTree, TreeProvider
from compute_sim.libvirt.core.domains import bound_guests
from compute_sim.libvirt.core.machine import read_cpus
from compute_sim.libvirt.core.planning import pinned_anew, plan_guest
from compute_sim.libvirt.core.plans import GuestPlan, Taken
from engine.inventories import ConsumerId, ProviderId, ReportedInventory, ResourceAmount
from tests.unit.compute.libvirt_machines import a_layout, an_offer, an_order, specs

ROOT, CELL = ProviderId(UUID(int=1)), ProviderId(UUID(int=2))
GUEST = ConsumerId(UUID(int=9))
PAGES = "CUSTOM_MEMORY_MB_PAGES_2048"


def in_cells() -> ProviderTree:
    sizes = {name: ReportedInventory(total=64) for name in ("VCPU", "PCPU", "MEMORY_MB", PAGES)}
    root = TreeProvider(id=ROOT, name="h1", inventories={"DISK_GB": ReportedInventory(total=64)})
    cell = TreeProvider(id=CELL, name="h1_NUMA0", parent=ROOT, inventories=sizes)
    return ProviderTree(ROOT, {ROOT: root, CELL: cell})


@pytest.mark.parametrize(
    ("provider", "resource", "has_cells", "is_bound"),
    [
        *[(ROOT, resource, False, True) for resource in ("PCPU", PAGES)],
        *[(ROOT, resource, True, True) for resource in ("VCPU", "MEMORY_MB")],
        *[(CELL, resource, True, False) for resource in ("VCPU", "MEMORY_MB")],
        *[(ROOT, resource, False, False) for resource in ("VCPU", "MEMORY_MB", "DISK_GB")],
        (CELL, "PCPU", False, False),
    ],
)
def test_a_guest_keeps_the_shape_if_what_it_is_bound_to_would_be_elsewhere(
    provider: ProviderId, resource: str, *, has_cells: bool, is_bound: bool
) -> None:
    held = ResourceAmount(provider=provider, resource=resource, amount=2)

    refused = bound_guests(in_cells(), {GUEST: (held,)}, {GUEST.int} if has_cells else frozenset())

    words = refused.reason if isinstance(refused, CannotReshape) else ""
    assert (f"{GUEST} is bound to its 2 {resource}" in words) == is_bound


MIXED = specs(2, 512, cpu_policy="mixed", cpu_dedicated_mask="1")
SHARE = specs(2, 512, cpu_policy="mixed", cpu_dedicated_mask="1", emulator_threads_policy="share")
PLAIN = {"VCPU": 2, "MEMORY_MB": 512}
ONE_OF_EACH = {"VCPU": 1, "PCPU": 1, "MEMORY_MB": 512}
# What a guest was built on: the terms of the host and its claim; then the host's other terms, and where its CPUs and its emulator are.
PINNED_ANEW: list[tuple[dict[str, Any], tuple[str, dict[str, int], Any], dict[str, Any], list[str], str]] = [
    # A flat host whose CPUs are all shared gets cells and dedicated CPUs.
    ({"flat": True, "cpus_dedicated": frozenset()}, ("", PLAIN, None), {}, ["0,4,8,12"] * 2, "0,4,8,12"),
    # Another CPU of its cell is dedicated.
    (
        {"cpus_dedicated": read_cpus("1")},
        ("NUMA0", PLAIN, None),
        {"cpus_dedicated": read_cpus("1-3")},
        ["0,8-11"] * 2,
        "0,8-11",
    ),
    # Nothing has changed, or nothing is shared any more.
    ({}, ("NUMA1", PLAIN, None), {}, ["4,12"] * 2, "4,12"),
    ({}, ("NUMA0", PLAIN, None), {"cpus_dedicated": read_cpus("0-15")}, ["0,8"] * 2, "0,8"),
    # A dedicated CPU stays, though the host shares it now.
    ({}, ("NUMA0", ONE_OF_EACH, MIXED), {"cpus_dedicated": read_cpus("8")}, ["0-3,9-11", "1"], "0-3,9-11"),
    ({}, ("NUMA0", ONE_OF_EACH, SHARE), {"cpus_dedicated": read_cpus("8")}, ["0-3,9-11", "1"], "0-3,9-11"),
]


@pytest.mark.parametrize(("before", "claim", "after", "pins", "emulator"), PINNED_ANEW)
def test_the_shared_cpus_of_a_guest_are_those_that_its_host_shares_now(
    before: dict[str, Any],
    claim: tuple[str, dict[str, int], Any],
    after: dict[str, Any],
    pins: list[str],
    emulator: str,
) -> None:
    provider, amounts, flavor = claim
    layout = a_layout(an_offer(**before))
    guest = plan_guest(an_order(layout, {provider: amounts}, flavor), layout)
    assert isinstance(guest, GuestPlan), guest

    found = pinned_anew(guest, Taken(a_layout(an_offer(**after)), ()))

    assert found == structs.replace(
        guest,
        pins=tuple(tuple(sorted(read_cpus(each))) for each in pins),
        emulator=tuple(sorted(read_cpus(emulator))),
    )
    assert pinned_anew(found, Taken(a_layout(an_offer(**after)), ())) == found


def test_no_guest_comes_to_a_cpu_that_another_has_for_itself_though_the_host_shares_it_now() -> None:
    layout, now = a_layout(), a_layout(an_offer(cpus_dedicated=read_cpus("1")))
    owner = plan_guest(an_order(layout, {"NUMA0": ONE_OF_EACH}, MIXED), layout)
    assert isinstance(owner, GuestPlan)
    (own,) = owner.dedicated
    later = plan_guest(an_order(now, {"NUMA0": PLAIN}, number=2), now, (owner,))
    older = plan_guest(an_order(layout, {"NUMA0": PLAIN}, number=3), layout, (owner,))
    assert isinstance(later, GuestPlan)
    assert isinstance(older, GuestPlan)

    for guest in (later, pinned_anew(older, Taken(now, (owner, later)))):
        assert all(own not in each for each in guest.pins)
        assert {0, 8, 9} <= set(guest.pins[0])
