"""The shape of the guest, as groups of the request: each of its NUMA cells is a granular group, and so one provider gives all
that the cell has: processors, and memory in small or huge pages. No two cells get the same provider.

The devices of such a guest, which the flavor's groups and ports ask for, get providers near its cells, as the policy says.
"""

from collections.abc import Iterator, Sequence

from bus.guests import GuestShape, cell_amounts, read_guest
from bus.messages.build import BuildInstance
from placement_worker.core.candidates.near_slots import CELL_TRAIT, Nearness
from placement_worker.core.vocabulary import CUSTOM
from scheduler_worker.core.requests.page_sizes import PAGE_SIZE
from scheduler_worker.core.requests.parts import (
    AskedTrait,
    CellOfGuest,
    DefaultAmount,
    NearCells,
    RequestPart,
    RequestProblem,
    Resource,
)

HYPERTHREADS = "HW_CPU_HYPERTHREADING"
TRAIT_WORDS = {"isolate": "forbidden", "require": "required"}
# Custom classes are devices, too; of ports those with a bandwidth are none.
DEVICE_CLASSES = frozenset({"FPGA", "PCI_DEVICE", "PGPU", "SRIOV_NET_VF", "VGPU", "VGPU_DISPLAY_HEAD"})
# Providers tell no sockets. A device of the same cell is on the same socket.
NEARNESS: dict[str, Nearness] = {
    "legacy": "legacy",
    "required": "required",
    "preferred": "preferred",
    "socket": "required",
}


def guest_groups(build: BuildInstance, parts: Sequence[RequestPart]) -> Iterator[RequestPart]:
    """The parts that follow from the guest's shape. `parts` are all others of the request."""
    flavor = build.flavor
    if flavor is None:
        return
    shape = read_guest(flavor, build.image_properties)
    if not isinstance(shape, GuestShape):
        for problem in shape:
            yield RequestProblem(*problem)
        shape = GuestShape()
    if shape.thread_policy in TRAIT_WORDS:
        yield AskedTrait(
            "", HYPERTHREADS, TRAIT_WORDS[shape.thread_policy], "flavor.extra_specs.hw:cpu_thread_policy"
        )
    if shape.page_size in ("large", "any"):
        yield RequestProblem(
            f"flavor.extra_specs.{PAGE_SIZE}", shape.page_size, "each size is an alternative of its own"
        )
    if not shape.cells:
        yield DefaultAmount("PCPU" if shape.cpu_policy == "dedicated" else "VCPU", flavor.vcpus)
        yield DefaultAmount("MEMORY_MB", flavor.ram_mb)
        return
    yield from _cells_of_guest(shape)
    policies = {f"port {port.id}": port.numa_affinity_policy for port in build.port_requests}
    for suffix in devices_of(parts):
        yield NearCells(suffix, NEARNESS[policies.get(suffix, "") or shape.pci_affinity])


def _cells_of_guest(shape: GuestShape) -> Iterator[RequestPart]:
    for number, amounts in enumerate(cell_amounts(shape, shape.page_kib)):
        suffix = f"guest cell {number}"
        yield CellOfGuest(suffix)
        for resource, amount in amounts.items():
            yield Resource(suffix, resource, amount)
        if len(shape.cells) > 1:
            yield AskedTrait(suffix, CELL_TRAIT, "required", "flavor.extra_specs.hw:numa_nodes")


def devices_of(parts: Sequence[RequestPart]) -> list[str]:
    """The suffixes of the groups that ask for classes of devices alone."""
    classes: dict[str, set[str]] = {}
    for part in parts:
        if isinstance(part, Resource) and part.amount and part.suffix.partition(" ")[0] not in ("", "volume"):
            classes.setdefault(part.suffix, set()).add(part.name)
    return [
        suffix
        for suffix, names in classes.items()
        if all(name in DEVICE_CLASSES or name.startswith(CUSTOM) for name in names)
    ]
