"""The weighers."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from engine.candidates.columns import Floats, Ints
from engine.choosing.hosts import Hosts
from engine.choosing.plugins import HostChange, Weigher
from engine.requests.spec import InstanceSpec, Needs, needs_of


class FreeAmount(Weigher):
    """The free amount of one class, on a scale from 0 to the most that any host has."""

    minimum = 0.0
    woken_by = (HostChange.PROVIDERS, HostChange.USAGE)
    under = MappingProxyType({"fill": -1.0, "fit": 0.0})

    def __init__(self, name: str, resource: str, multiplier: float = 1.0) -> None:
        self.name = name
        self.resource = resource
        self.multiplier = multiplier

    def weigh(self, hosts: Hosts, _spec: InstanceSpec) -> Ints | None:
        return hosts.free(self.resource) if self.resource in hosts.columns.stocks else None


class ImageCache(Weigher):
    """A host is better if it has the image of the request cached: it need not download it first."""

    name = "image_cache"
    minimum = 0.0
    reads = ("image",)
    woken_by = (HostChange.IMAGES,)

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:
        caches = hosts.columns.images
        if not spec.image or not caches.knows(spec.image):
            return None
        return hosts.of(caches.having(spec.image, hosts.columns.rows)).astype("float64")


class MetricsWeight(Weigher):
    """A host is better by the sum of its metrics, each with a ratio. A host that lacks one has a fixed weight."""

    name = "metrics"
    woken_by = (HostChange.METRICS,)

    def __init__(self, multiplier: float, ratios: Mapping[str, float], unavailable: float) -> None:
        self.multiplier = multiplier
        self.ratios = dict(ratios)
        self.unavailable = unavailable

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:  # noqa: ARG002 - equal for each request
        if not hosts.some_tell(self.ratios):
            return None
        total = np.zeros(len(hosts))
        for name, ratio in self.ratios.items():
            total += ratio * hosts.metric(name)
        return np.where(np.isnan(total), self.unavailable, total)


class LostShapes(Weigher):
    """A host is better if an instance takes less of its room for the usual shapes."""

    name = "fit"
    reads = ("amounts",)
    woken_by = (HostChange.PROVIDERS, HostChange.USAGE)
    under = MappingProxyType({"spread": 0.0, "fill": 0.0})

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | None:
        lost = hosts.lost_by(spec.amounts)
        return None if lost is None else -lost


class NumInstances(Weigher):
    """A host with more instances is better, unless the multiplier is negative."""

    name = "num instances"
    woken_by = (HostChange.FACTS, HostChange.USAGE)

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:  # noqa: ARG002 - equal for each request
        return hosts.busy("instances")


# A host with more free PCI devices is better for a request that asks for such devices. For any other request it is
# worse, so that its devices stay free.


_CLASSES = ("PCI_DEVICE", "SRIOV_NET_VF")
_CUSTOM = "CUSTOM_PCI_"


def _is_pci(resource: str) -> bool:
    return resource in _CLASSES or resource.startswith(_CUSTOM)


class Pci(Weigher):
    name = "pci"
    reads = ("classes",)
    woken_by = (HostChange.PROVIDERS, HostChange.USAGE)

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:
        classes = [resource for resource in sorted(hosts.columns.stocks) if _is_pci(resource)]
        if not classes:
            return None
        free, *others = [np.maximum(hosts.free(resource), 0) for resource in classes]
        for other in others:
            free += other
        return free if any(_is_pci(resource) for resource in spec.classes) else -free


class PreferredWeight(Weigher):
    """A host with more of the preferred traits and classes is better, by their weights.

    A host that is searched counts with the providers that it would give: a trait of another NUMA cell is worth nothing.
    """

    name = "preferred"
    reads = (*Needs.__struct_fields__, "preferred_classes")
    woken_by = (HostChange.PROVIDERS, HostChange.USAGE)

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | None:
        if not spec.prefers_something:
            return None
        weights = np.zeros(len(hosts))
        for trait, weight in spec.preferred:
            weights += hosts.with_any((trait,)) * weight
        if hosts.some_are_searched(spec):
            worth = hosts.of(hosts.compounds.worth(needs_of(spec)))
            weights = np.where(hosts.are_searched(has_groups=bool(spec.groups)), worth, weights)
        for resource, weight in spec.preferred_classes:
            weights += hosts.stocked(resource) * weight
        return weights


class ReportedWeight(Weigher):
    """A host with more of a number that hosts report is better, unless the multiplier is negative.

    This scheduler's own choices are not counted as builds under way (`io_ops`): their amounts are no longer free, which weighs
    enough, and a soft-affinity group would be driven apart.
    """

    woken_by = (HostChange.FACTS,)

    def __init__(
        self, name: str, column: str, multiplier: float, *, minimum: float | None = None, less: bool = False
    ) -> None:
        """Weigh hosts by one of the columns that they report. With `less`, a host with a lower value is better."""
        self.name = name
        self.multiplier = multiplier
        self.minimum = minimum
        self._column = column
        self._less = less

    def weigh(self, hosts: Hosts, _spec: InstanceSpec) -> Ints | None:
        if not hosts.differ_in(self._column):
            return None
        reported: Ints = hosts.of(getattr(hosts.columns, self._column))
        return -reported if self._less else reported


# A host with more members of a soft-affinity group is better; with soft anti-affinity, a host with fewer. Soft rules of a group
# count the members in the host's domain. Hosts without a domain of the level are together one.


class SoftGroup(Weigher):
    """One for each of the two policies, so that each has a multiplier of its own."""

    reads = ("server_group", "mover")
    woken_by = (HostChange.USAGE,)

    def __init__(self, policy: str, multiplier: float = 1.0) -> None:
        self.name = policy
        self.multiplier = multiplier
        self._sign = 1 if policy == "soft-affinity" else -1

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Ints | None:
        group = spec.server_group
        if group is None or not hosts.has_members(group):
            return None
        counts = [hosts.members(group)] if group.policy == self.name else []
        counts += [
            hosts.members_inside(group, rule.level, spec.mover)
            for rule in group.rules
            if rule.policy == self.name
        ]
        return self._sign * sum(counts[1:], counts[0]) if counts else None


# Spreads instances over zones, racks or whatever a key of aggregates' metadata names: as many in each as possible.
#
# The hosts with one value of the key are a domain. Within a domain hosts are numbered, those with few instances first. A
# host's weight is the number of instances that its domain has when the host's turn comes: those of now, plus the host's
# number. A host that takes one goes behind all others of its domain. So the domain with the fewest instances always has
# the best host, and several instances of one request are divided as evenly as those of several requests.


class Spread(Weigher):
    """Prefers hosts in the domain with the fewest instances. Each of `keys` is a key of aggregates' metadata, and the
    hosts with one value of the key are a domain. With several keys, an instance goes where its domains have the fewest
    instances together.
    """

    name = "spread"
    woken_by = (HostChange.FACTS, HostChange.USAGE, HostChange.AGGREGATES, HostChange.PROVIDERS)

    def __init__(self, keys: Sequence[str], multiplier: float) -> None:
        self.keys = keys
        self.multiplier = multiplier

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:
        return self.among(hosts, spec).weigh(hosts, spec) if self.keys else None

    def among(self, hosts: Hosts, spec: InstanceSpec) -> Weigher:  # noqa: ARG002 - every request is spread alike
        return _SpreadAmong(self.multiplier, hosts, [_turns(hosts, key) for key in self.keys])


class _Turns(NamedTuple):
    """When the turns of each host come, if the hosts of a domain take instances one after another.

    `first`: how many instances the domain has before the host's first turn. `step`: how many more it has before each
    next one, which is the number of the domain's hosts.
    """

    first: Ints
    step: Ints


def _turns(hosts: Hosts, key: str) -> _Turns:
    domains = hosts.domains(key)
    sizes = np.bincount(domains)
    order = np.lexsort((hosts.busy("instances"), domains))
    # Where the hosts of each domain begin in this order.
    starts = np.cumsum(sizes) - sizes
    places = np.empty(len(hosts), dtype=np.int64)
    places[order] = np.arange(len(hosts)) - starts[domains[order]]
    return _Turns(hosts.load_of_domains(key)[domains] + places, sizes[domains])


class _SpreadAmong(Weigher):
    """The `spread` weigher, prepared for the hosts that qualify for one spec."""

    name = "spread"

    def __init__(self, multiplier: float, hosts: Hosts, turns: Sequence[_Turns]) -> None:
        self.multiplier = multiplier
        self._first = np.zeros(hosts.columns.rows, dtype=np.int64)
        self._step = np.zeros(hosts.columns.rows, dtype=np.int64)
        for each in turns:
            self._first[hosts.rows] += each.first
            self._step[hosts.rows] += each.step
        now = self._first[hosts.rows]
        # If all domains are equal now, the scale is the difference that one more instance makes.
        self.minimum = None if now.min() < now.max() else -float(now.max()) - 1

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:  # noqa: ARG002 - every request is spread alike
        weights: Ints = -(self._first[hosts.rows] + hosts.taken * self._step[hosts.rows])
        return weights
