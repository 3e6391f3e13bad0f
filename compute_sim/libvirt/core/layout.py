"""Which part of a machine each provider of its host stands for. Trees are reported and guests are planned by the same layout.

Ids are derived from the root's id, so that they survive restarts.
"""

from collections.abc import Iterable, Sequence
from uuid import uuid5

from msgspec import Struct

from bus.message import AggregateId, ProviderId
from compute_sim.libvirt.core.cpu_ranges import cpus_in_words
from compute_sim.libvirt.core.device_layout import OfferedDevices, device_layout
from compute_sim.libvirt.core.machine import HugePages, Machine, MachineCell
from compute_sim.libvirt.core.node_devices import MediatedDevice, NodeDevices, PciFunction
from compute_sim.libvirt.core.offer import HostOffer
from compute_sim.libvirt.core.sharing import SharedPool


class OfferedCell(Struct, frozen=True, kw_only=True):
    """A cell of the host, and what is offered of it. `number` is None if it is the whole host, which is flat then.

    `memory_mb` is in small pages. `outside_mb` is the memory in small pages that the machine has and the host does not offer.
    """

    provider: ProviderId
    number: int | None
    shared: tuple[int, ...] = ()
    dedicated: tuple[int, ...] = ()
    memory_mb: int = 0
    outside_mb: int = 0
    huge_pages: tuple[HugePages, ...] = ()


class HostLayout(Struct, frozen=True, kw_only=True):
    root: ProviderId
    machine: Machine
    offer: HostOffer
    cells: tuple[OfferedCell, ...]
    devices: tuple[OfferedDevices, ...] = ()
    functions: tuple[PciFunction, ...] = ()
    # Mediated devices that exist now.
    mediated: tuple[MediatedDevice, ...] = ()
    # Storage pools and networks that others share with this host.
    shared: tuple[SharedPool, ...] = ()

    @property
    def pooled(self) -> frozenset[str]:
        """The resource classes that pools share with this host."""
        return frozenset([each.resource for each in self.shared])

    @property
    def joins(self) -> frozenset[AggregateId]:
        return frozenset([each.aggregate for each in self.shared])

    @property
    def is_flat(self) -> bool:
        return self.cells[0].number is None


def layout_of(
    root: ProviderId,
    machine: Machine,
    offer: HostOffer,
    *,
    devices: NodeDevices | None = None,
    shared: Iterable[SharedPool] = (),
) -> HostLayout:
    """The layout of a host. Raises ValueError if the offer names what the machine does not have."""
    found = devices or NodeDevices()
    cells = _offered_cells(root, machine, offer)
    parents = {cell.number: cell.provider for cell in cells if cell.number is not None}
    return HostLayout(
        root=root,
        machine=machine,
        offer=offer,
        cells=cells,
        devices=device_layout(root, offer, found, parents),
        functions=found.functions,
        mediated=found.mediated,
        shared=tuple(shared),
    )


def _offered_cells(root: ProviderId, machine: Machine, offer: HostOffer) -> tuple[OfferedCell, ...]:
    shared = _shared_cpus(machine, offer)
    if offer.flat or not machine.has_cells:
        return (_whole_host(root, machine, offer, shared),)
    # A cell none of whose CPUs is offered belongs to somebody else: its memory is not offered either.
    chosen = [cell for cell in machine.cells if (shared | offer.cpus_dedicated).intersection(cell.cpus)]
    memory = _limited([cell.small_pages_mb for cell in chosen], offer.memory_mb)
    return tuple(
        _offered_cell(root, cell, offer, shared, memory_mb)
        for cell, memory_mb in zip(chosen, memory, strict=True)
    )


def _offered_cell(
    root: ProviderId, cell: MachineCell, offer: HostOffer, shared: frozenset[int], memory_mb: int
) -> OfferedCell:
    return OfferedCell(
        provider=ProviderId(uuid5(root, f"numa-{cell.number}")),
        number=cell.number,
        shared=tuple(sorted(shared.intersection(cell.cpus))),
        dedicated=tuple(sorted(offer.cpus_dedicated.intersection(cell.cpus))),
        memory_mb=memory_mb,
        outside_mb=cell.small_pages_mb - memory_mb,
        huge_pages=cell.huge_pages,
    )


def _whole_host(root: ProviderId, machine: Machine, offer: HostOffer, shared: frozenset[int]) -> OfferedCell:
    total = sum(cell.small_pages_mb for cell in machine.cells)
    sizes = sorted({pages.kib for cell in machine.cells for pages in cell.huge_pages})
    counts = {
        kib: sum(pages.count for cell in machine.cells for pages in cell.huge_pages if pages.kib == kib)
        for kib in sizes
    }
    memory_mb = _limited([total], offer.memory_mb)[0]
    return OfferedCell(
        provider=root,
        number=None,
        shared=tuple(sorted(shared)),
        dedicated=tuple(sorted(offer.cpus_dedicated)),
        memory_mb=memory_mb,
        outside_mb=total - memory_mb,
        huge_pages=tuple(HugePages(kib, count) for kib, count in counts.items()),
    )


def _shared_cpus(machine: Machine, offer: HostOffer) -> frozenset[int]:
    """The shared CPUs that are offered, after a check of all that the offer names."""
    for field, cpus in (("cpus_dedicated", offer.cpus_dedicated), ("cpus_shared", offer.cpus_shared)):
        if missing := (cpus or frozenset()) - machine.cpus:
            raise ValueError(
                f"{field} has {cpus_in_words(missing)}, which this machine does not have: it has {cpus_in_words(machine.cpus)}"
            )
    if offer.cpus_shared is None:
        return machine.cpus - offer.cpus_dedicated
    if both := offer.cpus_shared & offer.cpus_dedicated:
        raise ValueError(f"cpus_shared and cpus_dedicated both have {cpus_in_words(both)}")
    if not offer.cpus_shared | offer.cpus_dedicated:
        raise ValueError("cpus_shared and cpus_dedicated are empty: the host would offer no CPU")
    return offer.cpus_shared


def _limited(parts: Sequence[int], limit: int | None) -> list[int]:
    """These amounts, reduced in proportion so that their sum is the limit at most."""
    total = sum(parts)
    if limit is None or limit >= total:
        return list(parts)
    return in_proportion(limit, parts)


def in_proportion(amount: int, sizes: Sequence[int]) -> list[int]:
    """This amount divided over parts of these sizes. The sum is exact, and no part gets more than its size if all have room."""
    total = sum(sizes)
    given, so_far, done = [], 0, 0
    for size in sizes:
        so_far += size
        upto = amount * so_far // total if total else 0
        given.append(upto - done)
        done = upto
    return given
