"""Few builds and the like are under way on the host."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests import InstanceSpec

IO_OPS_PER_HOST_MAX = 8


class IoOps(Filter):
    name = "io ops"
    is_per_instance = True
    woken_by = (Change.FACTS, Change.USAGE)

    def __init__(self, maximum: int = IO_OPS_PER_HOST_MAX) -> None:
        self.maximum = maximum

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.io_ops < self.maximum

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        return f"has {int(hosts.io_ops[at])} builds and the like under way, at most {self.maximum}"
