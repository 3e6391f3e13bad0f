"""Aggregates for some flavors only: metadata `instance_type` lists their names."""

from typing import Any

from bus.messages.aggregates import Aggregate
from scheduler_worker.core.aggregates.metadata import FLAVORS, items_of
from scheduler_worker.core.choosing.filters.by_aggregates import ByAggregates, named
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.requests.spec import InstanceSpec


class AggregateFlavors(ByAggregates):
    name = "flavors of aggregates"
    reads = ("flavor",)

    def asked(self, hosts: Hosts, spec: InstanceSpec) -> str | None:
        return spec.flavor if FLAVORS in hosts.metadata.keys else None

    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        bound = tuple(each for each in aggregates if FLAVORS in each.metadata)
        flavors = frozenset().union(*(items_of(each.metadata[FLAVORS]) for each in bound))
        if not bound or asked in flavors:
            return ""
        return f"{named(bound)} is for flavors {', '.join(sorted(flavors))}, asked {asked or 'one without a name'}"
