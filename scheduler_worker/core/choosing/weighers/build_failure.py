"""A host where builds failed lately is worse, the more the worse."""

from placement_worker.core.candidates.columns import Floats, Ints
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Weigher
from scheduler_worker.core.requests.spec import InstanceSpec


class BuildFailure(Weigher):
    name = "build failure"

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:  # noqa: ARG002 - equal for each request
        return -hosts.failed_builds if hosts.differ_in("failed_builds") else None
