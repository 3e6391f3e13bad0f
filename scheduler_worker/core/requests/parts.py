"""The parts of a request: one for each thing that its flavor, its extra specs or its image says. A part with a suffix
belongs to the granular group with that suffix, all others to the whole instance.
"""

from typing import NamedTuple

from placement_worker.core.candidates.near_slots import Nearness


class RequestProblem(NamedTuple):
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
    | SameSubtree
    | CellOfGuest
    | NearCells
    | ForPlugins
    | ImageProperty
    | RequestProblem
)
