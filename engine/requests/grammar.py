"""The grammar of keys about resources, traits and groups, in extra specs and in properties of images.

    resources:CLASS  resourcesN:CLASS  resources_NAME:CLASS    an amount; 0 takes the flavor's own amount away
    resources:CLASS = preferred, preferred:WEIGHT              hosts with an inventory of the class are better
    trait:TRAIT      traitN:TRAIT      trait_NAME:TRAIT        required, forbidden, preferred, preferred:WEIGHT
    group_policy                                               none, isolate
    same_subtree                                               suffixes of groups, with commas

Nova has this grammar, all but `preferred`. A suffix, N or _NAME, makes a granular group.
"""

import operator
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple

from engine.candidates.query import Nearness
from engine.flavors import RequestProblem
from engine.hosts import finite_number
from engine.inventories import CUSTOM, INTEGER_MAX, Vocabulary

# The parts of a request: one for each thing that its flavor, its extra specs or its image says. A part with a suffix
# belongs to the granular group with that suffix, all others to the whole instance.


class DefaultAmount(NamedTuple):
    """An amount that the flavor's sizes give. It counts unless an extra spec asks for the class."""

    resource: str
    amount: int


class Resource(NamedTuple):
    suffix: str
    name: str
    amount: int


class PreferredClass(NamedTuple):
    name: str
    weight: float


class AskedTrait(NamedTuple):
    """A trait that the request requires, forbids or prefers, as `word` says."""

    suffix: str
    name: str
    word: str
    field: str
    weight: float = 0.0


def is_of_flavor(suffix: str) -> bool:
    """Is this granular group asked for by the flavor? The groups of ports and volumes have a blank in their suffix,
    which no extra spec can have.
    """
    return " " not in suffix


class GranularPolicy(NamedTuple):
    policy: str


class AskedPolicy(NamedTuple):
    """The policy by which the hosts of this request are weighed."""

    policy: str


class SameSubtree(NamedTuple):
    suffixes: tuple[str, ...]
    field: str


class CellOfGuest(NamedTuple):
    """The group with this suffix is a NUMA cell of the guest."""

    suffix: str


class NearCells(NamedTuple):
    """The group with this suffix is a device, which gets a provider near a cell of the guest."""

    suffix: str
    nearness: Nearness


class ForPlugins(NamedTuple):
    key: str
    value: str


class ImageProperty(NamedTuple):
    """A property of the image that plugins read."""

    key: str
    value: str


RequestPart = (
    DefaultAmount
    | Resource
    | PreferredClass
    | AskedTrait
    | GranularPolicy
    | AskedPolicy
    | SameSubtree
    | CellOfGuest
    | NearCells
    | ForPlugins
    | ImageProperty
    | RequestProblem
)

GROUP_POLICY, SAME_SUBTREE = "group_policy", "same_subtree"
POLICIES = ("none", "isolate")
PREFERRED = "preferred"
WEIGHT_MAX = 1_000_000

