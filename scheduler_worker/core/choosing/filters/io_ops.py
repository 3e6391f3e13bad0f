"""Few builds and the like are under way on the host."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.aggregates.metadata import IO_OPS_MAX, UNLIMITED
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Filter
from scheduler_worker.core.requests import InstanceSpec

IO_OPS_PER_HOST_MAX = 8


class IoOps(Filter):
    name = "io ops"
    is_per_instance = True

    def __init__(self, maximum: int = IO_OPS_PER_HOST_MAX) -> None:
        """0: no limit, except on hosts whose aggregates name one."""
        self.maximum = maximum

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        if not self.maximum and IO_OPS_MAX not in hosts.metadata.keys:
            return hosts.everyone()
        return hosts.have_fewer("io_ops", hosts.number(IO_OPS_MAX, self.maximum or UNLIMITED))

    def reason(self, hosts: Hosts, _spec: InstanceSpec, at: int) -> str:
        maximum = hosts.number_at(at, IO_OPS_MAX, self.maximum)
        return f"has {int(hosts.io_ops[at])} builds and the like under way, at most {maximum:g}"
