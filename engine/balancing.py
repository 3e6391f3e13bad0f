"""Plans of balance: which guests move to which hosts, what each step gains, and what the hosts are like before and after.

A plan goes by amounts alone. Whether a guest may go where its step says (traits, NUMA nodes, groups) only schedulers know, so each
step is put to them. A host gives guests in a plan or takes them, never both: so its steps may be made in any order.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from msgspec import Struct

from engine.candidates.columns import Flags, Floats, Ints
from engine.flavors import InstanceId
from engine.goals import BalanceFigures, BalanceGoal

# A host's load is the largest of its shares of these.
COUNTED = ("VCPU", "PCPU", "MEMORY_MB")
# A step that gains less is not worth its work.
LEAST: Mapping[str, float] = {"even": 0.0005, "fill": 0.0, "room": 0.005, "ratio": 0.0, "rules": 0.0}
# A step costs as much as this memory to copy, and that of its guest.
STEP_MB = 4096


class LoadedHost(Struct, frozen=True):
    """A host by its name in its cell (`c1/h1`), and its amounts by resource class. `takes`: guests may come to it."""

    name: str
    cell: str
    capacity: Mapping[str, int]
    used: Mapping[str, int]
    takes: bool = True


class MovableGuest(Struct, frozen=True):
    """A guest that may move, and the name of its host."""

    id: InstanceId
    host: str
    amounts: Mapping[str, int]


class BalanceStep(NamedTuple):
    guest: MovableGuest
    to: str
    gain: float


class Loads:
    """The amounts of hosts as arrays: a line for each host, a column for each class. `used` is changed by the steps of a plan."""

    def __init__(self, goal: BalanceGoal, hosts: Sequence[LoadedHost]) -> None:
        self._goal = goal
        self.names = [each.name for each in hosts]
        self._classes = sorted({resource for each in hosts for resource in each.capacity})
        self.capacity = self._lines([each.capacity for each in hosts])
        self.used = self._lines([each.used for each in hosts])
        self.takes: Flags = np.array([each.takes for each in hosts], dtype=np.bool_)
        self._cell = np.array([each.cell for each in hosts])
        self._counted = self._columns(*COUNTED)
        self._processors, self._memory = self._columns("VCPU", "PCPU"), self._columns("MEMORY_MB")

    def _columns(self, *wanted: str) -> list[int]:
        return [column for column, each in enumerate(self._classes) if each in wanted]

    def _lines(self, some: Sequence[Mapping[str, int]]) -> Floats:
        lines = [[amounts.get(each, 0) for each in self._classes] for amounts in some]
        return np.array(lines, dtype=np.float64).reshape(len(some), len(self._classes))

    def amounts_of(self, guests: Sequence[MovableGuest]) -> Floats:
        return self._lines([each.amounts for each in guests])

    def others(self, row: int, takes: Flags) -> Ints:
        """The hosts that take guests of this one: an instance moves only within its cell."""
        found = np.flatnonzero(takes & (self._cell == self._cell[row]))
        others: Ints = found[found != row].astype(np.int64)
        return others

    def fits(self, amounts: Floats, rows: Ints) -> Flags:
        """For guests with these amounts (lines), and hosts of these rows (columns): does the one fit on the other?"""
        there = self.used[rows][None] + amounts[:, None]
        fits: Flags = ((there <= self.capacity[rows]) | (amounts[:, None] == 0)).all(axis=-1)
        return fits

    def load(self) -> Floats:
        """The largest share of each host."""
        load: Floats = _shares(self.used, self.capacity)[:, self._counted].max(axis=-1, initial=0.0)
        return load

    def pain(self, used: Floats, capacity: Floats, goal: BalanceGoal | None = None) -> Floats:
        """How far hosts of this capacity, so used, are from the goal: the sum over all hosts is to become small."""
        shares = _shares(used, capacity)
        pain: Floats
        match goal or self._goal:
            case "even":
                pain = np.square(shares[..., self._counted]).sum(axis=-1)
            case "fill":
                pain = -np.square(shares[..., self._counted]).sum(axis=-1)
            case "room":
                pain = self._stranded(shares, capacity)
            case "ratio" | "rules":
                pain = np.maximum(shares - 1.0, 0.0).sum(axis=-1)
        return pain

    def _stranded(self, shares: Floats, capacity: Floats) -> Floats:
        """The share of each host's processors, or of its memory, that nothing can use: it has less left of the other."""
        free = np.clip(1.0 - shares, 0.0, 1.0)
        if not self._processors or not self._memory:
            return np.zeros(free.shape[:-1])
        # A host has shared processors, dedicated ones, or both.
        has = capacity[..., self._processors] > 0
        processors = np.where(has, free[..., self._processors], 0.0).max(axis=-1)
        stranded: Floats = np.abs(processors - free[..., self._memory[0]])
        return stranded

    def figures(self, broken: int) -> BalanceFigures:
        if not self.names:
            return BalanceFigures(broken=broken)
        load, excess = self.load(), self.pain(self.used, self.capacity, "ratio")
        return BalanceFigures(
            hosts=len(load),
            empty=int(np.count_nonzero(load == 0)),
            overfull=int(np.count_nonzero(excess > 0)),
            peak=round(float(load.max()), 4),
            spread=round(float(load.std()), 4),
            stranded=round(float(self.pain(self.used, self.capacity, "room").mean()), 4),
            excess=round(float(excess.sum()), 4),
            broken=broken,
        )

    def best(self, row: int, guests: Sequence[MovableGuest], others: Ints) -> tuple[int, int, float] | None:
        """The guest of this host that gains most by what it costs, by its number; the row of the host to which it goes; and its gain."""
        if not len(others):
            return None
        amounts, capacity = self.amounts_of(guests), self.capacity[others]
        before, was = self.used[row], self.capacity[row]
        given = self.pain(before, was) - self.pain(before - amounts, was)
        there = self.used[others]
        taken = self.pain(there[None] + amounts[:, None], capacity) - self.pain(there, capacity)
        gains = given[:, None] - taken
        is_good = (gains > LEAST[self._goal]) & self.fits(amounts, others)
        if not is_good.any():
            return None
        costs = np.array([STEP_MB + each.amounts.get("MEMORY_MB", 0) for each in guests])
        scores = np.where(is_good, gains / costs[:, None], -np.inf)
        number, to = divmod(int(scores.argmax()), len(others))
        return number, int(others[to]), float(gains[number, to])