_GROUPED = re.compile(r"(resources|trait)([a-zA-Z0-9_-]{1,64})?:(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)
_NUMBER = re.compile(r"[0-9]{1,10}", re.ASCII)
_WEIGHT = re.compile(r"-?[0-9]{1,7}(\.[0-9]{1,6})?", re.ASCII)


def read_grouped(field: str, key: str, value: str, vocabulary: Vocabulary) -> RequestPart | None:
    """Read a key such as `resources1:VCPU`, `trait:NAME` or `group_policy`; None if the key has another form."""
    if key == GROUP_POLICY:
        if value in POLICIES:
            return GranularPolicy(value)
        return RequestProblem(field, value, "a group policy is none or isolate")
    if key == SAME_SUBTREE:
        return _read_subtree(field, value)
    parts = _GROUPED.fullmatch(key)
    if parts is None:
        return None
    kind, suffix, name = parts.groups(default="")
    if kind == "resources":
        return _read_resource(field, suffix, name, value, vocabulary)
    return _read_trait(field, suffix, name, value, vocabulary)


def _read_subtree(field: str, value: str) -> SameSubtree | RequestProblem:
    suffixes = tuple([suffix.strip() for suffix in value.split(",")])
    if not all(suffixes):
        return RequestProblem(field, value, "it names suffixes of granular groups, with commas between them")
    return SameSubtree(suffixes, field)


def _read_resource(
    field: str, suffix: str, name: str, value: str, vocabulary: Vocabulary
) -> Resource | PreferredClass | RequestProblem:
    if not vocabulary.knows_class(name) or not _NAME.fullmatch(name):
        return RequestProblem(
            field, name, f"resource class {name!r} is neither a standard one nor starts with {CUSTOM}"
        )
    if value.partition(":")[0] == PREFERRED:
        weight = _weight_of(value)
        if suffix:
            return RequestProblem(
                field, value, "a class is preferred for the whole instance, not for a group"
            )
        if weight is None:
            return RequestProblem(field, value, _WEIGHT_REASON)
        return PreferredClass(name, weight)
    if not _NUMBER.fullmatch(value) or int(value) > INTEGER_MAX:
        return RequestProblem(
            field,
            value,
            f"an amount is a whole number from 0 to {INTEGER_MAX}, or preferred, or preferred:WEIGHT",
        )
    return Resource(suffix, name, int(value))


def _read_trait(
    field: str, suffix: str, name: str, value: str, vocabulary: Vocabulary
) -> AskedTrait | RequestProblem:
    if not vocabulary.knows_trait(name) or not _NAME.fullmatch(name):
        return RequestProblem(
            field, name, f"trait {name!r} is neither a standard one nor starts with {CUSTOM}"
        )
    if value in ("required", "forbidden"):
        return AskedTrait(suffix, name, value, field)
    if value.partition(":")[0] != PREFERRED:
        return RequestProblem(field, value, "a trait is required, forbidden, preferred, or preferred:WEIGHT")
    weight = _weight_of(value)
    if weight is None:
        return RequestProblem(field, value, _WEIGHT_REASON)
    return AskedTrait(suffix, name, PREFERRED, field, weight)


_WEIGHT_REASON = f"a weight is a number from -{WEIGHT_MAX} to {WEIGHT_MAX}, as in preferred:2.5"


def _weight_of(value: str) -> float | None:
    """The weight in a value such as `preferred:2`, 1 if the value names none; None if the weight is not valid."""
    _, colon, weight = value.partition(":")
    if not colon:
        return 1.0
    return float(weight) if _WEIGHT.fullmatch(weight) and abs(float(weight)) <= WEIGHT_MAX else None


# The values of `capabilities:` extra specs: an operator of Nova's grammar, and what it compares with.
#
#     >= 4      s== x86_64      <in> avx2      <all-in> aes avx2      <or> a <or> b      x86_64
#
# `=` means at least. A value without an operator must be equal. Operators without an `s` compare numbers. In a
# capability of several words, `<in>` and `<all-in>` look for whole words. In a capability of one word, they look for a part
# of that word.


_NUMERIC: Mapping[str, Callable[[float, float], bool]] = {
    "=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    ">=": operator.ge,
    "<=": operator.le,
}

_TEXTUAL: Mapping[str, Callable[[str, str], bool]] = {
    "s==": operator.eq,
    "s!=": operator.ne,
    "s<": operator.lt,
    "s<=": operator.le,
    "s>": operator.gt,
    "s>=": operator.ge,
}

_IN, _ALL_IN, _OR = "<in>", "<all-in>", "<or>"

OPERATORS = (*_NUMERIC, *_TEXTUAL, _IN, _ALL_IN, _OR)


class Demand(NamedTuple):
    """A request's demand on a capability: an operator, empty for plain equality, and the words after it."""

    operator: str
    words: tuple[str, ...]


def demand_of(value: str) -> Demand | str:
    """The demand that this value of an extra spec states; or, as a text, why the value is not valid."""
    words = value.split()
    if not words:
        return "there is nothing to compare with"
    first, rest = words[0], tuple(words[1:])
    if first not in OPERATORS and not first.startswith(("<", ">", "=", "!")):
        return Demand("", (value.strip(),))
    if first == _OR:
        return _alternatives(rest)
    problem = _problem_of(first, rest)
    return problem or Demand(first, rest)


def is_met(demand: Demand, capability: str) -> bool:
    """Does a host with this capability meet the demand?"""
    name, words = demand
    if name in _NUMERIC:
        has, asked = finite_number(capability), finite_number(words[0])
        return has is not None and asked is not None and _NUMERIC[name](has, asked)
    if name in _TEXTUAL:
        return _TEXTUAL[name](capability, words[0])
    if name in (_IN, _ALL_IN):
        own = capability.split()
        return all(word in (own if len(own) > 1 else capability) for word in words)
    # Plain equality, or one of several.
    return capability in words


def _problem_of(first: str, rest: tuple[str, ...]) -> str:
    """Why these words cannot follow the operator; empty if they can."""
    if first not in OPERATORS:
        return f"{first!r} is no operator: known are {' '.join(OPERATORS)}"
    if not rest:
        return f"nothing follows the operator {first!r}"
    if first != _ALL_IN and len(rest) > 1:
        return f"{first!r} compares with one word, and {len(rest)} follow"
    if first in _NUMERIC and finite_number(rest[0]) is None:
        return f"{first!r} compares numbers, and {rest[0]!r} is none"
    return ""


def _alternatives(words: tuple[str, ...]) -> Demand | str:
    """The demand for one of several values, from the words after the first `<or>` in `<or> a <or> b`; or why it is wrong."""
    values, between = words[::2], words[1::2]
    if len(between) >= len(values) or any(word != _OR for word in between):
        return f"{_OR} stands before each of the values: {_OR} a {_OR} b"
    return Demand(_OR, values)
