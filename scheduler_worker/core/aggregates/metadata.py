"""The keys of an aggregate's metadata that schedulers read, and the check of their values.

Any other key is the operator's own: requests may ask for its value by `aggregate_instance_extra_specs:KEY`.
"""

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from bus.messages.aggregates import Aggregate

ZONE = "availability_zone"
# Several keys with this beginning may name more projects than one value has room for.
TENANTS = "filter_tenant_id"
FLAVORS = "instance_type"
INSTANCES_MAX = "max_instances_per_host"
IO_OPS_MAX = "max_io_ops_per_host"
TRAIT = "trait:"
MULTIPLIER = "_weight_multiplier"

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
    if key.endswith(MULTIPLIER):
        return _why_no_multiplier(key, value, multipliers)
    return _why_no_limit(value) if key in (INSTANCES_MAX, IO_OPS_MAX) else _why_no_trait(key, value)


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


def least_of(key: str, aggregates: Iterable[Aggregate], otherwise: float) -> float:
    """The number under this key in the metadata, the lowest if several aggregates have the key; `otherwise` if none has."""
    return min((float(each.metadata[key]) for each in aggregates if key in each.metadata), default=otherwise)


def tenants_of(aggregate: Aggregate) -> frozenset[str]:
    """The projects that this aggregate is reserved for; empty if it is open to all."""
    return frozenset().union(
        *(items_of(value) for key, value in aggregate.metadata.items() if key.startswith(TENANTS))
    )
