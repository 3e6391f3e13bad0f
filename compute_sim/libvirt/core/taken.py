"""What the other guests on a machine have, so that no further guest gets it."""

from collections import Counter
from collections.abc import Sequence

from compute_sim.libvirt.core.foreign import foreign_dedicated, foreign_memory
from compute_sim.libvirt.core.layout import HostLayout, OfferedCell
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
        own = sum(_pages_mb(plan, cell, kib) for plan in self._plans)
        kept = sum(
            each.count * each.kib // 1024
            for each in self.layout.offer.pages_kept
            if each.kib == kib and cell.number in (None, each.cell)
        )
        return own + max(kept, foreign_memory(self.layout, self._foreign, kib)[cell.provider])


def _pages_mb(plan: GuestPlan, cell: OfferedCell, kib: int) -> int:
    if plan.page_kib != kib:
        return 0
    if cell.number is None:
        return plan.memory_mb
    # The share, since a guest without cells of its own may have pages in several cells of the host.
    resource = f"CUSTOM_MEMORY_MB_PAGES_{kib}"
    amounts: Counter[str] = Counter()
    for each in plan.share.amounts:
        if each.provider == cell.provider:
            amounts[each.resource] += each.amount
    return amounts[resource]
