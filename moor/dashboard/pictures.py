"""Numbers as small pictures, as attributes of SVG elements: a content security policy allows no styles inside of pages. Pure."""

from collections.abc import Sequence

from msgspec import Struct

from bus.messages.build import NoValidHost

WIDTH, HEIGHT = 240, 48


def line_of(values: Sequence[float]) -> str:
    """The points of a line through these values, from left to right; the highest is at the top."""
    most = max(values, default=0.0) or 1.0
    step = WIDTH / max(len(values) - 1, 1)
    return " ".join(
        f"{at * step:.1f},{HEIGHT - value / most * (HEIGHT - 4) - 2:.1f}" for at, value in enumerate(values)
    )


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
