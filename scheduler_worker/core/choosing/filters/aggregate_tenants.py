"""Aggregates for some projects only: metadata `filter_tenant_id`, or several keys that begin so, list the projects."""

from typing import Any

from bus.messages.aggregates import Aggregate
from scheduler_worker.core.aggregates.metadata import tenants_of
from scheduler_worker.core.choosing.filters.by_aggregates import ByAggregates, named
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.requests.spec import InstanceSpec


class AggregateTenants(ByAggregates):
    name = "tenants of aggregates"
    reads = ("project",)

    def asked(self, hosts: Hosts, spec: InstanceSpec) -> str | None:
        return spec.project if hosts.metadata.name_tenants else None

    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        bound = tuple(each for each in aggregates if tenants_of(each))
        tenants = frozenset().union(*map(tenants_of, bound))
        if not tenants or asked in tenants:
            return ""
        return (
            f"{named(bound)} is for {', '.join(sorted(tenants))}, the request is of {asked or 'no project'}"
        )
