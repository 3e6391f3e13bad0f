"""The values of `capabilities:` extra specs: an operator of Nova's grammar, and what it compares with.

    >= 4      s== x86_64      <in> avx2      <all-in> aes avx2      <or> a <or> b      x86_64

`=` means at least. A value without an operator must be equal. Operators without an `s` compare numbers. In a
capability of several words, `<in>` and `<all-in>` look for whole words. In a capability of one word, they look for a part
of that word.
"""

import operator
from collections.abc import Callable, Mapping
from typing import NamedTuple

from scheduler_worker.core.aggregates.metadata import finite_number

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
