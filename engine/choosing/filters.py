"""The filters, but for those that decide by aggregates."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from operator import eq, ge, gt, le, lt, ne
from typing import NamedTuple

import numpy as np
from msgspec import structs

from engine.candidates.columns import Flags
from engine.choosing.compounds import Verdict
from engine.choosing.explaining import (
    shortfalls_of,
    shortfalls_of_compound,
    traits_at,
    why_no_room,
    why_no_traits,
)
from engine.choosing.hosts import Hosts, OneHost
from engine.choosing.plugins import Filter, HostChange
from engine.hosts import UNLIMITED, HostState, host_in_cell, least_of, names_clash, why_down, why_not_enabled
from engine.inventories import PlaceRule, ServerGroup
from engine.picture.columns import HostProfile, PictureColumns
from engine.places import domain_of
from engine.refusals import why_no_member
from engine.requests.grammar import Demand, demand_of, is_met
from engine.requests.spec import InstanceSpec, Needs, needs_of


class AskedHosts(Filter):
    """The host is one of those that the request names, and none that it excludes; for a move, it is of the instance's cell.

    A name may have a cell before it (`c1/h1`). Without one, it means no host if several cells have it.
    """

    name = "asked hosts"
    reads = ("hosts", "ignore_hosts", "cell")
    woken_by = (HostChange.FACTS,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        passed = hosts.everyone()
        if spec.hosts:
            # A name counts only inside its cell: without a cell, one that several cells have means none of their hosts.
            clear = [name for name in spec.hosts if spec.cell or len(hosts.cells_named(name)) <= 1]
            passed = hosts.cached(Hosts.named, tuple(clear), is_steady=True)
        if spec.cell:
            passed = passed & hosts.in_cell(spec.cell)
        if spec.ignore_hosts:
            passed = passed & ~hosts.cached(Hosts.named, spec.ignore_hosts, is_steady=True)
        return passed

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        if spec.cell and host.cell != spec.cell:
            return f"is in cell {host.cell!r}: an instance moves only within its cell {spec.cell!r}"
        name = host.name.lower()
        if {name, host_in_cell(host.cell, name)} & {*spec.ignore_hosts}:
            return "is to be ignored"
        if name in spec.hosts and len(cells := host.hosts.cells_named(name)) > 1:
            return names_clash(name, cells)
        return "is none of the hosts that were asked for"


class Affinity(Filter):
    """The host has the members of the affinity group, if the group has any."""

    name = "affinity"
    reads = ("server_group",)
    woken_by = (HostChange.USAGE,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        group = spec.server_group
        if group is None or group.policy != "affinity" or not hosts.has_members(group):
            return hosts.everyone()
        return hosts.members(group) > 0

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        assert spec.server_group is not None, "only members of a group are refused"
        first = host.first_member(spec.server_group)
        where = "is on another host" if first is None else f"is with instance {first[0]} on {first[1]}"
        return f"server group {spec.server_group.id} (affinity) {where}"


# The host has fewer members of the anti-affinity group than it may have.


# A reason names so many of the members on the host.
NAMED_MAX = 3


class AntiAffinity(Filter):
    name = "anti-affinity"
    is_per_instance = True
    reads = ("server_group",)
    woken_by = (HostChange.USAGE,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        group = spec.server_group
        if group is None or group.policy != "anti-affinity":
            return hosts.everyone()
        return hosts.members(group) < group.max_per_host

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        group = spec.server_group
        assert group is not None, "only members of a group are refused"
        there = host.members_count(group)
        members = ", ".join(map(str, host.members(group)[:NAMED_MAX])) or "chosen just now"
        return f"has {there} members of server group {group.id} (anti-affinity, at most {group.max_per_host}): {members}"


class GroupRules(Filter):
    """The server group's rules for domains allow one more member in the host's domains."""

    name = "group rules"
    is_per_instance = True
    reads = ("server_group", "mover")
    woken_by = (HostChange.USAGE, HostChange.PROVIDERS)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        passed, group = hosts.everyone(), spec.server_group
        if group is not None:
            for rule in group.hard_rules:
                passed = passed & _allowed(hosts, spec, group, rule)
        return passed

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        group = spec.server_group
        assert group is not None, "only members of a group are refused"
        rule = next(each for each in group.hard_rules if not _allowed(host.hosts, spec, group, each)[host.at])
        there = host.hosts.members_inside(group, rule.level, spec.mover)[host.at]
        return why_no_member(group.id, rule, domain_of(host.place, rule.level), int(there))


def _allowed(hosts: Hosts, spec: InstanceSpec, group: ServerGroup, rule: PlaceRule) -> Flags:
    inside = hosts.members_inside(group, rule.level, spec.mover)
    if rule.policy == "anti-affinity":
        fits = inside < rule.max_members
    else:
        fits = inside == hosts.members_in_all(group, spec.mover) + hosts.taken
    return fits & (hosts.of(hosts.columns.domain(rule.level)) > 0)


class AskedPlace(Filter):
    """The host is in the domain that is asked for."""

    name = "place"
    reads = ("place",)
    woken_by = (HostChange.PROVIDERS,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        return hosts.within(spec.place) if spec.place else hosts.everyone()

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        return f"asked {spec.place!r}, " + (f"is at {host.place!r}" if host.place else "and has no place")


class AvailabilityZone(Filter):
    """The host is in the zone that is asked for."""

    name = "availability zone"
    reads = ("availability_zone",)
    woken_by = (HostChange.FACTS, HostChange.AGGREGATES, HostChange.PROVIDERS)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        return hosts.in_zone(spec.availability_zone) if spec.availability_zone else hosts.everyone()

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        return f"asked {spec.availability_zone!r}, is in {host.zone!r}"


class BareMetalFilter(Filter):
    """Keeps bare-metal nodes for the requests that want one. An instance takes a node as a whole, so only a request that
    asks for the node's resource class gets it.

    A request with ports, which only nodes read, gets a node or nothing; and so does one with an image or a config drive whose
    flavor asks for classes of nodes alone.
    """

    name = "bare metal"
    reads = ("classes", "is_for_nodes")
    woken_by = (HostChange.FACTS, HostChange.PROVIDERS)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if spec.is_for_nodes:
            return hosts.nodes & hosts.stocked_with_any(spec.classes)
        return (
            ~hosts.nodes | hosts.stocked_with_any(spec.classes) if hosts.some_are_nodes else hosts.everyone()
        )

    def reason(self, host: OneHost, _spec: InstanceSpec) -> str:
        if not host.is_node:
            return "is no bare-metal node, and the request needs one: for its image, config drive or ports, or as it prefers a class of nodes"
        if not host.classes:
            return "is a bare-metal node without a resource class"
        return f"is a bare-metal node, only for requests that ask for {' or '.join(host.classes)}"


class BySearch(Filter):
    """By the search of compound hosts alone. `search` removes a host whose search was cut, so that nobody knows whether it has
    room. `ways` removes a host of which plugins allow none of the ways that were found (compounds.py).
    """

    reads = Needs.__struct_fields__
    woken_by = (HostChange.PROVIDERS, HostChange.USAGE)

    def __init__(self, name: str, verdict: Verdict, words: str) -> None:
        """`words` is the reason, with a place for the number that the search gives."""
        self.name = name
        self.verdict = verdict
        self._words = words

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.everyone()

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        found = host.compounds.found(needs_of(spec))
        return self._words.format((found.cut if self.verdict is Verdict.CUT else found.struck)[host.row])


CUT = BySearch(
    "search",
    Verdict.CUT,
    "its search was cut after {} steps: it may have what is asked, to find out would cost too much",
)
STRUCK = BySearch(
    "ways",
    Verdict.STRUCK,
    "has room, but plugins allow none of the ways to take it that were found, {} in all",
)


class Capacity(Filter):
    """The host has room: enough of each class is free, within the limits of its inventory, and each granular group finds a
    provider.
    """

    name = "capacity"
    is_per_instance = True
    reads = Needs.__struct_fields__
    woken_by = (HostChange.PROVIDERS, HostChange.USAGE)
    verdict = Verdict.NO_ROOM

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        passed, is_searched = hosts.everyone(), hosts.some_are_searched(spec)
        for number, (resource, amount) in enumerate(spec.amounts):
            giving = hosts.giving(resource, amount)
            if is_searched and (shared := hosts.may_share(resource, amount)) is not None:
                giving = giving | shared
            passed = passed & giving if number else giving
        if is_searched and hosts.take_more:
            # Each is searched when an instance takes it.
            return passed | hosts.are_searched(has_groups=bool(spec.groups))
        return passed

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        if spec.groups:
            return why_no_room(host, needs_of(spec).of_room_alone())
        if host.is_compound:
            # Sharing providers have room for each class, and the host's own tree for none.
            return (
                shortfalls_of_compound(host, spec.amounts)
                or "all of it would be shared with it, and nothing its own"
            )
        return "; ".join(
            said
            for resource, amount in spec.amounts
            for said in shortfalls_of(resource, amount, host.bounds(resource), host.free(resource))
        )


class CellUp(Filter):
    """The host's cell is not down. While none is, this costs nothing."""

    name = "cell up"
    woken_by = (HostChange.LIFE,)

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        down = hosts.columns.cells_down
        if not down:
            return hosts.everyone()
        passed: Flags = ~np.isin(hosts.of(hosts.columns.cell), list(down))
        return passed

    def reason(self, host: OneHost, _spec: InstanceSpec) -> str:
        return f"its cell {host.cell!r} is down: {host.why_cell_is_down}"


