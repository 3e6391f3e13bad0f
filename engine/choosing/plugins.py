"""The interfaces of filters and weighers.

Both see columns, and are called once for all hosts. They decide by the columns and the spec alone, and keep no state. A
plugin declares what it depends on. `reads` names the fields of the spec, or `classes` if the amounts do not count.
`woken_by` names the kinds of change after which it may answer otherwise about a host. The laboratory's plugin_check.py
checks both declarations.
"""

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from enum import Enum
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
from msgspec import Struct, structs

from engine.candidates.columns import Flags, Floats, Ints, Rows
from engine.choosing.draft import Draft
from engine.choosing.hosts import Hosts, OneHost
from engine.choosing.needs import WayJudge
from engine.hosts import FLAVORS, MULTIPLIER, ONLY_OF_AGGREGATES
from engine.picture.picture import Picture
from engine.requests.spec import InstanceSpec, some_may_be_of_nodes

# For all multipliers together: a score has 32 bits, beside the preference among equals.
MULTIPLIERS_MAX = 1e7


class Change(Enum):
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
    woken_by: tuple[Change, ...] = ()
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
    woken_by: tuple[Change, ...] = ()

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


def _is_steady(one: Filter) -> bool:
    """Does the filter say the same all through a batch about all specs that differ in their amounts alone?"""
    return not one.is_per_instance and Change.USAGE not in one.woken_by and "amounts" not in one.reads


class Plugins(Struct, dict=True, eq=False):
    """The filters, in the order of the funnel, the weighers, and the judges of the ways of one host.

    `instances_max` is the limit of instances for each host (0: none). Claims carry it, so that placement keeps the
    limit however many schedulers choose at once. An instance gets one of the `subset` best hosts. `read_by_others` are
    the fields of a spec that plugins of other packages read. They change only by `become`.
    """

    filters: tuple[Filter, ...]
    weighers: tuple[Weigher, ...]
    instances_max: int = 0
    subset: int = 1
    read_by_others: frozenset[str] = frozenset()
    way_judges: tuple[WayJudge, ...] = ()

    def __post_init__(self) -> None:
        total = sum(abs(weigher.multiplier) for weigher in self.weighers)
        assert total <= MULTIPLIERS_MAX, f"multipliers add up to {total}, at most {MULTIPLIERS_MAX:g}"

    def become(self, other: "Plugins") -> None:
        """Weigh and limit as `other` does from now on: the operator has changed the settings of a running scheduler. Both have
        the same filters and weighers by name.
        """
        for field in self.__struct_fields__:
            setattr(self, field, getattr(other, field))
        # What was computed from the fields before.
        self.__dict__.clear()

    def qualifying(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        """A flag for each of these hosts that passes all filters; callers must not write into the array.

        Specs of one batch often differ in their amounts alone. So the steady filters are asked once for all specs that
        are equal in the fields which such filters read.
        """
        asked = ("steady filters", *[getattr(spec, field) for field in self._read_by_steady])
        passed = hosts.kept(
            asked, lambda hosts: passing(hosts, spec, self._steady, hosts.present), is_steady=True
        )
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

    Such a group excludes no host. Without it, specs that differ in their group alone are decided together: a batch may
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


def together(counts: Ints, spec: InstanceSpec) -> int:
    """How many instances fit on all of these hosts, where `counts` says how many fit on each. An affinity group must be
    on one host, so for it the largest count is the answer.
    """
    if spec.server_group is not None and spec.server_group.policy == "affinity":
        # The first member of an affinity group fixes the host of all.
        return int(counts.max(initial=0))
    return int(counts.sum())


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
