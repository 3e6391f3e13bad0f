"""A filter and a weigher for hosts that tell how many watts their rack has left, as the metric `rack.watts_left`.

A request asks for watts by the extra spec `power:watts`. And a judge of ways, for cells that need some memory themselves.
"""

from math import nan

import numpy as np

from engine.candidates.columns import Flags, Floats
from engine.choosing.compounds import Way, WayJudge
from engine.choosing.hosts import Hosts, OneHost
from engine.choosing.plugins import Filter, HostChange, Weigher
from engine.requests.spec import InstanceSpec, Needs

KEPT_MB = 512
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


class SpareMemory(WayJudge):
    """Each NUMA cell keeps some memory for the host's own use. Of several ways, the one that leaves most at its scarcest cell is best."""

    may_strike = True

    def reads(self, needs: Needs) -> bool:
        return any(resource == "MEMORY_MB" for resource, _ in needs.amounts)

    def judge(self, way: Way, _needs: Needs) -> float:
        left = min(
            way.free(provider, "MEMORY_MB") - amounts["MEMORY_MB"]
            for provider, amounts in enumerate(way.amounts)
            if "MEMORY_MB" in amounts
        )
        return left / (left + KEPT_MB) if left >= KEPT_MB else nan


def _watts(spec: InstanceSpec) -> int:
    return int(dict(spec.extra_specs).get(KEY, 0))
