"""The interfaces of filters and weighers, and the score of a host by all weighers.

Both see columns, and are called once for all hosts. They decide by the columns and the spec alone, and keep no state. A
plugin declares what it depends on. `reads` names the fields of the spec, or `classes` if the amounts do not count.
`woken_by` names the kinds of change after which it may answer otherwise about a host. The laboratory's plugin_check.py
checks both declarations.
"""

from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple, Protocol

import numpy as np
from msgspec import Struct, structs

from engine.candidates.columns import Flags, Floats, Ints, Rows
from engine.choosing.compounds import Verdict, WayJudge
from engine.choosing.hosts import Draft, Hosts, OneHost
from engine.hosts import (
    FLAVORS,
    MULTIPLIER,
    ONLY_OF_AGGREGATES,
    POLICIES,
    POLICY,
    Aggregate,
    least_of,
    value_of,
)
from engine.picture.members import HostAggregates, HostPreferences
from engine.picture.picture import Picture
from engine.requests.spec import InstanceSpec, needs_of, some_may_be_of_nodes

# For all multipliers together: a score has 32 bits, beside the preference among equals.
MULTIPLIERS_MAX = 1e7


class HostChange(Enum):
    """The kinds of change of a host after which a plugin may answer otherwise about it."""

    # The host's own report: its load, its zone, its hypervisor, its capabilities.
    FACTS = "facts"
    # Its heartbeats stopped, or came back.
    LIFE = "life"
    # An operator, or too many failed builds, set its mode.
    ENABLED = "enabled"
    METRICS = "metrics"
    # The images that it has cached.
    IMAGES = "images"
    # The metadata of aggregates.
    AGGREGATES = "aggregates"
    # Its providers: inventories, traits, aggregates, the tree.
    PROVIDERS = "providers"
    # What its instances hold, as placement says, or as this scheduler has chosen.
    USAGE = "usage"


class Filter(Protocol):
    # Its name in the funnel.
    name: str
    # Does its answer depend on what a host has taken? Then it is called again after every choice.
    is_per_instance: bool = False
    reads: tuple[str, ...] = ()
    woken_by: tuple[HostChange, ...] = ()
    # A filter may stand for the hosts on which the search finds no way, for this reason.
    verdict: Verdict | None = None
    # The prefixes (before the colon) of extra specs that it reads, and the image properties. Others are refused.
    scopes: tuple[str, ...] = ()
    image_keys: tuple[str, ...] = ()

    def problem_with(self, key: str, value: str) -> str:  # noqa: ARG002 - any value, unless a filter says otherwise
        """Why the filter cannot understand this value; empty if it can. The key is that of an extra spec or image
        property that the filter reads.
        """
        return ""

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        """The hosts that could take one instance more."""

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        """Why this host does not pass, with the numbers."""


class Weigher(Protocol):
    # Its name in the settings and in explanations.
    name: str
    # How much it counts; a negative one prefers the hosts with the lowest weight.
    multiplier: float
    # The lower end of its scale; None: the lowest weight of the hosts that qualify.
    minimum: float | None = None
    reads: tuple[str, ...] = ()
    woken_by: tuple[HostChange, ...] = ()
    # By the name of a policy: by what the multiplier is multiplied under it; under one that is not named, by 1.
    under: Mapping[str, float] = MappingProxyType({})

    def __init__(self, multiplier: float) -> None:
        self.multiplier = multiplier

    def weigh(self, hosts: Hosts, spec: InstanceSpec) -> Floats | Ints | None:
        """The weight of each host, finite, higher is better. Weights are scaled to 0 to 1 over the hosts that qualify,
        then multiplied. None says that all hosts of the picture are equal for this weigher, which costs nothing.
        """


def multiplier_key(weigher: Weigher) -> str:
    """The key in an aggregate's metadata that sets this weigher's multiplier for the hosts of the aggregate."""
    return f"{weigher.name.replace(' ', '_').replace('-', '_')}{MULTIPLIER}"


