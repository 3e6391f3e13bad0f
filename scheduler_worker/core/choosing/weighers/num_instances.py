"""A host with more instances is better, unless the multiplier is negative."""

from placement_worker.core.candidates.columns import Floats, Ints
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Weigher
from scheduler_worker.core.requests.spec import InstanceSpec


class NumInstances(Weigher):
    name = "num instances"
    woken_by = (Change.FACTS, Change.USAGE)

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:  # noqa: ARG002 - equal for each request
        return hosts.busy("instances")
