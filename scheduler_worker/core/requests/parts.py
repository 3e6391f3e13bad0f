"""The parts that are read out of a request. A part without a suffix belongs to the whole instance."""

from typing import NamedTuple


class Problem(NamedTuple):
    """Why the request is rejected."""

    field: str
    value: object
    reason: str


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


class Trait(NamedTuple):
    """A trait that the request requires, forbids or prefers, as `word` says."""

    suffix: str
    name: str
    word: str
    field: str
    weight: float = 0.0


def is_of_flavor(suffix: str) -> bool:
    """Groups of ports and volumes are named by their ids, with a blank, which no extra spec has in its suffix."""
    return " " not in suffix


class GroupPolicy(NamedTuple):
    policy: str


class SameSubtree(NamedTuple):
    suffixes: tuple[str, ...]
    field: str


class ForPlugins(NamedTuple):
    key: str
    value: str


class ImageProperty(NamedTuple):
    """A property of the image that plugins read."""

    key: str
    value: str


Part = (
    DefaultAmount
    | Resource
    | PreferredClass
    | Trait
    | GroupPolicy
    | SameSubtree
    | ForPlugins
    | ImageProperty
    | Problem
)
