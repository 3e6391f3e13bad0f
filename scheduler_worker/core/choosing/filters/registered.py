"""The host has a row in the registry of hosts."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class InRegistry(Filter):
    name = "registered"
    woken_by = (Change.FACTS,)

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.of(hosts.columns.registered)

    def reason(self, _hosts: Hosts, _spec: InstanceSpec, _at: int) -> str:
        return "no report of it has reached the registry yet"
