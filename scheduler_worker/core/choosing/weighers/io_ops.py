"""A host with more builds under way, as it tells, is better; so the multiplier is negative by default.

This scheduler's own choices are not counted: their amounts are no longer free, which weighs enough, and a soft-affinity
group would be driven apart.
"""

from placement_worker.core.candidates.columns import Floats, Ints
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Weigher
from scheduler_worker.core.requests.spec import InstanceSpec


class IoOps(Weigher):
    name = "io ops"
    minimum = 0.0

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:  # noqa: ARG002 - equal for each request
        return hosts.of(hosts.columns.io_ops) if hosts.differ_in("io_ops") else None
