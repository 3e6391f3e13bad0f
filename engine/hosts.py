"""Hosts as they describe themselves and as the registry has them, their modes, and the metadata of their aggregates."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from engine.inventories import AggregateId, Counter, Label, Moment, Natural, ProviderId, Value
from engine.places import Place

# Kinds of hosts. The empty kind is a hypervisor that runs virtual machines.
NODE = "ironic"

# The projects that may use a node: its owner's and its lessee's. Empty: all projects.
Projects = Annotated[tuple[Label, ...], Meta(max_length=10)]


class Supported(Value, frozen=True):
    """A kind of instances that a host can run; an empty field stands for any."""

    architecture: Label = ""
    hypervisor_type: Label = ""
    vm_mode: Label = ""


# A key has parts, joined by colons (cpu_info:model); a value with several words is a set of words.
Capabilities = Annotated[dict[Label, Annotated[str, Meta(max_length=1024)]], Meta(max_length=64)]


class HostDescription(Value, frozen=True, kw_only=True):
    """A host as it describes itself. `id` is its root provider."""

    id: ProviderId
    name: Label
    instances: Natural = 0
    # Builds, migrations and similar work in progress.
    io_ops: Natural = 0
    availability_zone: Label = ""
    hypervisor_type: Label = ""
    hypervisor_version: Natural = 0
    kind: Label = ""
    projects: Projects = ()
    supports: Annotated[tuple[Supported, ...], Meta(max_length=64)] = ()
    capabilities: Capabilities = {}
    # Builds that failed there since the last one that succeeded.
    failed_builds: Natural = 0
    # Why placement has an older state of it: it has refused the host's last report, or to reshape the host.
    report_refused: Label = ""


class HostFacts(HostDescription, frozen=True):
    """A host in a report (`host.state`). If it has an `epoch` and a `sequence` of its own, these replace the report's.

    `is_gone`: the host does not exist any more, such as a node that Ironic has deleted. The schedulers forget it.
    """

    epoch: Counter = 0
    sequence: Counter = 0
    is_gone: bool = False


# up: it may be used while its heartbeats arrive. draining: nothing new is built there; its instances stay. down: as if its
# heartbeats had stopped. dead: as down, and it is certain that nothing runs there, so nobody waits for it to clean up.
HostMode = Literal["up", "down", "draining", "dead"]


class HostSetting(Value, frozen=True, kw_only=True):
    """The mode of a host. An operator sets it, or the scheduler after too many failed builds there.

    `number` rises with each setting of the host.
    """

    mode: HostMode = "up"
    reason: Label = ""
    by: Label = ""
    at: Moment | None = None
    number: Counter = 0


class HostState(HostDescription, frozen=True, kw_only=True):
    """A host in the schedulers' registry. `sequence` grows with each write to the registry.

    `report_epoch` and `report_sequence` identify the host's last report.
    """

    cell: Label
    up: bool
    setting: HostSetting = HostSetting()
    # The number of the setting that its cell has been told.
    told: Counter = 0
    # It was dead, and has not yet confirmed that nothing foreign is left on it.
    must_clean: bool = False
    heard_at: Moment | None = None
    # When it was last heard, if a scheduler has found it silent; schedulers that start go by it.
    silent_since: Moment | None = None
    sequence: Counter = 0
    report_epoch: Counter = 0
    report_sequence: Counter = 0
    # Only answers have these: other cells that have a host of this name; its place, which placement has with its root provider; the names of
    # its aggregates; and whether its cell does not hear it either. All conductors that can work say so then, and there is one.
    also_in: tuple[Label, ...] = ()
    place: Place = ""
    aggregates: tuple[Label, ...] = ()
    silent_in_cell: bool = False


def host_in_cell(cell: str, name: str) -> str:
    """How one names a host of this cell where a host of another cell may have the same name. Without a cell, it is the name."""
    return f"{cell}/{name}" if cell else name


def cell_and_name(host: str) -> tuple[str, str]:
    """The cell and the name of a host that may be named with its cell (`c1/h1`); without one, the cell is empty."""
    cell, slash, name = host.partition("/")
    return (cell, name) if slash and cell and name else ("", host)


def names_clash(name: str, cells: Sequence[str]) -> str:
    """Why this name does not say which host is meant: hosts of several cells have it."""
    as_words = [host_in_cell(cell, name) for cell in cells]
    return f"hosts of cells {' and '.join(cells)} have this name: give one as {' or '.join(as_words)}"


def why_ambiguous(name: str, hosts: Sequence["HostState"]) -> str:
    """Why this name does not say which of these hosts is meant."""
    cells = sorted({host.cell for host in hosts})
    if len(cells) == len(hosts):
        return names_clash(name, cells)
    return f"{len(hosts)} hosts have this name: give the id {' or '.join(str(host.id) for host in hosts)}"


MetadataKey = Annotated[str, Meta(min_length=1, max_length=255)]

MetadataValue = Annotated[str, Meta(max_length=255)]


class Aggregate(Value, frozen=True):
    """An aggregate without its members. `sequence` orders its states: the time of the write in microseconds, so that an
    aggregate that was deleted and created again is later than before.
    """

    id: AggregateId
    name: Label
    metadata: dict[MetadataKey, MetadataValue] = {}
    sequence: Counter = 0


# Modes in which a host counts as down, whether its heartbeats arrive or not.
DOWN = ("down", "dead")


def why_down(host: HostState) -> str:
    """Why the host counts as down even if its heartbeats arrive; empty if only the heartbeats count."""
    if host.setting.mode in DOWN:
        return ("is dead" if host.setting.mode == "dead" else "is set down") + _because(host)
    return "was dead, and has not confirmed yet that it has cleaned up" if host.must_clean else ""


def why_not_enabled(host: HostState) -> str:
    """Why nothing new is built on the host; empty if that is allowed."""
    if host.setting.mode == "draining":
        return "is draining" + _because(host)
    return why_down(host) if host.setting.mode in DOWN else ""


def _because(host: HostState) -> str:
    return f": {host.setting.reason or 'no reason given'}"


# The keys of an aggregate's metadata that schedulers read, and the check of their values. Any other key is the operator's own:
# requests may ask for its value by `aggregate_instance_extra_specs:KEY`.

ZONE = "availability_zone"
# Several keys with this beginning may name more projects than one value has room for.
TENANTS = "filter_tenant_id"
FLAVORS = "instance_type"
INSTANCES_MAX = "max_instances_per_host"
IO_OPS_MAX = "max_io_ops_per_host"
TRAIT = "trait:"
MULTIPLIER = "_weight_multiplier"
# A flavor names the policy by an extra spec of this name, too.
POLICY = "moor:policy"
# spread: the host with the most free amounts is the best. fill: the one with the least. fit: the one that loses the least room for
# the shapes that this cloud is usually asked for.
POLICIES = ("spread", "fill", "fit")

LIMIT_MAX = 1_000_000
# Properties of images that only aggregates are chosen by.
ONLY_OF_AGGREGATES = ("os_type", "os_distro", "os_version", "os_edition")
# A number of instances that no host has.
UNLIMITED = 2**31 - 1
# The scores of hosts have room for this much from each weigher.
MULTIPLIER_MAX = 100_000.0
_WHOLE = re.compile(r"[0-9]{1,7}", re.ASCII)
_TRAIT = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)


class AggregateProblem(NamedTuple):
    field: str
    value: str
    reason: str


def items_of(value: str) -> frozenset[str]:
    """The items of a value that is a list with commas."""
    return frozenset(item for each in value.split(",") if (item := each.strip()))


def problem_of(metadata: Mapping[str, str], multipliers: Collection[str]) -> AggregateProblem | None:
    """The first value that no scheduler could follow. `multipliers` are the keys of the active weighers."""
    for key, value in metadata.items():
        reason = _why_wrong(key, value, multipliers)
        if reason:
            return AggregateProblem(f"metadata.{key}", value, reason)
    return None


def _why_wrong(key: str, value: str, multipliers: Collection[str]) -> str:
    if key == ZONE:
        return (
            ""
            if value and value.strip() == value
            else "a zone's name is not empty and has no blanks around it"
        )
    if key.startswith(TENANTS) or key == FLAVORS:
        listed = "flavors" if key == FLAVORS else "projects"
        return "" if items_of(value) else f"it lists {listed}, separated by commas, and names none"
    if key == POLICY:
        return why_no_policy(value)
    if key.endswith(MULTIPLIER):
        return _why_no_multiplier(key, value, multipliers)
    return _why_no_limit(value) if key in (INSTANCES_MAX, IO_OPS_MAX) else _why_no_trait(key, value)


def why_no_policy(value: str) -> str:
    return "" if value in POLICIES else f"a policy is {', '.join(POLICIES[:-1])} or {POLICIES[-1]}"


def _why_no_limit(value: str) -> str:
    is_limit = _WHOLE.fullmatch(value) and 1 <= int(value) <= LIMIT_MAX
    return "" if is_limit else f"a limit is a whole number from 1 to {LIMIT_MAX}"


def _why_no_multiplier(key: str, value: str, multipliers: Collection[str]) -> str:
    if key not in multipliers:
        return f"no weigher has this multiplier; there are {', '.join(sorted(multipliers))}"
    number = finite_number(value)
    if number is not None and abs(number) <= MULTIPLIER_MAX:
        return ""
    return f"a multiplier is a number from {-MULTIPLIER_MAX:g} to {MULTIPLIER_MAX:g}"


def _why_no_trait(key: str, value: str) -> str:
    if not key.startswith(TRAIT):
        return ""
    if not _TRAIT.fullmatch(key.removeprefix(TRAIT)):
        return "the key is trait:NAME, with a trait's name in capitals"
    return "" if value == "required" else "the only value is required"


def finite_number(text: str) -> float | None:
    """The number that this text states; None if the text is not a finite number."""
    try:
        number = float(text)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def value_of(key: str, aggregates: Iterable[Aggregate]) -> str:
    """The value of this key; of several, the one of the aggregate whose name is first. Empty without any."""
    values = [(each.name, each.metadata[key]) for each in aggregates if key in each.metadata]
    return min(values)[1] if values else ""


def least_of(aggregates: Iterable[Aggregate], key: str, otherwise: float) -> float:
    """The number under this key in the metadata, the lowest if several aggregates have one; `otherwise` if none has.

    A cloud that we did not make may have anything there: a text that is no number counts as none, and a large number as the
    largest that we allow.
    """
    most = MULTIPLIER_MAX if key.endswith(MULTIPLIER) else LIMIT_MAX
    found = [finite_number(each.metadata[key]) for each in aggregates if key in each.metadata]
    return min([max(-most, min(number, most)) for number in found if number is not None], default=otherwise)


def tenants_of(aggregate: Aggregate) -> frozenset[str]:
    """The projects that this aggregate is reserved for; empty if it is open to all."""
    return frozenset().union(
        *(items_of(value) for key, value in aggregate.metadata.items() if key.startswith(TENANTS))
    )
