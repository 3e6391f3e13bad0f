"""The host reports all metrics that the metrics weigher adds up: a host that is not measured cannot be compared."""

import numpy as np

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests.spec import InstanceSpec


class MetricsFilter(Filter):
    name = "metrics"
    woken_by = (Change.METRICS,)

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        passed = hosts.everyone()
        for name in self.names:
            passed = passed & ~np.isnan(hosts.metric(name))
        return passed

    def reason(self, host: OneHost, _spec: InstanceSpec) -> str:
        return f"tells no metric {', '.join(name for name in self.names if np.isnan(host.metric(name)))}"
