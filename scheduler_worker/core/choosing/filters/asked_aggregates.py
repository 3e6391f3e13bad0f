"""The host is in the aggregates that the request names, and in none that it forbids. The aggregates of its root count."""

from placement_worker.core.candidates.columns import Flags
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.hosts.one_host import OneHost
from scheduler_worker.core.choosing.plugins import Change, Filter
from scheduler_worker.core.requests.spec import InstanceSpec


class AskedAggregates(Filter):
    name = "asked aggregates"
    reads = ("member_of", "forbidden_aggregates")
    woken_by = (Change.PROVIDERS,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        passed = hosts.everyone()
        for any_of in spec.member_of:
            passed = passed & hosts.in_any_aggregate(any_of)
        if spec.forbidden_aggregates:
            passed = passed & ~hosts.in_any_aggregate(spec.forbidden_aggregates)
        return passed

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        lacks = [any_of for any_of in spec.member_of if not host.is_in(any_of)]
        said = [f"is not in aggregate {' or '.join(map(str, any_of))}" for any_of in lacks]
        said += [
            f"is in forbidden aggregate {aggregate}"
            for aggregate in spec.forbidden_aggregates
            if host.is_in((aggregate,))
        ]
        return "; ".join(said)
