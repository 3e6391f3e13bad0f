"""The host has fewer instances than it may have."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.aggregates.metadata import INSTANCES_MAX, UNLIMITED
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Filter
from scheduler_worker.core.requests import InstanceSpec

INSTANCES_PER_HOST_MAX = 50


class Instances(Filter):
    name = "instances"
    is_per_instance = True

    def __init__(self, maximum: int = INSTANCES_PER_HOST_MAX) -> None:
        """0: no limit, except on hosts whose aggregates name one."""
        self.maximum = maximum

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        if not self.maximum and INSTANCES_MAX not in hosts.metadata.keys:
            return hosts.everyone()
        return hosts.have_fewer("instances", hosts.number(INSTANCES_MAX, self.maximum or UNLIMITED))

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        maximum = hosts.number_at(at, INSTANCES_MAX, self.maximum)
        return f"has {int(hosts.instances[at])} instances, at most {maximum:g}"