def passing(hosts: Hosts, spec: InstanceSpec, filters: Sequence[Filter], among: Flags) -> Flags:
    """The hosts in `among` that pass all of these filters."""
    everyone, own = hosts.everyone(), None
    for one in filters:
        passed = one.passes(hosts, spec)
        # Most filters have nothing to say about most requests.
        if passed is not everyone:
            among = np.logical_and(among, passed, out=own)
            own = among
    return among


def as_declared(spec: InstanceSpec, fields: Iterable[str]) -> InstanceSpec:
    """The spec with these fields alone, which plugins declare that they read. Answers about it hold for all specs that
    are equal in these fields, since the plugins saw no others.
    """
    kept = {field: getattr(spec, field) for field in fields}
    amounts = tuple([(resource, 0) for resource in kept.pop("classes", ())])
    if not kept.keys() <= _FIELDS:
        return spec
    return InstanceSpec(**{"amounts": amounts, **kept})


_FIELDS = frozenset(InstanceSpec.__struct_fields__)


def _present_and_passing(hosts: Hosts, spec: InstanceSpec, filters: tuple[Filter, ...]) -> Flags:
    return passing(hosts, spec, filters, hosts.present)


def _is_steady(one: Filter) -> bool:
    """Does the filter say the same all through a batch about all specs that differ in their amounts alone?"""
    return not one.is_per_instance and HostChange.USAGE not in one.woken_by and "amounts" not in one.reads


