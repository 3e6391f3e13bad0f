"""A host with a newer hypervisor is better."""

from placement_worker.core.candidates.columns import Floats, Ints
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Weigher
from scheduler_worker.core.requests.spec import InstanceSpec


class HypervisorVersion(Weigher):
    name = "hypervisor version"

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:  # noqa: ARG002 - equal for each request
        return hosts.hypervisor_versions if hosts.differ_in("hypervisor_version") else None
