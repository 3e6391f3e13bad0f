"""A host with more of the preferred traits and classes is better, by their weights.

A host that is searched counts with the providers that it would give: a trait of another NUMA cell is worth nothing.
"""

import numpy as np

from placement_worker.core.candidates.columns import Floats
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.choosing.needs import Needs, needs_of
from scheduler_worker.core.choosing.plugins import Change, Weigher
from scheduler_worker.core.requests import InstanceSpec


class PreferredWeight(Weigher):
    name = "preferred"
    reads = (*Needs._fields, "preferred_classes")
    woken_by = (Change.PROVIDERS, Change.USAGE)

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | None:
        if not spec.prefers_something:
            return None
        weights = np.zeros(len(hosts))
        for trait, weight in spec.preferred:
            weights += hosts.with_any((trait,)) * weight
        if hosts.some_are_searched(spec):
            needs = needs_of(spec)
            weights = np.where(hosts.are_searched(needs), hosts.of(hosts.compounds.worth(needs)), weights)
        for resource, weight in spec.preferred_classes:
            weights += hosts.stocked(resource) * weight
        return weights
