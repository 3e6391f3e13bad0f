"""The host's cell is not down. While none is, this costs nothing."""

import numpy as np

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class CellUp(Filter):
    name = "cell up"
    woken_by = (Change.LIFE,)

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        down = hosts.columns.cells_down
        if not down:
            return hosts.everyone()
        passed: Flags = ~np.isin(hosts.of(hosts.columns.cell), list(down))
        return passed

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        why = hosts.columns.cells_down.get(int(hosts.columns.cell[hosts.row(at)]), "")
        return f"its cell {hosts.cell_name(at)!r} is down: {why}"
