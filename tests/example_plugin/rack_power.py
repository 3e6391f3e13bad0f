"""A filter and a weigher for hosts that tell how many watts their rack has left, as the metric `rack.watts_left`.

A request asks for watts by the extra spec `power:watts`.
"""

import numpy as np

from engine.candidates.columns import Flags, Floats
from engine.choosing.hosts import Hosts, OneHost
from engine.choosing.plugins import Filter, HostChange, Weigher
from engine.requests.spec import InstanceSpec

METRIC = "rack.watts_left"
KEY = "power:watts"


class EnoughPower(Filter):
    """The rack has the watts that the request asks for. A host that does not tell the metric has none."""

    name = "rack power"
    reads = ("extra_specs",)
    woken_by = (HostChange.METRICS,)
    scopes = ("power",)

    def problem_with(self, key: str, value: str) -> str:
        if key != KEY:
            return f"unknown key {key!r}: known is {KEY}"
        return "" if value.isdecimal() and len(value) < 10 else "is no whole number of watts"

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        watts = _watts(spec)
        return np.nan_to_num(hosts.metric(METRIC)) >= watts if watts else hosts.everyone()

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        return f"asked {_watts(spec)} W, the rack has {np.nan_to_num(host.metric(METRIC)):g} W left"


class SparePower(Weigher):
    """A host whose rack has more watts left is better."""

    name = "rack power"
    minimum = 0.0
    woken_by = (HostChange.METRICS,)

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | None:  # noqa: ARG002 - equal for each request
        return np.nan_to_num(hosts.metric(METRIC)) if hosts.some_tell((METRIC,)) else None


def _watts(spec: InstanceSpec) -> int:
    return int(dict(spec.extra_specs).get(KEY, 0))
