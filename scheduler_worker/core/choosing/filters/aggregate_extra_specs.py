"""The metadata of the host's aggregates meets each `aggregate_instance_extra_specs:KEY` of the flavor, compared by Nova's
operators (demands.py). With several aggregates that have the key, one of their values is enough.
"""

from typing import Any

from bus.messages.aggregates import Aggregate
from scheduler_worker.core.choosing.demands import Demand, demand_of, is_met
from scheduler_worker.core.choosing.filters.by_aggregates import ByAggregates
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.requests.spec import InstanceSpec

SCOPE = "aggregate_instance_extra_specs"


class AggregateExtraSpecs(ByAggregates):
    name = "metadata of aggregates"
    reads = ("extra_specs",)
    scopes = (SCOPE,)

    def problem_with(self, key: str, value: str) -> str:
        if not key.partition(":")[2]:
            return f"it names no key of metadata: {SCOPE}:KEY"
        demand = demand_of(value)
        return demand if isinstance(demand, str) else ""

    def asked(self, hosts: Hosts, spec: InstanceSpec) -> tuple[tuple[str, str], ...] | None:  # noqa: ARG002 - a key that no aggregate has fails everywhere
        if not spec.extra_specs:
            return None
        scoped = (spec_ for spec_ in spec.extra_specs if spec_[0].startswith(f"{SCOPE}:"))
        return tuple((key.partition(":")[2], value) for key, value in scoped) or None

    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        for key, value in asked:
            demand = demand_of(value)
            assert isinstance(demand, Demand), "the reader of requests has refused any other value"
            has = [each.metadata[key] for each in aggregates if key in each.metadata]
            if not any(is_met(demand, each) for each in has):
                return f"{key} asked {value!r}, its aggregates have {' and '.join(map(repr, has)) or 'none'}"
        return ""
