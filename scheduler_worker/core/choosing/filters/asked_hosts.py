"""The host is one of those that the request names, and none that it excludes; for a move, it is of the instance's cell."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class AskedHosts(Filter):
    name = "asked hosts"
    reads = ("hosts", "ignore_hosts", "cell")
    woken_by = (Change.FACTS,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        passed = hosts.named(spec.hosts) if spec.hosts else hosts.everyone()
        if spec.cell:
            passed = passed & hosts.in_cell(spec.cell)
        return passed & ~hosts.named(spec.ignore_hosts) if spec.ignore_hosts else passed

    def reason(self, hosts: Hosts, spec: InstanceSpec, at: int) -> str:
        if spec.cell and hosts.cell_name(at) != spec.cell:
            return f"is in cell {hosts.cell_name(at)!r}: an instance moves only within its cell {spec.cell!r}"
        is_ignored = hosts.name(at).lower() in spec.ignore_hosts
        return "is to be ignored" if is_ignored else "is none of the hosts that were asked for"
