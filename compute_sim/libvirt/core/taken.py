"""What the other guests on a machine have, so that no further guest gets it."""

from collections import Counter
from collections.abc import Sequence

from bus.guests import memory_class
from bus.message import ProviderId
from compute_sim.libvirt.core.foreign import foreign_dedicated, foreign_memory
from compute_sim.libvirt.core.layout import HostLayout, OfferedCell, in_proportion
from compute_sim.libvirt.core.plans import ForeignGuest, GuestPlan, PlannedMediated


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