# The host has the capabilities that extra specs `capabilities:KEY` ask for, compared by Nova's operators (engine/requests/grammar.py).


SCOPE = "capabilities"


class ComputeCapabilities(Filter):
    name = "capabilities"
    reads = ("extra_specs",)
    woken_by = (HostChange.FACTS,)
    scopes = (SCOPE,)

    def problem_with(self, key: str, value: str) -> str:
        if not key.partition(":")[2]:
            return "it names no capability: capabilities:NAME"
        demand = demand_of(value)
        return demand if isinstance(demand, str) else ""

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        asked = list(_asked(spec)) if spec.extra_specs else ()
        if not asked:
            return hosts.everyone()

        def judge(profile: HostProfile) -> bool:
            told = capabilities_of(profile)
            return all(key in told and is_met(demand, told[key]) for key, demand in asked)

        return hosts.judged(judge)

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        told = capabilities_of(host.profile)
        said = []
        for key, demand in _asked(spec):
            if key not in told:
                said.append(f"tells no capability {key}")
            elif not is_met(demand, told[key]):
                said.append(
                    f"{key} asked {' '.join((demand.operator, *demand.words)).strip()!r}, is {told[key]!r}"
                )
        return "; ".join(said)


def capabilities_of(profile: HostProfile) -> dict[str, str]:
    """The host's own capabilities, and its hypervisor."""
    return {
        "hypervisor_type": profile.hypervisor_type,
        "hypervisor_version": str(profile.hypervisor_version),
        **dict(profile.capabilities),
    }


