"""The host's cell is not down. While none is, this costs nothing."""

import numpy as np

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
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

    def reason(self, host: OneHost, _spec: InstanceSpec) -> str:
        return f"its cell {host.cell!r} is down: {host.why_cell_is_down}"
