"""Numbers as small pictures, as attributes of SVG elements: a content security policy allows no styles inside of pages. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from bus.messages.planning import HostChoice
from engine.refusals import NoValidHost

WIDTH, HEIGHT = 240, 48


def line_of(values: Sequence[tuple[float, float]], most: float = 0.0) -> str:
    """The points of a line through these values, each with its time, from left to right. The highest is at the top, or
    `most` if that is higher.
    """
    if not values:
        return ""
    most = max(most, *(value for _, value in values), 0.0) or 1.0
    first, last = values[0][0], values[-1][0]
    width = WIDTH / ((last - first) or 1.0)
    return " ".join(
        f"{(at - first) * width:.1f},{HEIGHT - value / most * (HEIGHT - 4) - 2:.1f}" for at, value in values
    )


# Of the width of a funnel: what is not zero is seen.
SEEN_MIN = 1.5


class FunnelPart(Struct, frozen=True):
    """One part of the picture of a funnel: `count` hosts go on from it. `points` are its corners, in a square of 100 by 100."""

    name: str
    count: int
    points: str


def funnel_parts(counts: Sequence[tuple[str, int]]) -> list[FunnelPart]:
    """A funnel from the largest number to the smallest: each part begins as wide as the one above it ends."""
    most = max((count for _, count in counts), default=0)
    found, above = [], 100.0
    for name, count in counts:
        width = max(_hundredths(count, most), SEEN_MIN) if count else 0.0
        corners = ((50 - above / 2, 0), (50 + above / 2, 0), (50 + width / 2, 100), (50 - width / 2, 100))
        found.append(FunnelPart(name, count, " ".join(f"{x:.2f},{y}" for x, y in corners)))
        above = width
    return found


def parts_of_funnel(found: NoValidHost) -> list[FunnelPart]:
    return funnel_parts([("all hosts", found.hosts), *((bar.name, bar.left) for bar in funnel_of(found))])


def parts_of_choice(choice: HostChoice) -> list[FunnelPart]:
    """A choice that found a host: of all hosts those that qualified, of these the chosen one and its alternates."""
    kept = ("chosen, with alternates", 1 + len(choice.alternates)) if choice.alternates else ("chosen", 1)
    return funnel_parts([("all hosts", choice.hosts), ("qualified", choice.qualified), kept])


class FunnelBar(Struct, frozen=True):
    """One step of a funnel: how many hosts it left and removed, and these as shares of all, in hundredths."""

    name: str
    left: int
    removed: int
    example: str
    left_share: float
    removed_share: float


def funnel_of(found: NoValidHost) -> list[FunnelBar]:
    steps, left = [], found.hosts
    for each in found.steps:
        left -= each.removed
        steps.append(
            FunnelBar(
                each.step,
                left,
                each.removed,
                each.example,
                _hundredths(left, found.hosts),
                _hundredths(each.removed, found.hosts),
            )
        )
    return steps


def share(used: int, capacity: int) -> float:
    """In hundredths, at most a hundred; what has no capacity is full."""
    return _hundredths(used, capacity) if capacity > 0 else 100.0


def _hundredths(part: int, whole: int) -> float:
    return round(min(100 * part / whole, 100.0), 2) if whole else 0.0
