"""Spreads instances over zones, racks or whatever a key of aggregates' metadata names: as many in each as possible.

The hosts with one value of the key are a domain. Within a domain hosts are numbered, those with few instances first. A
host's weight is the number of instances that its domain has when the host's turn comes: those of now, plus the host's
number. A host that takes one goes behind all others of its domain. So the domain with the fewest instances always has
the best host, and several instances of one request are divided as evenly as those of several requests.
"""

import numpy as np

from placement_worker.core.candidates.columns import Ints, Rows
from scheduler_worker.core.choosing.host_columns import Hosts
from scheduler_worker.core.choosing.plugins import Change
from scheduler_worker.core.requests.spec import InstanceSpec


class Spread:
    minimum: float | None = None
    reads: tuple[str, ...] = ()
    woken_by: tuple[Change, ...] = (Change.FACTS, Change.USAGE, Change.AGGREGATES, Change.PROVIDERS)

    def __init__(self, key: str, multiplier: float) -> None:
        self.name = "spread"
        self.key = key
        self.multiplier = multiplier

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Ints | None:
        """The weights of hosts that qualify, before any of them takes an instance."""
        found = self.among(hosts, spec)
        return found.weigh(hosts, spec)

    def among(self, hosts: Hosts, spec: InstanceSpec) -> "SpreadAmong":  # noqa: ARG002 - every request is spread alike
        """The same for these hosts as they take instances."""
        domains = hosts.domains(self.key)
        order = np.lexsort((hosts.instances, domains))
        # The position of each host behind the first one of its domain.
        in_order = domains[order]
        starts = np.flatnonzero(np.r_[True, in_order[1:] != in_order[:-1]])
        sizes = np.diff(np.r_[starts, len(in_order)])
        places = np.empty(len(hosts), dtype=np.int64)
        places[order] = np.arange(len(in_order)) - np.repeat(starts, sizes)
        size_of_domain = dict(zip(in_order[starts].tolist(), sizes.tolist(), strict=True))
        load = hosts.load_of_domains(self.key)
        steps = np.array([size_of_domain[domain] for domain in domains.tolist()], dtype=np.int64)
        return SpreadAmong(self, hosts, load[domains] + places, steps)


class SpreadAmong:
    """The weigher for the hosts that qualify for one spec."""

    minimum: float | None = None
    reads: tuple[str, ...] = ()
    woken_by: tuple[Change, ...] = ()

    def __init__(self, spread: Spread, hosts: Hosts, at_first: Ints, steps: Ints) -> None:
        self.name = spread.name
        self.multiplier = spread.multiplier
        length = hosts.columns.rows
        self._at_first = np.zeros(length, dtype=np.int64)
        self._steps = np.zeros(length, dtype=np.int64)
        self._at_first[hosts.rows] = at_first
        self._steps[hosts.rows] = steps

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Ints:  # noqa: ARG002 - every request is spread alike
        rows: Rows | slice = hosts.rows
        return -(self._at_first[rows] + hosts.taken * self._steps[rows])
