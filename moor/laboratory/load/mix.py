"""What orders a load run is made of: `--mix boot=90,multi:10=1,delete=20`.

Pure. An entry is KIND[:COUNT][:SHAPE]=WEIGHT. Weights are relative, and count orders: of the mix above, each 90 boots come with one
request for 10 instances and with 20 deletes.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

from msgspec import Struct, structs

from bus.messages.build import Flavor, MoveKind

Building = Literal["boot", "multi", "group", "metal"]
Needing = Literal["delete"] | MoveKind
Kind = Building | Needing
# These make instances, in the order in which an error names them; the others need one that rests.
BUILDING: tuple[Building, ...] = get_args(Building)
MOVES: tuple[MoveKind, ...] = ("migrate", "live-migrate", "resize")
NEEDING: tuple[Needing, ...] = ("delete", *MOVES)
# Of the kinds that may have a count: what it is without one, and the largest.
COUNTS: Mapping[str, tuple[int, int]] = {"multi": (10, 1000), "group": (3, 1000)}
SHAPED = ("boot", "multi", "group")
FORM = "KIND[:COUNT][:SHAPE]=WEIGHT,... such as boot=90,boot:4x8192x40=10,multi:10=1,group:3=5,delete=20"
_SHAPE = re.compile(r"([1-9]\d{0,3})x([1-9]\d{0,7})x(\d{1,6})", re.ASCII)


class Shape(Struct, frozen=True):
    vcpus: int
    ram_mb: int
    disk_gb: int

    def of(self, flavor: Flavor) -> Flavor:
        return structs.replace(flavor, vcpus=self.vcpus, ram_mb=self.ram_mb, root_gb=self.disk_gb)


class Entry(Struct, frozen=True, kw_only=True):
    """One kind of order. `name` is how the mix names it. `count`: the instances of a request, or the members of a group."""

    name: str
    kind: Kind
    weight: float = 1.0
    count: int = 1
    shape: Shape | None = None

    @property
    def instances(self) -> int:
        """How many instances an order makes."""
        return self.count if self.kind == "multi" else int(self.kind in BUILDING)


Mix = Mapping[str, Entry]


def plain(*kinds: Kind) -> Mix:
    """Entries with nothing but their kind."""
    return {kind: Entry(name=kind, kind=kind) for kind in kinds}


def read_mix(text: str) -> Mix:
    """The entries that this text names, by their names. Raise ValueError with the wrong entry."""
    entries: dict[str, Entry] = {}
    for part in text.split(","):
        entry = _read_entry(part.strip())
        if entry.name in entries:
            raise ValueError(f"has {entry.name} twice: give it one weight")
        entries[entry.name] = entry
    made = sum(each.weight * each.instances for each in entries.values())
    if not made:
        raise ValueError(f"is {text!r}, and makes no instance: one of {', '.join(BUILDING)} must be in it")
    gone = sum(each.weight for each in entries.values() if each.kind == "delete")
    if gone > made:
        raise ValueError(f"has {gone:g} deletes for {made:g} instances: there must not be more deletes")
    return entries


def _read_entry(text: str) -> Entry:
    name, equals, weight_text = text.partition("=")
    kind, *details = name.split(":")
    if not equals:
        raise ValueError(f"has {text!r}, must be {FORM}")
    if kind not in (*BUILDING, *NEEDING):
        raise ValueError(f"has {kind!r} in {text!r}, must be one of {', '.join((*BUILDING, *NEEDING))}")
    count, count_max = COUNTS.get(kind, (1, 1))
    shape = None
    for place, detail in enumerate(details):
        if (found := _SHAPE.fullmatch(detail)) and kind in SHAPED and shape is None:
            shape = Shape(*map(int, found.groups()))
        elif kind in COUNTS and place == 0 and detail.isascii() and detail.isdecimal():
            count = int(detail)
        else:
            raise ValueError(f"has {detail!r} in {text!r}, {_allowed(kind)}")
    if not 1 <= count <= count_max:
        raise ValueError(f"has {count} in {text!r}, must be 1 to {count_max}")
    return Entry(name=name, kind=kind, weight=_weight(text, weight_text), count=count, shape=shape)


def _allowed(kind: str) -> str:
    counted = f"a count of 1 to {COUNTS[kind][1]}, or " if kind in COUNTS else ""
    if kind in SHAPED:
        return f"must be {counted}a shape VCPUSxRAM_MBxDISK_GB such as 4x8192x40"
    return f"but {kind} has neither count nor shape"


def _weight(text: str, weight_text: str) -> float:
    try:
        weight = float(weight_text)
    except ValueError:
        weight = math.nan
    if not 0 < weight < math.inf:
        raise ValueError(f"has weight {weight_text!r} in {text!r}, must be a number above 0")
    return weight


def names_for(mix: Mix, instances: int) -> list[str]:
    """The names of the orders that make this many instances, in the order in which they are given.

    Each kind comes at equal distances. If the last request asks for more instances than are left, the run makes these more.
    """
    names: list[str] = []
    made = 0
    for name in _by_turns(mix):
        if made >= instances:
            break
        names.append(name)
        made += mix[name].instances
    return names


def _by_turns(mix: Mix) -> Iterator[str]:
    """Each name by its weight: the one whose next turn is due first. A delete or move has its first turn after the others'."""
    turns = {name: (0.0 if entry.kind in BUILDING else 1.0) / entry.weight for name, entry in mix.items()}
    while True:
        name = min(turns, key=turns.__getitem__)
        turns[name] += 1 / mix[name].weight
        yield name


def count_of(mix: Mix, names: Sequence[str], kind: Kind) -> int:
    """How many of these orders are of this kind."""
    return sum(mix[name].kind == kind for name in names)


def instances_of(mix: Mix, names: Sequence[str]) -> int:
    return sum(mix[name].instances for name in names)
