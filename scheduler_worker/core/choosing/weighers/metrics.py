"""A host is better by the sum of its metrics, each with a ratio. A host that lacks one has a fixed weight."""

from collections.abc import Mapping

import numpy as np

from placement_worker.core.candidates.columns import Floats, Ints
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change, Weigher
from scheduler_worker.core.requests.spec import InstanceSpec


class MetricsWeight(Weigher):
    name = "metrics"
    woken_by = (Change.METRICS,)

    def __init__(self, multiplier: float, ratios: Mapping[str, float], unavailable: float) -> None:
        self.multiplier = multiplier
        self.ratios = dict(ratios)
        self.unavailable = unavailable

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:  # noqa: ARG002 - equal for each request
        if not hosts.some_tell(self.ratios):
            return None
        total = np.zeros(len(hosts))
        for name, ratio in self.ratios.items():
            total += ratio * hosts.metric(name)
        return np.where(np.isnan(total), self.unavailable, total)
