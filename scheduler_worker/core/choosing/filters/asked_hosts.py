"""The host is one of those that the request names, and none that it excludes; for a move, it is of the instance's cell.

A name may have a cell before it (`c1/h1`). Without one, it means no host if several cells have it.
"""

from bus.messages.hosts import host_in_cell, names_clash
from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class AskedHosts(Filter):
    name = "asked hosts"
    reads = ("hosts", "ignore_hosts", "cell")
    woken_by = (Change.FACTS,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        passed = hosts.everyone()
        if spec.hosts:
            # A name counts only inside its cell: without a cell, one that several cells have means none of their hosts.
            clear = [name for name in spec.hosts if spec.cell or len(hosts.cells_named(name)) <= 1]
            passed = hosts.named(tuple(clear))
        if spec.cell:
            passed = passed & hosts.in_cell(spec.cell)
        return passed & ~hosts.named(spec.ignore_hosts) if spec.ignore_hosts else passed

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        if spec.cell and host.cell != spec.cell:
            return f"is in cell {host.cell!r}: an instance moves only within its cell {spec.cell!r}"
        name = host.name.lower()
        if {name, host_in_cell(host.cell, name)} & {*spec.ignore_hosts}:
            return "is to be ignored"
        if name in spec.hosts and len(cells := host.hosts.cells_named(name)) > 1:
            return names_clash(name, cells)
        return "is none of the hosts that were asked for"
