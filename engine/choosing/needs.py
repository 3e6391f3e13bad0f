"""The demands of a spec on providers, and the query for candidates that follows from it."""

import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol

from engine.candidates.near_slots import Nearness
from engine.candidates.provider_index import ProviderIndex
from engine.candidates.query import UNSUFFIXED, CandidatesQuery, Group, Preferred
from engine.candidates.ways import TreeWay
from engine.choosing.pools import ProviderRoom
from engine.hosts import finite_number
from engine.requests.spec import GranularGroup, InstanceSpec, NamedWeights


class Needs(NamedTuple):
    """The fields of a spec that say what providers must have. Equal needs have the same result of a search."""

    amounts: tuple[tuple[str, int], ...]
    required: tuple[str, ...] = ()
    forbidden: tuple[str, ...] = ()
    preferred: NamedWeights = ()
    groups: tuple[GranularGroup, ...] = ()
    isolates: bool = False
    same_subtree: tuple[tuple[str, ...], ...] = ()
    cells: tuple[str, ...] = ()
    near: tuple[tuple[str, Nearness], ...] = ()

    @property
    def outside_of_groups(self) -> tuple[tuple[str, int], ...]:
        """The amounts that granular groups do not ask for."""
        if not self.groups:
            return self.amounts
        left = dict(self.amounts)
        for group in self.groups:
            for resource, amount in group.amounts:
                left[resource] -= amount
        return tuple([(resource, amount) for resource, amount in left.items() if amount])

    @property
    def prefers_some(self) -> bool:
        """Does the request prefer traits, so that one way to take its amounts may be worth more than another?"""
        return bool(self.preferred) or any(group.preferred for group in self.groups)

    def of_room_alone(self) -> "Needs":
        """These needs without traits. Granular groups that ask for no amounts are left out. So are the `same_subtree`
        conditions that name such a group: without its traits the group could be at the root, and every provider is
        below that.
        """
        if not self.groups:
            return Needs(self.amounts)
        groups = tuple([GranularGroup(group.suffix, group.amounts) for group in self.groups if group.amounts])
        left = {group.suffix for group in groups}
        subtrees = tuple([suffixes for suffixes in self.same_subtree if left.issuperset(suffixes)])
        return Needs(
            self.amounts,
            groups=groups,
            isolates=self.isolates,
            same_subtree=subtrees,
            cells=self.cells,
            near=self.near,
        )

    def one_by_one(self) -> Iterator["Needs"]:
        """Yields the needs outside of groups, and then each group, as needs of their own."""
        outside = self.outside_of_groups
        if outside:
            yield Needs(outside) if self.cells else Needs(outside, self.required, self.forbidden)
        for group in self.groups:
            if group.amounts:
                yield Needs(
                    group.amounts,
                    groups=(GranularGroup(group.suffix, group.amounts, group.required, group.forbidden),),
                )


def needs_of(spec: InstanceSpec) -> Needs:
    return Needs(
        spec.amounts,
        spec.required,
        spec.forbidden,
        spec.preferred,
        spec.groups,
        spec.isolates,
        spec.same_subtree,
        spec.cells,
        spec.near,
    )


def query_of(needs: Needs) -> CandidatesQuery:
    groups = [
        _group(group.suffix, group.amounts, group.required, group.forbidden, group.preferred)
        for group in needs.groups
    ]
    outside = needs.outside_of_groups
    # The sizes of a guest with cells are in groups. So what it asks of the whole host is asked of the host's root.
    of_root, of_outside = ((needs.required, needs.forbidden), ((), ()))
    if not needs.cells:
        of_root, of_outside = of_outside, of_root
    if outside:
        groups.insert(0, _group(UNSUFFIXED, outside, *of_outside, needs.preferred))
    return CandidatesQuery(
        groups=tuple(groups),
        group_policy="isolate" if needs.isolates else None,
        same_subtree=needs.same_subtree,
        root_required=of_root[0],
        root_forbidden=of_root[1],
        cells=needs.cells,
        near=needs.near,
    )


def _group(
    suffix: str,
    amounts: tuple[tuple[str, int], ...],
    required: tuple[str, ...],
    forbidden: tuple[str, ...],
    preferred: NamedWeights,
) -> Group:
    return Group(
        suffix=suffix,
        resources=dict(amounts),
        required=tuple((trait,) for trait in required),
        forbidden=forbidden,
        preferred=tuple(Preferred(trait, weight) for trait, weight in preferred),
    )


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


# The interface of plugins that judge the ways of a host: the providers that an instance could take its amounts from.


class Way:
    """One way to take what an instance needs from the providers of a host. The providers have the numbers 0, 1, 2 and
    so on; `amounts` has what each of them gives. A provider that only has to be there gives nothing.
    """

    __slots__ = ("_index", "_room", "_way", "amounts")

    def __init__(self, index: ProviderIndex, room: ProviderRoom, way: TreeWay) -> None:
        self.amounts = way.pattern.amounts
        self._way = way
        self._index = index
        self._room = room

    @property
    def groups(self) -> Mapping[str, Sequence[int]]:
        """The numbers of the providers that serve each granular group, by its suffix; the rest of the request has an
        empty suffix.
        """
        return dict(self._way.pattern.mappings)

    def free(self, provider: int, resource: str) -> int:
        """The free amount of a class, before the instance takes its own."""
        return self._room.free(self._way.rows[provider], resource)

    @property
    def left(self) -> list[float]:
        """Of each provider that gives something, the part of its capacity that stays free afterwards: the mean of the classes."""
        room = self._room
        return [
            room.part_left(row, amounts)
            for row, amounts in zip(self._way.rows, self.amounts, strict=True)
            if amounts
        ]

    def is_under(self, provider: int, other: int) -> bool:
        """Is the first provider the second one, or below it in the host's tree?"""
        return self._index.is_under(self._way.rows[provider], self._way.rows[other])

    def has(self, provider: int, trait: str) -> bool:
        return trait in self._index.state(self._way.rows[provider]).traits


class WayJudge(Protocol):
    """A plugin that values ways to take the needed amounts from a host's providers. It keeps no state."""

    # Does it strike any way? Then refusals and plans ask it about the ways of all hosts, which costs time.
    may_strike: bool

    def reads(self, needs: Needs) -> bool:
        """Does it judge such a request? Only then several ways of a host are searched, which costs time."""

    def judge(self, way: Way, needs: Needs) -> float:
        """The value of a way, higher is better, about -1 to 1; NaN strikes it."""


# A way is better if it takes from few providers, and from those with the least room: large rooms stay whole.


class FewestFragments:
    may_strike = False

    def reads(self, needs: Needs) -> bool:
        """Judge only requests with granular groups: plain requests take the first way, at no cost."""
        return bool(needs.groups)

    def judge(self, way: Way, _needs: Needs) -> float:
        left = way.left
        # One provider fewer counts more than any room that is left.
        return -(len(left) + sum(left) / len(left))


# A way is better if devices that a guest prefers near its NUMA cells are near them. This counts before how full providers get.


PER_DEVICE = 10.0


class NearDevices:
    may_strike = False

    def reads(self, needs: Needs) -> bool:
        return any(nearness == "preferred" for _, nearness in needs.near)

    def judge(self, way: Way, needs: Needs) -> float:
        groups = way.groups
        cells = [provider for suffix in needs.cells for provider in groups[suffix]]
        near = [
            any(way.is_under(device, cell) for device in groups[suffix] for cell in cells)
            for suffix, nearness in needs.near
            if nearness == "preferred"
        ]
        return PER_DEVICE * sum(near)
