"""What guests that are not the host's own take of what it offers. It is reported as reserved, and no guest gets it."""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import ceil

from compute_sim.libvirt.core.layout import Gives, HostLayout, OfferedCell, in_proportion
from compute_sim.libvirt.core.plans import ForeignGuest, GuestPlan, PlannedMediated
from engine.guests import memory_class
from engine.inventories import ProviderId


def foreign_dedicated(layout: HostLayout, foreign: Iterable[ForeignGuest]) -> frozenset[int]:
    """The dedicated CPUs of the host on which foreign guests are pinned."""
    offered = {cpu for cell in layout.cells for cpu in cell.dedicated}
    return frozenset(
        cpu
        for guest in foreign
        for pins in guest.pins
        if _is_pinned(layout, pins)
        for cpu in pins
        if cpu in offered
    )


def foreign_shared(layout: HostLayout, foreign: Iterable[ForeignGuest]) -> dict[ProviderId, int]:
    """How many shared CPUs of each cell foreign guests take.

    One of their CPUs takes as much as one of the host's own guests: with a ratio of 4, a fourth of a shared CPU.
    """
    taken: Counter[ProviderId] = Counter()
    parts = 0.0
    weights: dict[ProviderId, float] = {cell.provider: 0.0 for cell in layout.cells}
    for guest in foreign:
        for pins in guest.pins:
            where = [
                (
                    cell.provider,
                    len(cell.shared if not _is_pinned(layout, pins) else set(pins) & set(cell.shared)),
                )
                for cell in layout.cells
            ]
            parts = sum(count for _, count in where)
            for provider, count in where:
                weights[provider] += count / parts if parts else 0.0
    for provider, cpus in weights.items():
        # Thirds do not add up to one in floating point.
        taken[provider] = ceil(round(cpus / layout.offer.cpu_ratio, 6))
    return dict(taken)


def foreign_memory(
    layout: HostLayout, foreign: Sequence[ForeignGuest], kib: int = 0
) -> dict[ProviderId, int]:
    """How many MB foreign guests have of each cell, in pages of this size (0: small ones)."""
    taken = dict.fromkeys((cell.provider for cell in layout.cells), 0)
    for memory in (each for guest in foreign for each in guest.memory if each.kib == kib):
        cells = [cell for cell in layout.cells if not memory.cells or cell.number in (None, *memory.cells)]
        sizes = [_size(cell, kib) for cell in cells]
        for cell, mb in zip(cells, in_proportion(memory.mb, sizes), strict=True):
            taken[cell.provider] += mb
    return taken


def foreign_devices(layout: HostLayout, gives: Gives, foreign: Sequence[ForeignGuest]) -> int:
    """How many of these devices foreign guests keep from the host: also by a part of the card, or by the card of a part."""
    uuids = {uuid for guest in foreign for uuid in guest.mediated}
    used = [each for each in layout.mediated if each.uuid in uuids]
    if gives.mediated_type:
        return sum(1 for one in used if one.parent in gives.parents and one.type == gives.mediated_type)
    taken = {address for guest in foreign for address in guest.functions} | {each.parent for each in used}
    return sum(
        1
        for each in layout.functions
        if each.address in gives.functions
        and not taken.isdisjoint((each.address, each.physical, *each.virtual))
    )


def _is_pinned(layout: HostLayout, pins: Sequence[int]) -> bool:
    """Does this set of CPUs say more than "anywhere"?"""
    return bool(pins) and not layout.machine.cpus.issubset(pins)


def _size(cell: OfferedCell, kib: int) -> int:
    if not kib:
        return cell.memory_mb + cell.outside_mb
    return sum(pages.mb for pages in cell.huge_pages if pages.kib == kib)


# What the other guests on a machine have, so that no further guest gets it.


class Taken:
    """By each CPU, function and mediated device that a guest has, the name of its domain, for refusals."""

    def __init__(self, layout: HostLayout, others: Sequence[GuestPlan | ForeignGuest]) -> None:
        self.layout = layout
        self._plans = [each for each in others if isinstance(each, GuestPlan)]
        self._foreign = [each for each in others if isinstance(each, ForeignGuest)]
        self.cpus: dict[int, str] = {cpu: plan.domain for plan in self._plans for cpu in plan.dedicated}
        for guest in self._foreign:
            self.cpus.update(dict.fromkeys(foreign_dedicated(layout, (guest,)), guest.name))
        self.functions: dict[str, str] = {
            function.address: plan.domain for plan in self._plans for function in plan.functions
        } | {address: guest.name for guest in self._foreign for address in guest.functions}
        self.mediated = {device.uuid: plan.domain for plan in self._plans for device in plan.mediated} | {
            uuid: guest.name for guest in self._foreign for uuid in guest.mediated
        }
        exist = {each.uuid for each in layout.mediated}
        # Of other guests, and not made yet.
        self.to_be_made: tuple[PlannedMediated, ...] = tuple(
            device for plan in self._plans for device in plan.mediated if device.uuid not in exist
        )

    def pages_mb(self, cell: OfferedCell, kib: int) -> int:
        """How much of a cell's memory in pages of this size other guests have, or may have."""
        own = sum(self._own_pages(plan, cell, kib) for plan in self._plans)
        kept = sum(
            each.count * each.kib // 1024
            for each in self.layout.offer.pages_kept
            if each.kib == kib and cell.number in (None, each.cell)
        )
        return own + max(kept, foreign_memory(self.layout, self._foreign, kib)[cell.provider])

    def _own_pages(self, plan: GuestPlan, cell: OfferedCell, kib: int) -> int:
        if plan.page_kib != kib:
            return 0
        # The share, since a guest without cells of its own may have pages in several cells of the host.
        claimed = Counter[ProviderId]()
        for each in plan.share.amounts:
            if each.resource == memory_class(kib):
                claimed[each.provider] += each.amount
        cells = self.layout.cells
        if claimed.keys() & {each.provider for each in cells}:
            return claimed[cell.provider]
        # It was built before the host had these cells, or when it had some: its pages may be anywhere.
        sizes = [sum(pages.mb for pages in each.huge_pages if pages.kib == kib) for each in cells]
        return in_proportion(plan.memory_mb, sizes)[cells.index(cell)]
