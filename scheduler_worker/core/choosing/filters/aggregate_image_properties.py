"""Aggregates for some images only: metadata under an image property's name lists the values that may run there."""

from typing import Any

from bus.messages.aggregates import Aggregate
from scheduler_worker.core.aggregates.metadata import ONLY_OF_AGGREGATES, items_of
from scheduler_worker.core.choosing.filters.by_aggregates import ByAggregates
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.requests.spec import InstanceSpec

# The properties that aggregates may isolate by. An image without such a property may run anywhere.
ISOLATING = (
    *ONLY_OF_AGGREGATES,
    *("hw_architecture", "architecture", "img_hv_type", "hypervisor_type", "hw_vm_mode", "vm_mode"),
)


class AggregateImageProperties(ByAggregates):
    name = "image properties of aggregates"
    reads = ("image_properties",)
    image_keys = ISOLATING

    def asked(self, hosts: Hosts, spec: InstanceSpec) -> tuple[tuple[str, str], ...] | None:
        if not spec.image_properties:
            return None
        keys = hosts.metadata.keys
        return (
            tuple(each for each in spec.image_properties if each[0] in keys and each[0] in ISOLATING) or None
        )

    def why_not(self, aggregates: tuple[Aggregate, ...], asked: Any) -> str:
        for key, value in asked:
            allowed = frozenset().union(
                *(items_of(each.metadata[key]) for each in aggregates if key in each.metadata)
            )
            if allowed and value not in allowed:
                return f"its aggregates are for images with {key} {', '.join(sorted(allowed))}, this one has {value}"
        return ""
