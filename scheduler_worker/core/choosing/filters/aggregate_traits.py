"""Keeps hosts of certain aggregates for requests that require a trait: those with the metadata `trait:NAME` =
`required`.
"""

from typing import Any

from bus.messages.aggregates import Aggregate
from scheduler_worker.core.aggregates.metadata import TRAIT
from scheduler_worker.core.choosing.filters.by_aggregates import ByAggregates, named
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.requests.spec import InstanceSpec


class AggregateTraits(ByAggregates):
    name = "traits of aggregates"
    reads = ("required",)

    def asked(self, hosts: Hosts, spec: InstanceSpec) -> tuple[str, ...] | None:
        isolating = hosts.metadata.isolating_traits
        return tuple(trait for trait in spec.required if trait in isolating) if isolating else None

    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        for each in aggregates:
            traits = {key.removeprefix(TRAIT) for key in each.metadata if key.startswith(TRAIT)}
            if missing := sorted(traits.difference(asked)):
                return f"{named((each,))} is for requests that require {', '.join(missing)}"
        return ""
