"""A way is better if devices that a guest prefers near its NUMA cells are near them. This counts before how full providers get."""

from scheduler_worker.core.choosing.needs import Needs
from scheduler_worker.core.choosing.ways.judge import Way

PER_DEVICE = 10.0


class NearDevices:
    may_strike = False

    def reads(self, needs: Needs) -> bool:
        return any(nearness == "preferred" for _, nearness in needs.near)

    def judge(self, way: Way, needs: Needs) -> float:
        groups = way.groups
        cells = [provider for suffix in needs.cells for provider in groups[suffix]]
        near = [
            any(way.is_under(device, cell) for device in groups[suffix] for cell in cells)
            for suffix, nearness in needs.near
            if nearness == "preferred"
        ]
        return PER_DEVICE * sum(near)
