"""Placement has the host's provider."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec


class HasInventory(Filter):
    name = "inventory"
    woken_by = (Change.PROVIDERS,)

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.of(hosts.columns.provided)

    def reason(self, _hosts: Hosts, _spec: InstanceSpec, _at: int) -> str:
        return "placement has no provider of it"