def _shares(used: Floats, capacity: Floats) -> Floats:
    shares: Floats = np.divide(
        used, capacity, out=np.zeros(np.broadcast_shapes(used.shape, capacity.shape)), where=capacity > 0
    )
    return shares


def plan_balance(
    goal: BalanceGoal, hosts: Sequence[LoadedHost], guests: Sequence[MovableGuest], moves_max: int
) -> Iterator[BalanceStep | None]:
    """The steps that gain most for what they cost, until none gains anything; between them None, so that a caller can do other things. Of the
    goal `rules` there are none: those are not of amounts.
    """
    loads = Loads(goal, hosts)
    there: dict[int, list[MovableGuest]] = {}
    rows = {name: row for row, name in enumerate(loads.names)}
    for each in guests:
        if each.host in rows:
            there.setdefault(rows[each.host], []).append(each)
    if goal == "fill":
        yield from _empty_hosts(loads, there, moves_max)
    elif goal != "rules":
        yield from _ease(loads, there, moves_max)


def figures_of(
    hosts: Sequence[LoadedHost], steps: Iterable[BalanceStep] = (), broken: int = 0
) -> BalanceFigures:
    """What these hosts are like; or would be after these steps."""
    loads = Loads("even", hosts)
    rows = {name: row for row, name in enumerate(loads.names)}
    for step in steps:
        (amounts,) = loads.amounts_of((step.guest,))
        loads.used[rows[step.guest.host]] -= amounts
        # Schedulers may choose a host that is not among these.
        if step.to in rows:
            loads.used[rows[step.to]] += amounts
    return loads.figures(broken)


def gain_of(goal: BalanceGoal, host: LoadedHost, to: LoadedHost, guest: MovableGuest) -> float:
    """The gain of moving this guest from its host to the other one now; 0 if it does not fit there."""
    loads = Loads(goal, (host, to))
    amounts = loads.amounts_of((guest,))
    if not to.takes or not loads.fits(amounts, np.array([1])).all():
        return 0.0
    before = loads.pain(loads.used, loads.capacity)
    loads.used += np.concatenate([-amounts, amounts])
    return float((before - loads.pain(loads.used, loads.capacity)).sum())


def _ease(
    loads: Loads, there: Mapping[int, list[MovableGuest]], moves_max: int
) -> Iterator[BalanceStep | None]:
    """Take from the host that is worst off the guest that gains most elsewhere, again and again."""
    takes = loads.takes.copy()
    is_done = np.array([row not in there for row in range(len(loads.names))], dtype=np.bool_)
    while moves_max and not is_done.all():
        row = int(np.where(is_done, -np.inf, loads.pain(loads.used, loads.capacity)).argmax())
        best = loads.best(row, there[row], loads.others(row, takes))
        if best is None:
            is_done[row] = True
            yield None
            continue
        number, to, gain = best
        guest = there[row].pop(number)
        (amounts,) = loads.amounts_of((guest,))
        loads.used[row] -= amounts
        loads.used[to] += amounts
        takes[row], is_done[to] = False, True
        is_done[row] = not there[row]
        moves_max -= 1
        yield BalanceStep(guest, loads.names[to], round(gain, 6))


def _empty_hosts(
    loads: Loads, there: Mapping[int, list[MovableGuest]], moves_max: int
) -> Iterator[BalanceStep | None]:
    """Empty whole hosts, those with the least first: their guests go to hosts that are full already."""
    has_taken: set[int] = set()
    takes = loads.takes & (loads.load() > 0)
    for row in np.argsort(loads.load(), kind="stable").tolist():
        guests = sorted(there.get(row, ()), key=lambda each: -max(each.amounts.values(), default=0))
        amounts, was = loads.amounts_of(guests), loads.used.copy()
        # What stays there keeps it from being empty.
        is_whole = bool(guests) and not np.any(loads.used[row] > amounts.sum(axis=0))
        if not is_whole or row in has_taken or len(guests) > moves_max:
            continue
        yield None
        others, found = loads.others(row, takes), list[int]()
        for each in amounts:
            fit = others[loads.fits(each[None], others)[0]]
            if not len(fit):
                break
            found.append(int(fit[loads.load()[fit].argmax()]))
            loads.used[found[-1]] += each
        if len(found) < len(guests):
            loads.used[:] = was
            continue
        loads.used[row] = 0.0
        takes[row] = False
        has_taken.update(found)
        gain = round(1 / len(guests), 4)
        moves_max -= len(guests)
        yield from [
            BalanceStep(guest, loads.names[to], gain) for guest, to in zip(guests, found, strict=True)
        ]
