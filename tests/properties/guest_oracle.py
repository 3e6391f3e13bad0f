"""Does a guest fit a small host? Brute force over all ways to give its parts to the host's cells and devices, without the code
that is under test: a part is a demand on one provider, and the answer is whether some way breaks no rule.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product


@dataclass(frozen=True)
class SmallProvider:
    """A provider of the host: its inventories, the provider above it, and whether it is a NUMA cell."""

    name: str
    has: Mapping[str, int]
    above: str = ""
    is_cell: bool = False
    # Memory in pages is given in steps.
    steps: Mapping[str, int] = ()  # type: ignore[assignment]


@dataclass(frozen=True)
class SmallGuest:
    """What a guest asks: for each cell its amounts, the class of each device, and how near these are. `loose` comes from anywhere."""

    name: str
    cells: Sequence[Mapping[str, int]] = ()
    devices: Sequence[str] = ()
    nearness: str = "legacy"
    loose: Mapping[str, int] = ()  # type: ignore[assignment]


Placement = tuple[tuple[str, str, int], ...]


class SmallHost:
    def __init__(self, *providers: SmallProvider) -> None:
        self.providers = {each.name: each for each in providers}

    def placements(self, guest: SmallGuest, used: Mapping[tuple[str, str], int]) -> Iterator[Placement]:
        """All ways to place the guest beside what is used, each as sorted parts of a provider, a class and an amount."""
        names = list(self.providers)
        loose = sorted(dict(guest.loose).items())
        for homes in permutations(names, len(guest.cells)):
            if len(homes) > 1 and not all(self.providers[home].is_cell for home in homes):
                continue
            for spots in product(names, repeat=len(guest.devices)):
                if guest.cells and not all(self._is_near(spot, homes, guest.nearness) for spot in spots):
                    continue
                for sources in product(names, repeat=len(loose)):
                    parts: dict[tuple[str, str], int] = {}
                    for home, amounts in zip(homes, guest.cells, strict=True):
                        _add(parts, home, amounts)
                    for spot, device in zip(spots, guest.devices, strict=True):
                        _add(parts, spot, {device: 1})
                    for source, (resource, amount) in zip(sources, loose, strict=True):
                        _add(parts, source, {resource: amount})
                    if self._fits(parts, used):
                        yield tuple(sorted((*part, amount) for part, amount in parts.items()))

    def _is_near(self, spot: str, homes: Sequence[str], nearness: str) -> bool:
        line = self._line(spot)
        if nearness == "preferred" or any(home in line for home in homes if nearness == "required"):
            return True
        in_cell = [name for name in line if self.providers[name].is_cell]
        return nearness == "legacy" and (not in_cell or any(home in in_cell for home in homes))

    def _line(self, name: str) -> list[str]:
        line = []
        while name:
            line.append(name)
            name = self.providers[name].above
        return line

    def _fits(self, parts: Mapping[tuple[str, str], int], used: Mapping[tuple[str, str], int]) -> bool:
        return all(self._has_room(part, amount, used) for part, amount in parts.items())

    def _has_room(self, part: tuple[str, str], amount: int, used: Mapping[tuple[str, str], int]) -> bool:
        name, resource = part
        provider = self.providers[name]
        step = dict(provider.steps).get(resource, 1)
        return amount % step == 0 and amount + used.get(part, 0) <= provider.has.get(resource, 0)


def _add(parts: dict[tuple[str, str], int], name: str, amounts: Mapping[str, int]) -> None:
    for resource, amount in amounts.items():
        parts[name, resource] = parts.get((name, resource), 0) + amount