class Plugins(Struct, dict=True, eq=False):
    """The filters, in the order of the funnel, the weighers, and the judges of the ways of one host.

    `policy` is the cloud's; a request, or a host's aggregate, may name another. `instances_max` is the limit of instances for
    each host (0: none). Claims carry it, so that placement keeps the limit however many schedulers choose at once. An
    instance gets one of the `subset` best hosts. `read_by_others` are
    the fields of a spec that plugins of other packages read. They change only by `become`.
    """

    filters: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]
    policy: str = ""
    instances_max: int = 0
    subset: int = 1
    read_by_others: frozenset[str] = frozenset()
    way_judges: tuple[WayJudge, ...] = ()

    def __post_init__(self) -> None:
        total = sum(abs(weigher.multiplier) for weigher in self.weighers)
        if total > MULTIPLIERS_MAX:
            keys = ", ".join(map(multiplier_key, self.weighers))
            raise ValueError(f"{keys} add up to {total:g}, must be at most {MULTIPLIERS_MAX:g} together")

    def become(self, other: "Plugins") -> None:
        """Weigh and limit as `other` does from now on: the operator has changed the settings of a running scheduler. Both have
        the same filters and weighers by name.
        """
        for field in self.__struct_fields__:
            setattr(self, field, getattr(other, field))
        # What was computed from the fields before.
        self.__dict__.clear()

    def qualifying(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        """A flag for each of these hosts that passes all filters, a compound one as far as its columns say; callers must not write
        into the array.

        Specs of one batch often differ in their amounts alone. So the steady filters are asked once for all specs that
        are equal in the fields which such filters read.
        """
        asked = as_declared(spec, self._read_by_steady)
        passed = hosts.cached(_present_and_passing, asked, self._steady, is_steady=True)
        return passing(hosts, spec, self._others, passed)

    @cached_property
    def _steady(self) -> tuple[Filter, ...]:
        return tuple(one for one in self.filters if _is_steady(one))

    @cached_property
    def _others(self) -> tuple[Filter, ...]:
        return tuple(one for one in self.filters if not _is_steady(one))

    @cached_property
    def _read_by_steady(self) -> tuple[str, ...]:
        return tuple({field: None for one in self._steady for field in one.reads})

    def able(self, draft: Draft, spec: InstanceSpec) -> Flags:
        """A flag for each host that qualifies: it passes all filters, and if it is compound, the search finds a way."""
        qualify = self.qualifying(Hosts(draft), spec)
        compounds = draft.searched(has_groups=bool(spec.groups))
        return qualify if compounds is None else compounds.able(needs_of(spec), qualify)

    def weighing(self, asked: str, metadata: HostAggregates) -> "Weighing":
        """The weighers that count under the policy that a request asks for; if it asks for none, under those of aggregates, or the
        cloud's.
        """
        counting: list[tuple[Weigher, float | Floats]] = []
        differ_by_policy = not asked and POLICY in metadata.keys
        for each in self.weighers:
            multiplier = each.multiplier * each.under.get(asked or self.policy, 1.0)
            if differ_by_policy and each.under:
                kinds = each.multiplier, tuple(each.under.items()), self.policy
                counting.append((each, metadata.answers(_multiplier_in, multiplier_key(each), *kinds)))
            elif metadata.has_multipliers and (key := multiplier_key(each)) in metadata.keys:
                counting.append((each, metadata.numbers(key, multiplier)))
            elif multiplier:
                counting.append((each, multiplier))
        compares = any(hasattr(each, "among") for each, _ in counting)
        return Weighing(counting, compares, metadata.has_multipliers or differ_by_policy)

    @cached_property
    def per_instance(self) -> tuple[Filter, ...]:
        """The filters that are called again after every choice."""
        return tuple(one for one in self.filters if one.is_per_instance)

    @cached_property
    def weighs_images(self) -> bool:
        """Do the settings prefer hosts that have the image of a request cached?"""
        return any(one.multiplier != 0 and "image" in one.reads for one in self.weighers)

    @property
    def scopes(self) -> frozenset[str]:
        """The prefixes of the extra specs that some filter reads."""
        return frozenset(scope for one in self.filters for scope in one.scopes)

    @property
    def image_keys(self) -> frozenset[str]:
        """The image properties that some filter reads."""
        return frozenset(key for one in self.filters for key in one.image_keys)

    def problem_with(self, key: str, value: str) -> str:
        """Why no filter can read this extra spec or image property; empty if all that read it can."""
        scope = key.partition(":")[0]
        readers = [one for one in self.filters if scope in one.scopes or key in one.image_keys]
        return "; ".join(filter(None, (one.problem_with(key, value) for one in readers)))

    def reads(self, field: str) -> bool:
        """Does any plugin read this field of a spec?"""
        return any(field in each.reads for each in self.filters) or any(
            field in each.reads for each in self.weighers
        )


# Which specs of a batch are decided together: those that are equal in all by which a host is chosen at the moment.
#
# Each request names a project and a flavor. If these counted always, a batch of many projects would be many passes over
# all hosts. They count only if some host is for certain projects or certain flavors.


# The key of an aggregate's metadata by which its hosts weigh images, whatever the settings say.
IMAGE_CACHE = f"image_cache{MULTIPLIER}"


def alike(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins
) -> Mapping[InstanceSpec, Sequence[int]]:
    """The positions of the specs that are decided together, by the spec that stands for them."""
    weighs_images = plugins.weighs_images
    found: dict[InstanceSpec, list[int]] = {}
    # By the whole spec: so only the first of several equal ones is looked at.
    known: dict[InstanceSpec, list[int]] = {}
    for position, spec in enumerate(_without_lone_groups(picture, specs, plugins)):
        if (positions := known.get(spec)) is None:
            read = as_read(spec, picture, plugins.read_by_others, weighs_images=weighs_images)
            positions = known[spec] = found.setdefault(read, [])
        positions.append(position)
    return found


def as_read(
    spec: InstanceSpec,
    picture: Picture,
    read_by_others: frozenset[str] = frozenset(),
    *,
    weighs_images: bool = False,
) -> InstanceSpec:
    """The spec without the fields that no host of this picture is chosen by. A field that a plugin of another package
    reads stays. With `weighs_images`, the image stays, since hosts that have it cached are better.
    """
    aggregates = picture.aggregates
    project = spec.project
    if project and not (aggregates.name_tenants or some_may_be_of_nodes(spec.classes)):
        project = ""
    flavor = spec.flavor if FLAVORS in aggregates.keys else ""
    if "project" in read_by_others:
        project = spec.project
    if "flavor" in read_by_others:
        flavor = spec.flavor
    properties = spec.image_properties
    if properties and "image_properties" not in read_by_others:
        properties = tuple(
            each for each in properties if each[0] not in ONLY_OF_AGGREGATES or each[0] in aggregates.keys
        )
    image = spec.image
    if image and "image" not in read_by_others:
        counts = weighs_images or IMAGE_CACHE in aggregates.keys
        # Most images are on no host, and then are all alike.
        image = image if counts and picture.columns.images.knows(image) else ""
    if (project, flavor, properties, image) == (spec.project, spec.flavor, spec.image_properties, spec.image):
        return spec
    return structs.replace(spec, project=project, flavor=flavor, image_properties=properties, image=image)


def _without_lone_groups(
    picture: Picture, specs: Sequence[InstanceSpec], plugins: Plugins
) -> Sequence[InstanceSpec]:
    """The specs, without a server group that has no members yet and that only one of these instances joins.

    Such a group excludes no host, unless rules ask for domains. Without it, specs that differ in their group alone are decided together: a batch may
    have as many groups as instances. Groups stay if a plugin of another package reads them.
    """
    named = Counter([spec.server_group.id for spec in specs if spec.server_group is not None])
    if not named or "server_group" in plugins.read_by_others:
        return specs
    return [
        structs.replace(spec, server_group=None)
        if (group := spec.server_group) is not None
        and named[group.id] == 1
        and not picture.groups.of_group(group.id)
        and not group.hard_rules
        else spec
        for spec in specs
    ]


# How many more instances of a spec fit on each host.
#
# A filter that is called again after every choice (`is_per_instance`) passes a host up to some number of instances, and no
# longer. So that number is found by bisection, for all hosts at once. Compound hosts, and hosts that share a pool, must be
# filled one instance after another: they take turns, and stop at a limit.


FIT_MAX = 1_000_000
# Each may cost a search of one tree, some hundredths of a millisecond.
TURNS_MAX = 500


class Room(NamedTuple):
    """How many more instances fit on each host. It is cut if the count ended before all compound hosts were full."""

    counts: Ints
    is_cut: bool


def room_on(draft: Draft, spec: InstanceSpec, plugins: Plugins, rows: Rows) -> Room:
    """How many instances fit on each of the hosts in `rows`, which all qualify. Instances that are tried on compound
    hosts stay taken in the draft.
    """
    counts = _by_columns(draft, spec, plugins, rows)
    filling = draft.filling(spec)
    if filling is None:
        return Room(counts, is_cut=False)
    compound = np.flatnonzero(filling.flags[rows]).tolist()
    taken = dict.fromkeys(compound, 0)
    waiting = deque(compound)
    turns = 0
    while waiting and turns < TURNS_MAX:
        turns += 1
        at = waiting.popleft()
        if taken[at] < counts[at] and filling.take(int(rows[at])) is not None:
            taken[at] += 1
            waiting.append(at)
    counts[compound] = [*taken.values()]
    return Room(counts, is_cut=bool(waiting))


def together(draft: Draft, rows: Rows, counts: Ints, spec: InstanceSpec) -> int:
    """How many instances fit on the hosts in these rows, where `counts` says how many fit on each. An affinity group must be
    on one host, so for it the largest count is the answer. With several rules for domains, fewer may fit.
    """
    group = spec.server_group
    if group is None or not len(rows):
        return int(counts.sum())
    # The first member of an affinity group fixes the host of all.
    fit = int(counts.max() if group.policy == "affinity" else counts.sum())
    hosts = Hosts(draft, rows)
    for rule in group.hard_rules:
        _, at, of = np.unique(
            hosts.of(hosts.columns.domain(rule.level)), return_index=True, return_inverse=True
        )
        sums = np.bincount(of, weights=counts)
        if rule.policy == "affinity":
            fit = min(fit, int(sums.max()))
        else:
            room = rule.max_members - hosts.members_inside(group, rule.level, spec.mover)[at]
            fit = min(fit, int(np.minimum(sums, room).sum()))
    return fit


def _by_columns(draft: Draft, spec: InstanceSpec, plugins: Plugins, rows: Rows) -> Ints:
    amounts = dict(spec.amounts)
    least = np.ones(len(rows), dtype=np.int64)
    most = np.full(len(rows), FIT_MAX, dtype=np.int64)
    while (least < most).any():
        middle = (least + most + 1) // 2
        hosts = Hosts(draft, rows, middle - 1, amounts)
        passed = passing(hosts, spec, plugins.per_instance, hosts.everyone())
        least = np.where(passed, middle, least)
        most = np.where(passed, most, middle - 1)
    return least


# The score of each host for a spec, one number, and how it changes as the host takes instances.
#
# The weights of all weighers are put on one scale, which is divided into bands: a difference of less than a band does not
# count.


# A difference below this part of a weigher's range (with a multiplier of 1) does not count.
BAND = 0.01

# The score of a full host, below all others.
FULL = -(2**63)

# Sums of the same numbers in another order may differ by so many bands.
_ROUNDING = 1e-6
_PREFERENCE_BITS = np.int64(32)
_PREFERENCES = 2**32 - 1
# To find the best few of many hosts, every so many-th is looked at first.
_SAMPLED_EACH = 16
_SORTED_AT_ONCE = 100
# How many of the most preferred hosts are looked at before all are.
_TRIED_AT_LEAST, _TRIED_PER_HOST = 64, 8
# How many scores are computed at once for each instance that is to be placed. The head start evens out how these are
# divided among the first hosts of a pool.
_SCORES_PER_INSTANCE = 6
_HEAD_START = 8


class Weighing(NamedTuple):
    """The weighers that count in a batch. The multiplier of each is a number for all hosts, or an array with one for
    each set of aggregates.

    `compares`: some weigher compares the hosts that qualify with each other, and must not see any other.
    """

    weighers: Sequence[tuple[Weigher, float | Floats]]
    compares: bool
    multipliers_differ: bool


def _multiplier_in(
    aggregates: tuple[Aggregate, ...],
    key: str,
    multiplier: float,
    under: tuple[tuple[str, float], ...],
    policy: str,
) -> float:
    """How much a weigher counts for hosts in these aggregates: as they say themselves, else under their policy."""
    named = value_of(POLICY, aggregates)
    otherwise = multiplier * dict(under).get(named if named in POLICIES else policy, 1.0)
    return least_of(aggregates, key, otherwise)


class _Scale(NamedTuple):
    """How the weights of one weigher become bands: `least`, the lowest weight, gives 0 bands, and each 1 of weight
    above it gives `factor` bands. `factor` is a number for all hosts, or an array with one for each set of aggregates.
    """

    weigher: Weigher
    least: float
    factor: float | Floats

    def bands(self, hosts: Hosts, weights: Floats | Ints) -> Floats:
        factor = self.factor
        each = factor if isinstance(factor, float) else factor[hosts.of(hosts.columns.aggregates)]
        bands: Floats = np.multiply(weights - self.least if self.least else weights, each)
        return bands


class WeigherPart(NamedTuple):
    """What one weigher says of hosts: the weight of each, and by how many bands it makes the host better than the worst one."""

    weigher: str
    weights: Floats
    bands: Floats


class Best(NamedTuple):
    """The best hosts, by their positions among those that were asked about, and their scores; best first."""

    positions: Rows
    scores: Ints


class Scoring:
    """The scores of hosts for one spec. The scale of each weigher goes from the worst to the best of the hosts that
    qualify at first, and stays so while a batch fills them. `qualify` is None if all of the hosts do.
    """

    def __init__(
        self,
        hosts: Hosts,
        spec: InstanceSpec,
        weighing: Weighing,
        preferences: HostPreferences,
        qualify: Flags | None = None,
    ) -> None:
        self.spec = spec
        self.hosts = hosts
        self.qualify = qualify
        self._preferences = preferences
        # Specs that differ in their amounts alone are mostly weighed alike.
        shared: list[_Scale] = []
        own_ones: list[tuple[_Scale, Floats | Ints]] = []
        for each, multiplier in weighing.weighers:
            # Such a weigher sees all hosts that qualify once, and returns one that judges each of them alone.
            weigher: Weigher = each.among(hosts, spec) if hasattr(each, "among") else each
            own = weigher.weigh(hosts, spec)
            if own is None:
                continue
            highest = _most(own, qualify)
            lowest = _least(own, qualify) if weigher.minimum is None else weigher.minimum
            # A weigher that gives all hosts the same weight does not count.
            if highest > lowest:
                scale = _Scale(weigher, lowest, multiplier / (highest - lowest) / BAND)
                if "amounts" in weigher.reads:
                    own_ones.append((scale, own))
                else:
                    shared.append(scale)
        self._scales = [*shared, *(scale for scale, _ in own_ones)]
        if weighing.compares or weighing.multipliers_differ:
            self._bands = _bands_of(hosts, spec, self._scales)
        else:
            read = as_declared(spec, [field for scale in shared for field in scale.weigher.reads])
            parts = [scale.bands(hosts, own) for scale, own in own_ones]
            if shared or not parts:
                parts.insert(0, hosts.cached(_bands_of, read, tuple(shared)))
            self._bands = sum(parts[1:], parts[0])
        # The first band ends with the best host, so that hosts close to it are its equals.
        self._top = _most(self._bands, qualify) + _ROUNDING

    def scores(self, hosts: Hosts) -> Ints:
        """The score of each host. Its upper bits say how many bands the host is below the best one; its lower bits
        decide between hosts of one band, by the worker's own preference.
        """
        bands = _bands_of(hosts, self.spec, self._scales)
        return self._scores_of(bands, self._preferences.values[hosts.rows])

    def below(self, hosts: Hosts) -> Ints:
        """By how many bands each host is below the best one, as a number of at most 0: hosts with the same number are equal."""
        return np.ceil(_bands_of(hosts, self.spec, self._scales) - self._top).astype(np.int64)

    def parts(self, hosts: Hosts) -> Sequence[WeigherPart]:
        """What each weigher says of these hosts that does not say the same of all."""
        found: list[WeigherPart] = []
        for scale in self._scales:
            if (own := scale.weigher.weigh(hosts, self.spec)) is not None:
                bands = scale.bands(hosts, own).astype(np.float64)
                found.append(WeigherPart(scale.weigher.name, own.astype(np.float64), bands))
        return found

    def best(self, count: int, among: Flags | None) -> Best:
        """The best hosts, at most `count`: among those with a flag in `among`, or among all if that is None."""
        if not self.hosts.are_some and (preferred := self._preferred(count, among)) is not None:
            return preferred
        near = self._near(count, among)
        scores = self._scores_of(self._bands[near], self._preferences.values[self.hosts.rows_at(near)])
        if len(near) > max(count, _SORTED_AT_ONCE):
            best = scores.argpartition(len(scores) - count)[len(scores) - count :]
            best.sort()
            near, scores = near[best], scores[best]
        # Equal scores are rare, since a hash is part of each; they keep the order of their rows.
        order = (-scores).argsort(kind="stable")[:count]
        return Best(near[order], scores[order])

    def _preferred(self, count: int, among: Flags | None) -> Best | None:
        """The best hosts if the best band has enough of them, as when most hosts are equal: then the worker's
        preference alone decides. Only the most preferred hosts are looked at; None if too few of these are in the best
        band.
        """
        tried = self._preferences.order[: _TRIED_AT_LEAST + _TRIED_PER_HOST * count]
        equal: Flags = np.ceil(self._bands[tried] - self._top) == 0
        if among is not None:
            equal &= among[tried]
        rows = tried[equal][:count]
        return Best(rows, self._preferences.values[rows]) if len(rows) == count else None

    def _near(self, count: int, among: Flags | None) -> Rows:
        """The positions of the hosts among which the best are. A sample of all hosts is sorted first: hosts that are
        worse than the last of the sample's best are left out.
        """
        bands, preferences = self._bands, self._preferences.values[self.hosts.rows]
        every = slice(None, None, _SAMPLED_EACH)
        if count * 2 * _SAMPLED_EACH < len(bands):
            sample = self._scores_of(bands[every], preferences[every])
            if among is not None:
                sample = sample[among[every]]
            if count <= len(sample):
                sample.partition(len(sample) - count)
                last = int(sample[-count])
                ends = self._top + (last >> 32) - _ROUNDING
                near: Flags = preferences >= last & _PREFERENCES
                near |= bands > ends
                near &= bands > ends - 1
                if among is not None:
                    near &= among
                return near.nonzero()[0]
        return np.arange(len(bands)) if among is None else among.nonzero()[0]

    def _scores_of(self, bands: Floats, preferences: Ints) -> Ints:
        below = bands - self._top
        scores = np.ceil(below, out=below).astype(np.int64)
        scores <<= _PREFERENCE_BITS
        scores |= preferences
        return scores


def _bands_of(hosts: Hosts, spec: InstanceSpec, scales: Sequence[_Scale]) -> Floats:
    """By how many bands each host is better than one that has the least weight of each weigher."""
    bands = np.zeros(len(hosts))
    for scale in scales:
        if (own := scale.weigher.weigh(hosts, spec)) is not None:
            bands += scale.bands(hosts, own)
    return bands


def _most(values: Floats | Ints, qualify: Flags | None) -> float:
    """The largest value among the hosts that qualify, or among all if `qualify` is None."""
    at = int(values.argmax())
    return float(values[at] if qualify is None or qualify[at] else values[qualify].max())


def _least(values: Floats | Ints, qualify: Flags | None) -> float:
    """The smallest value among the hosts that qualify, or among all if `qualify` is None."""
    at = int(values.argmin())
    return float(values[at] if qualify is None or qualify[at] else values[qualify].min())


class ScoresByCount:
    """For each host of a pool its score after 0, 1, 2 and more instances of a spec, until it is full. `filters` are those
    that are called again after every choice.
    """

    def __init__(
        self, draft: Draft, scoring: Scoring, filters: Sequence[Filter], pool: Rows, instances: int
    ) -> None:
        self._draft = draft
        self._spec = scoring.spec
        self._amounts = dict(scoring.spec.amounts)
        self._filters = filters
        self._scoring = scoring
        self._pool = pool
        self._highest = instances + 1
        # The better a host, the more instances it is likely to take; the worst is likely to take none.
        share = 1 / (_HEAD_START + np.arange(len(pool)))
        counts = 2 + (_SCORES_PER_INSTANCE * instances / share.sum() * share).astype(np.int64)
        self._scores = self._compute(pool, 0, np.minimum(counts, self._highest))

    def score(self, place: int, taken: int) -> int:
        """The score of the host at this position of the pool; FULL if it can take no more."""
        scores = self._scores[place]
        if taken >= len(scores):
            more = min(2 * len(scores), self._highest) - len(scores)
            scores += self._compute(self._pool[place : place + 1], len(scores), np.array([more]))[0]
        return scores[taken]

    def _compute(self, rows: Rows, first: int, counts: Ints) -> list[list[int]]:
        """For each host `counts` scores: with `first` instances more, with one more than these, and so on."""
        ends = np.cumsum(counts)
        taken = np.arange(first, first + int(ends[-1])) - np.repeat(ends - counts, counts)
        hosts = Hosts(self._draft, np.repeat(rows, counts), taken, self._amounts)
        scores = self._scoring.scores(hosts)
        scores[~passing(hosts, self._spec, self._filters, hosts.everyone())] = FULL
        listed: list[int] = scores.tolist()
        return [listed[end - count : end] for end, count in zip(ends.tolist(), counts.tolist(), strict=True)]
