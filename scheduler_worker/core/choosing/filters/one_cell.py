"""Placement and the registry have the host in the same cell."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class OneCell(Filter):
    name = "cell"
    woken_by = (Change.FACTS, Change.PROVIDERS)

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.of(hosts.columns.consistent)

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        return f"placement has it in cell {hosts.cell_name(at)!r}, the registry in another one"