def _asked(spec: InstanceSpec) -> Iterator[tuple[str, Demand]]:
    for key, value in spec.extra_specs:
        scope, _, name = key.partition(":")
        if scope == SCOPE:
            demand = demand_of(value)
            assert isinstance(demand, Demand), "the reader of requests has refused any other value"
            yield name, demand


class DifferentHost(Filter):
    """When the request was read, the host had none of the instances that the request wants to be apart from."""

    name = "different host"
    reads = ("different_hosts",)
    woken_by = (HostChange.FACTS,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        return ~hosts.named(spec.different_hosts) if spec.different_hosts else hosts.everyone()

    def reason(self, _host: OneHost, _spec: InstanceSpec) -> str:
        return "has an instance that the request wants to be apart from"


class Flagged(Filter):
    """A flag of the host decides alone: the request is not asked."""

    def __init__(
        self,
        name: str,
        column: Callable[[PictureColumns], Flags],
        why_not: Callable[[OneHost], str],
        *woken_by: HostChange,
    ) -> None:
        self.name = name
        self.woken_by = woken_by
        self._column = column
        self._why_not = why_not

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        return hosts.of(self._column(hosts.columns))

    def reason(self, host: OneHost, _spec: InstanceSpec) -> str:
        return self._why_not(host)


def _told(why: Callable[[HostState], str], otherwise: str) -> Callable[[OneHost], str]:
    """A function that says why a host does not pass: what `why` says of its state in the host registry, or the text
    `otherwise` if that is nothing.
    """

    def why_not(host: OneHost) -> str:
        state = host.registered
        return (why(state) if state else "") or otherwise

    return why_not


# In the order of the funnel.
FLAGGED = (
    Flagged(
        "registered",
        lambda columns: columns.registered,
        lambda _: "no report of it has reached the registry yet",
        HostChange.FACTS,
    ),
    Flagged(
        "up",
        lambda columns: columns.up,
        _told(why_down, "is down: its heartbeats have stopped"),
        HostChange.FACTS,
        HostChange.LIFE,
    ),
    Flagged(
        "enabled",
        lambda columns: columns.enabled,
        _told(why_not_enabled, "its mode is not known yet"),
        HostChange.ENABLED,
        HostChange.FACTS,
    ),
    Flagged(
        "inventory",
        lambda columns: columns.provided,
        lambda _: "placement has no provider of it",
        HostChange.PROVIDERS,
    ),
    Flagged(
        "cell",
        lambda columns: columns.consistent,
        lambda host: f"placement has it in cell {host.cell!r}, the registry in another one",
        HostChange.FACTS,
        HostChange.PROVIDERS,
    ),
)

# The host runs instances of the image's architecture, hypervisor type and vm mode, and has the hypervisor version that the
# image asks for.


# The names that images have for a property, the older one last.
_NAMES: dict[str, str] = {
    "hw_architecture": "architecture",
    "architecture": "architecture",
    "img_hv_type": "hypervisor_type",
    "hypervisor_type": "hypervisor_type",
    "hw_vm_mode": "vm_mode",
    "vm_mode": "vm_mode",
    "img_hv_requested_version": "version",
    "hypervisor_version_requires": "version",
}
_ARCHITECTURES = {"amd64": "x86_64", "x64": "x86_64", "i386": "i686", "i486": "i686", "i586": "i686"}
_COMPARED: Mapping[str, Callable[[int, int], bool]] = {
    "<=": le,
    ">=": ge,
    "==": eq,
    "!=": ne,
    "<": lt,
    ">": gt,
    "=": eq,
}
_CONDITION = re.compile(r"\s*(<=|>=|==|!=|<|>|=)\s*(\d{1,4}(?:\.\d{1,3}){0,2})\s*", re.ASCII)


class ImageCondition(NamedTuple):
    """One comparison with the hypervisor's version, which is a number as hosts report it (1002003 for 1.2.3)."""

    operator: str
    version: int


class ImageProperties(Filter):
    name = "image properties"
    reads = ("image_properties",)
    woken_by = (HostChange.FACTS,)
    image_keys = tuple(_NAMES)

    def problem_with(self, key: str, value: str) -> str:
        if _NAMES[key] == "version" and value and conditions_of(value) is None:
            return f"is no condition of a version, such as >=6.0,<8; known are {' '.join(_COMPARED)}"
        return ""

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        asked = asked_by(spec.image_properties) if spec.image_properties else {}
        return hosts.judged(lambda profile: not _lacks(profile, asked)) if asked else hosts.everyone()

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        return "; ".join(_lacks(host.profile, asked_by(spec.image_properties)))


def asked_by(properties: Iterable[tuple[str, str]]) -> dict[str, str]:
    """What these properties of an image ask of a host, each under one name: a field of `Supported`, or `version` for
    the hypervisor's version. If a property is given by its older and its newer name, the newer one counts.
    """
    given = dict(properties)
    return {_NAMES[key]: given[key] for key in reversed(_NAMES) if given.get(key)}


def conditions_of(value: str) -> tuple[ImageCondition, ...] | None:
    """The conditions of a version, such as `>=6.0,<8`; None if they cannot be read."""
    found = [_CONDITION.fullmatch(part) for part in value.split(",")]
    if any(each is None for each in found):
        return None
    return tuple(ImageCondition(each[1], _number_of(each[2])) for each in found if each is not None)


def _lacks(profile: HostProfile, asked: Mapping[str, str]) -> list[str]:
    wanted = {name: _plain(name, value) for name, value in asked.items() if name != "version"}
    said = []
    if wanted and not any(
        all(getattr(each, name).lower() in ("", value) for name, value in wanted.items())
        for each in profile.supports
    ):
        runs = ", ".join(
            "/".join(part or "any" for part in structs.astuple(each)) for each in profile.supports
        )
        said.append(f"asked {'/'.join(wanted.values())}, runs {runs or 'nothing that it tells'}")
    if "version" in asked:
        conditions = conditions_of(asked["version"])
        assert conditions is not None, "the reader of requests has refused any other value"
        version = profile.hypervisor_version
        if not all(_COMPARED[each.operator](version, each.version) for each in conditions):
            said.append(f"asked hypervisor version {asked['version']}, has {_text_of(version)}")
    return said


def _plain(name: str, value: str) -> str:
    """The value in one spelling: in lower case, and with one name for each architecture."""
    lowered = value.lower()
    return _ARCHITECTURES.get(lowered, lowered) if name == "architecture" else lowered


def _number_of(text: str) -> int:
    """The version as one number, as hosts report it: 1002003 for 1.2.3."""
    major, minor, micro = (*map(int, text.split(".")), 0, 0)[:3]
    return (major * 1000 + minor) * 1000 + micro


def _text_of(version: int) -> str:
    return f"{version // 1_000_000}.{version // 1000 % 1000}.{version % 1000}"


class LimitFilter(Filter):
    """The host has fewer instances, or fewer builds and the like under way, than it may have."""

    is_per_instance = True
    woken_by = (HostChange.FACTS, HostChange.USAGE, HostChange.AGGREGATES, HostChange.PROVIDERS)

    def __init__(self, name: str, column: str, words: str, key: str, maximum: int) -> None:
        """`column` is what is counted on a host, for instance its instances, and `maximum` the most that it may have: 0 means no
        limit. Aggregates set another limit for their hosts by the metadata key `key`.
        """
        self.name = name
        self._column = column
        self._words = words
        self._key = key
        self._maximum = maximum

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        if not self._maximum and self._key not in hosts.metadata.keys:
            return hosts.everyone()
        return hosts.have_fewer(self._column, hosts.number(self._key, self._maximum or UNLIMITED))

    def reason(self, host: OneHost, _spec: InstanceSpec) -> str:
        maximum = least_of(host.aggregates, self._key, self._maximum)
        return f"has {host.busy(self._column)} {self._words}, at most {maximum:g}"


class MetricsFilter(Filter):
    """The host reports all metrics that the metrics weigher adds up: a host that is not measured cannot be compared."""

    name = "metrics"
    woken_by = (HostChange.METRICS,)

    def __init__(self, names: tuple[str, ...]) -> None:
        self.names = names

    def passes(self, hosts: Hosts, _spec: InstanceSpec) -> Flags:
        passed = hosts.everyone()
        for name in self.names:
            passed = passed & ~np.isnan(hosts.metric(name))
        return passed

    def reason(self, host: OneHost, _spec: InstanceSpec) -> str:
        return f"tells no metric {', '.join(name for name in self.names if np.isnan(host.metric(name)))}"


class SameHost(Filter):
    """When the request was read, the host had one of the instances that the request wants to be together with."""

    name = "same host"
    reads = ("same_hosts",)
    woken_by = (HostChange.FACTS,)

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if spec.same_hosts is None:
            return np.zeros(len(hosts), dtype=np.bool_)
        return hosts.named(spec.same_hosts) if spec.same_hosts else hosts.everyone()

    def reason(self, _host: OneHost, spec: InstanceSpec) -> str:
        if spec.same_hosts is None:
            return "the instances to be together with have no host"
        return f"asked the host of another instance: {', '.join(spec.same_hosts)}"


class TraitsFilter(Filter):
    """A compound host fails this filter if it has room for the amounts, but only on providers without these traits. If it
    has no room at all, the filter `Capacity` removes it.
    """

    name = "traits"
    reads = Needs.__struct_fields__
    woken_by = (HostChange.PROVIDERS, HostChange.USAGE)
    verdict = Verdict.NO_TRAITS

    def passes(self, hosts: Hosts, spec: InstanceSpec) -> Flags:
        if not spec.required and not spec.forbidden and not spec.groups:
            return hosts.everyone()
        # Amounts do not count here.
        of_groups = tuple([group.required for group in spec.groups])
        return hosts.cached(_may_pass, spec.required, spec.forbidden, of_groups, is_steady=True)

    def reason(self, host: OneHost, spec: InstanceSpec) -> str:
        if spec.groups:
            return why_no_traits(host, needs_of(spec))
        if host.is_compound:
            return self._reason_of_compound(host, spec)
        lacks = [trait for trait in spec.required if not host.has_trait(trait)]
        has = [trait for trait in spec.forbidden if host.has_trait(trait)]
        said = [f"lacks {', '.join(lacks)}"] * bool(lacks) + [f"has forbidden {', '.join(has)}"] * bool(has)
        return "; ".join(said)

    def _reason_of_compound(self, host: OneHost, spec: InstanceSpec) -> str:
        known = traits_at(host)
        if lacks := [trait for trait in spec.required if trait not in known]:
            return f"lacks {', '.join(lacks)}"
        asked = (*spec.required, *(f"not {trait}" for trait in spec.forbidden))
        return f"has room, but not at providers that together are {', '.join(asked)}"


def _may_pass(
    hosts: Hosts,
    required: tuple[str, ...],
    forbidden: tuple[str, ...],
    of_groups: tuple[tuple[str, ...], ...],
) -> Flags:
    """The hosts that may have the traits: `of_groups` are those of each granular group. A host that must still be searched
    passes if its providers have them all.
    """
    may_have = hosts.may_have_all((*required, *chain.from_iterable(of_groups)))
    has = hosts.with_all(required)
    if forbidden:
        has = has & ~hosts.with_any(forbidden)
    return np.where(hosts.are_searched(has_groups=bool(of_groups)), may_have, has)
