"""A libvirt host gets another shape only if no guest is bound to CPUs or pages that the old shape has elsewhere."""

from uuid import UUID

import pytest
from msgspec import structs

from bus.message import ConsumerId, ProviderId
from bus.messages.placement import ReportedInventory, ResourceAmount
from compute_sim.core.reshaping import CannotReshape
from compute_sim.core.tree import ProviderTree, TreeProvider
from compute_sim.libvirt.core.bound_guests import bound_guests

ROOT, CELL = ProviderId(UUID(int=1)), ProviderId(UUID(int=2))
GUEST = ConsumerId(UUID(int=9))
PAGES = "CUSTOM_MEMORY_MB_PAGES_2048"


def in_cells() -> ProviderTree:
    sizes = {name: ReportedInventory(total=64) for name in ("VCPU", "PCPU", "MEMORY_MB", PAGES)}
    root = TreeProvider(id=ROOT, name="h1", inventories={"DISK_GB": ReportedInventory(total=64)})
    cell = TreeProvider(id=CELL, name="h1_NUMA0", parent=ROOT, inventories=sizes)
    return ProviderTree(ROOT, {ROOT: root, CELL: cell})


@pytest.mark.parametrize("resource", ["PCPU", PAGES])
def test_a_bound_guest_keeps_the_shape(resource: str) -> None:
    held = ResourceAmount(provider=ROOT, resource=resource, amount=2)

    refused = bound_guests(in_cells(), {GUEST: (held,)})

    assert isinstance(refused, CannotReshape)
    assert f"{GUEST} is bound to its 2 {resource}" in refused.reason


@pytest.mark.parametrize("resource", ["VCPU", "MEMORY_MB"])
def test_a_guest_with_cells_of_its_own_keeps_the_shape(resource: str) -> None:
    held = ResourceAmount(provider=ROOT, resource=resource, amount=2)

    refused = bound_guests(in_cells(), {GUEST: (held,)}, {GUEST.int})

    assert isinstance(refused, CannotReshape)
    assert f"{GUEST} is bound to its 2 {resource}" in refused.reason
    stays = structs.replace(held, provider=CELL)
    assert bound_guests(in_cells(), {GUEST: (stays,)}, {GUEST.int}) is None


@pytest.mark.parametrize(
    ("provider", "resource"), [(ROOT, "VCPU"), (ROOT, "MEMORY_MB"), (CELL, "PCPU"), (ROOT, "DISK_GB")]
)
def test_a_guest_that_floats_or_stays_does_not(provider: ProviderId, resource: str) -> None:
    held = ResourceAmount(provider=provider, resource=resource, amount=2)

    assert bound_guests(in_cells(), {GUEST: (held,)}) is None
