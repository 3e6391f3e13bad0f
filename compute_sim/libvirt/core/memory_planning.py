"""The memory of a guest: its cells, the host's cells where these are, and its pages."""

from collections.abc import Mapping

from msgspec import Struct

from bus.guests import GuestShape, cells_of, memory_class
from bus.guests.shape import HUGE_PAGES, SMALL_PAGES
from bus.message import ProviderId
from bus.messages.build import Flavor
from compute_sim.libvirt.core.image_asks import CannotGiveError
from compute_sim.libvirt.core.layout import HostLayout
from compute_sim.libvirt.core.plans import DomainCell
from compute_sim.libvirt.core.taken import Taken

Amounts = Mapping[str, int]


class PlannedMemory(Struct, frozen=True):
    """`host_cells` are those of a guest that has no cells of its own."""

    mb: int
    cells: tuple[DomainCell, ...] = ()
    host_cells: tuple[int, ...] = ()


def planned_memory(
    flavor: Flavor, shape: GuestShape, share: Mapping[ProviderId, Amounts], layout: HostLayout
) -> PlannedMemory:
    if shape.cells:
        hosts = cells_of(shape, share, {cell.provider: cell for cell in layout.cells})
        cells = tuple(
            DomainCell(tuple(sorted((*cell.shared, *cell.dedicated))), cell.memory_mb, host.number)
            for cell, host in zip(shape.cells, hosts, strict=True)
        )
        return PlannedMemory(_more_than_none(sum(cell.memory_mb for cell in cells)), cells)
    memory = {
        cell.number: sum(
            amount
            for resource, amount in share.get(cell.provider, {}).items()
            if resource == SMALL_PAGES or resource.startswith(HUGE_PAGES)
        )
        for cell in layout.cells
    }
    mb = _more_than_none(flavor.ram_mb or sum(memory.values()))
    return PlannedMemory(
        mb, host_cells=tuple(number for number, amount in memory.items() if amount and number is not None)
    )


def check_pages(share: Mapping[ProviderId, Amounts], taken: Taken, page_kib: int) -> None:
    """Are the pages there, and free?"""
    if not page_kib:
        return
    for cell in taken.layout.cells:
        asked = share.get(cell.provider, {}).get(memory_class(page_kib), 0)
        if not asked:
            continue
        total = sum(pages.mb for pages in cell.huge_pages if pages.kib == page_kib)
        free = total - taken.pages_mb(cell, page_kib)
        if free < asked:
            name = "the host" if cell.number is None else f"NUMA cell {cell.number}"
            raise CannotGiveError(
                f"{name} has {max(0, free)} MB of {total} MB in pages of {page_kib} KiB free, and {asked} MB are claimed"
            )


def _more_than_none(mb: int) -> int:
    if not mb:
        raise CannotGiveError("flavor.ram_mb is 0, and no memory is claimed: a virtual machine needs some")
    return mb
