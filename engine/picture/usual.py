"""The shapes that a cloud is usually asked for, and how many of these a host has room for.

A shape has the amounts that one instance asks of each class. The shapes of recent requests are counted, and the most frequent
ones are the usual ones. The room of a host is a number. For each usual shape, count the instances that fit there, as the scarcest
class allows. The room is the sum of these counts, each multiplied by the share of its shape in the requests. So a host that has
memory and no processor left has no room.

An instance costs a host some of this room. A host that has no room left for large shapes loses less by a small one, so large
shapes keep the hosts that still have room for them.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from engine.candidates.columns import Floats, Ints

Amounts = tuple[tuple[str, int], ...]

# So many of the most frequent shapes are the usual ones.
SHAPES_MAX = 8
# A shape of more classes is none: a project chooses how many its flavors name, and each costs a column and a part of the overview.
CLASSES_MAX = 8
# So many are counted; the less frequent half of them is forgotten when there are more.
COUNTED_MAX = 1_000
# All counts are halved when their sum reaches this, so what is asked for now counts more than what was.
HALVED_AT = 16_384
# The usual shapes are drawn again after seven times as many requests as there were before, and at least after so many.
DRAWN_AGAIN_AFTER = 8_192
# The shares of the usual shapes have this sum. Sums of whole numbers are exact in any order.
SHARES = 10_000
# For so many amounts the answers about all hosts are kept.
KEPT_MAX = 64
# A product that should be a whole number may be less by so much.
_ROUNDING = 1e-9
# More instances than fit on any host, where a shape asks for none of a class.
_PLENTY = 1e15


class UsualShape(NamedTuple):
    """What instances of this shape ask for, and their share of recent requests, from 0 to 1."""

    amounts: Amounts
    share: float


class _Shapes(NamedTuple):
    """The usual shapes as arrays: for each, and for each class, how many instances fit into 1, and how many more are counted."""

    classes: tuple[str, ...]
    per_unit: Floats
    more: Floats
    shares: Floats

    def room(self, free: Ints) -> Floats:
        """The room of hosts with these free amounts: a line for each class, a column for each host; or several such tables."""
        counts = free[..., np.newaxis, :, :] * self.per_unit
        counts += self.more
        fitting = counts.min(axis=-2)
        np.floor(fitting, out=fitting)
        np.maximum(fitting, 0.0, out=fitting)
        room: Floats = self.shares @ fitting
        return room

    def lost(self, free: Ints, taken: Ints) -> Floats:
        """How much of it they lose to the amounts `taken`, which has 0 for each class before it."""
        before, after = self.room(free - taken)
        lost: Floats = before - after
        return lost


class UsualShapes:
    """Counts the shapes of requests. `lost_by` says what a choice costs."""

    def __init__(self) -> None:
        self._counts: Counter[Amounts] = Counter()
        self._sum = 0
        self._since = self._draw_after = 0
        self._known: _Known | None = None

    def note(self, amounts: Amounts, instances: int = 1) -> None:
        """So many instances of this shape were asked for."""
        if not 0 < len(amounts) <= CLASSES_MAX:
            return
        self._counts[amounts] += instances
        self._sum += instances
        self._since += instances
        if self._sum >= HALVED_AT or len(self._counts) > COUNTED_MAX:
            most = self._counts.most_common(COUNTED_MAX // 2)
            self._counts = Counter({each: (count + 1) // 2 for each, count in most})
            self._sum = self._counts.total()
        if self._since >= self._draw_after:
            self._since, self._draw_after = 0, min(max(1, 7 * self._sum), DRAWN_AGAIN_AFTER)
            self._known = None

    @property
    def counted(self) -> int:
        """How many shapes are counted."""
        return len(self._counts)

    def all(self) -> Sequence[UsualShape]:
        """The usual shapes, the most frequent first."""
        most = self._counts.most_common(SHAPES_MAX)
        of_all = sum(count for _, count in most)
        return [UsualShape(amounts, count / of_all) for amounts, count in most]

    def lost_by(self, amounts: Amounts, free: Callable[[str], Ints], takers: Sequence[int]) -> Floats | None:
        """How much room each host loses by an instance with these amounts. `free` gives what all hosts have free of a class.
        `takers` is the list of a draft, to which it adds the rows of hosts that take something. Callers must not write into
        the array. None if nothing was asked for yet.
        """
        known = self._drawn()
        return None if known is None else known.lost_by(amounts, free, takers)

    def lost_there(self, amounts: Amounts, free: Callable[[str], Ints]) -> Floats | None:
        """As `lost_by`, for any hosts; no answer is kept."""
        known = self._drawn()
        if known is None:
            return None
        shapes = known.shapes
        return shapes.lost(np.array([free(resource) for resource in shapes.classes]), _taken(shapes, amounts))

    def _drawn(self) -> "_Known | None":
        if self._known is None and self._counts:
            usual = self.all()
            classes = tuple(sorted({resource for shape in usual for resource, _ in shape.amounts}))
            sizes = np.array(
                [[dict(each.amounts).get(resource, 0) for resource in classes] for each in usual]
            )
            self._known = _Known(
                _Shapes(
                    classes,
                    (1 / np.maximum(sizes, 1))[:, :, np.newaxis],
                    np.where(sizes > 0, _ROUNDING, _PLENTY)[:, :, np.newaxis],
                    np.rint(SHARES * np.array([each.share for each in usual])),
                )
            )
        return self._known


class _Line:
    """The room that each host loses by one amount, and how many of the changes it counts."""

    def __init__(self, taken: Ints) -> None:
        self.taken = taken
        self.lost = np.zeros(0)
        self.seen = -1


class _Known:
    """The answers about all hosts. When an amount is asked for again, only hosts of which the free amounts changed are computed."""

    def __init__(self, shapes: _Shapes) -> None:
        self.shapes = shapes
        self._free: Ints = np.zeros((len(shapes.classes), 0), dtype=np.int64)
        # The hosts of which the free amounts changed, one after another.
        self._changed: list[int] = []
        # The one that was asked for the longest time ago is first.
        self._lines: dict[Amounts, _Line] = {}
        # The draft that was looked at last, by its list, and how many of its takers are counted.
        self._takers: Sequence[int] = ()
        self._seen = -1

    def lost_by(self, amounts: Amounts, free: Callable[[str], Ints], takers: Sequence[int]) -> Floats:
        if takers is not self._takers:
            self._look_at_all([free(resource) for resource in self.shapes.classes])
        elif len(takers) > self._seen:
            rows = np.array(takers[self._seen :], dtype=np.intp)
            self._free[:, rows] = [free(resource)[rows] for resource in self.shapes.classes]
            self._changed += takers[self._seen :]
        self._takers, self._seen = takers, len(takers)
        line = self._lines.pop(amounts, None) or _Line(_taken(self.shapes, amounts))
        if len(self._lines) == KEPT_MAX:
            del self._lines[next(iter(self._lines))]
        self._lines[amounts] = line
        if line.seen < 0:
            line.lost = self.shapes.lost(self._free, line.taken)
        elif line.seen < len(self._changed):
            # A host that instances are packed onto is there again and again.
            rows = np.array([*dict.fromkeys(self._changed[line.seen :])], dtype=np.intp)
            line.lost[rows] = self.shapes.lost(self._free[:, rows], line.taken)
        line.seen = len(self._changed)
        return line.lost

    def _look_at_all(self, free: Sequence[Ints]) -> None:
        hosts = len(free[0])
        if len(self._free[0]) != hosts or len(self._changed) > hosts:
            self._free, self._changed, self._lines = np.array(free), [], {}
            return
        changed = np.zeros(hosts, dtype=np.bool_)
        for before, now in zip(self._free, free, strict=True):
            changed |= before != now
        rows = changed.nonzero()[0]
        self._free[:, rows] = [each[rows] for each in free]
        self._changed += rows.tolist()


def _taken(shapes: _Shapes, amounts: Amounts) -> Ints:
    """The amounts that are taken of each class without the instance and with it, each as a table of one column."""
    asked = dict(amounts)
    with_it = [[asked.get(resource, 0)] for resource in shapes.classes]
    return np.array([np.zeros_like(with_it), with_it])
