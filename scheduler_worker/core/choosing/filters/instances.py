"""The host has fewer instances than it may have."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec

INSTANCES_PER_HOST_MAX = 50


class Instances(Filter):
    name = "instances"
    is_per_instance = True
    woken_by = (Change.FACTS, Change.USAGE)

    def __init__(self, maximum: int = INSTANCES_PER_HOST_MAX) -> None:
        self.maximum = maximum

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.instances < self.maximum

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        return f"has {int(hosts.instances[at])} instances, at most {self.maximum}"
