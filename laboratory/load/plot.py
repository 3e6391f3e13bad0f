"""Draws a load run over time as SVG: rate, latencies, cost and what is under way.

It is plain text, so no library is needed that would only be there for this. Every browser shows it, and turns it into a picture.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from xml.sax.saxutils import escape

from msgspec import Struct

from laboratory.load.results import Interval, LoadResult, MetalLoadResult, RunResult

WIDTH, HEIGHT, TOP, GAP = 960, 190, 84, 62
LEFT, RIGHT = 70, 190
# Colours that also people tell apart who see few of them (Okabe and Ito).
COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#b8a800", "#666666")
FEW_POINTS = 40
# Costs are drawn where at least this share of the usual rate ended.
COUNTS_FROM = 0.25
TICKS = 4
INK, FAINT = "#222222", "#dddddd"
Points = Sequence[tuple[float, float]]


class PlotLine(Struct, frozen=True):
    name: str
    points: Points


class Panel(Struct, frozen=True, kw_only=True):
    """One diagram. If `is_stacked`, each line is drawn on top of those before it, and the space between them is filled."""

    title: str
    lines: Sequence[PlotLine]
    is_log: bool = False
    is_stacked: bool = False


class Scale(Struct, frozen=True):
    """Which place on the page a value has, and which values have marks."""

    place: Callable[[float], float]
    ticks: Sequence[float]


class PlottedPart(Struct, frozen=True, kw_only=True):
    """A part of a run over time. `cpu_us_each` is that of the whole part; `is_scheduled`: its orders were due at times of their own."""

    order: str
    over_time: Sequence[Interval]
    cpu_us_each: Mapping[str, float]
    is_scheduled: bool = False


def as_svg(result: RunResult) -> str:
    match result:
        case LoadResult(latency_ms=latency):
            headline = f"{result.boots:,} boots on {result.hosts:,} hosts"
            below = (
                f"{result.boots_per_s:,.0f} boots/s · {result.cpu_us_per_boot['total']:,.0f} µs CPU a boot · "
                f"p50 {latency.p50:,.0f}, p99 {latency.p99:,.0f}, p99.9 {latency.p999:,.0f} ms · {result.mode}, "
                f"{result.processors} processors, others used {result.share_of_others:.0%}"
            )
            parts = [
                PlottedPart(
                    order="order",
                    over_time=result.over_time,
                    cpu_us_each=result.cpu_us_per_boot,
                    is_scheduled=bool(result.rate),
                )
            ]
        case MetalLoadResult(changes=changes, deploys=deploys):
            headline = (
                f"{changes.count:,} state changes and {deploys.count:,} deploys on {result.nodes:,} nodes"
            )
            named = {"state change": changes, "deploy": deploys}
            figures = [
                f"{phase.per_s:,.0f} {name}s/s, {phase.cpu_us_each['total']:,.0f} µs CPU each, p99 {phase.latency_ms.p99:,.0f} ms"
                for name, phase in named.items()
            ]
            below = " · ".join((*figures, f"{result.mode}, {result.processors} processors"))
            parts = [
                PlottedPart(
                    order=name,
                    over_time=phase.over_time,
                    cpu_us_each=phase.cpu_us_each,
                    is_scheduled=bool(result.rate) and phase is changes,
                )
                for name, phase in named.items()
            ]
        case _:
            raise AssertionError(f"{type(result).__name__} has no plot")
    pace = f"{result.rate:,.0f} orders/s, {result.arrivals}" if result.rate else "as fast as possible"
    return _svg_of(f"{headline}, {pace}{', sent late' if result.is_late else ''}", below, parts)


def _svg_of(headline: str, below: str, parts: Sequence[PlottedPart]) -> str:
    panels = [(panel, part) for part in parts for panel in _panels(part)]
    height = TOP + len(panels) * (HEIGHT + GAP)
    body = [_text(16, 28, headline, size=18), _text(16, 50, below, colour="#555555")]
    for number, (panel, part) in enumerate(panels):
        end_s = max((each.at_s for each in part.over_time), default=1.0)
        body += _drawn(panel, TOP + number * (HEIGHT + GAP), end_s)
    return "\n".join(
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}">',
            f'<g font-family="sans-serif" font-size="13" fill="{INK}">',
            f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
            *body,
            "</g>",
            "</svg>",
            "",
        )
    )


def _panels(part: PlottedPart) -> list[Panel]:
    some = part.over_time
    latency = [each for each in some if each.latency_ms.max]
    processes = sorted(
        {name for each in some for name in each.cpu_us_each} - {"total"},
        key=lambda name: (-part.cpu_us_each.get(name, 0.0), name),
    )
    # At the ends few orders end, and what the processes cost without them would be all that can be seen.
    usual_per_s = sum(each.ended_per_s * each.seconds for each in some) / (
        sum(each.seconds for each in some) or 1.0
    )
    costly = [each for each in some if each.cpu_us_each and each.ended_per_s >= usual_per_s * COUNTS_FROM]
    return [
        Panel(
            title=f"{part.order}s a second",
            lines=(
                PlotLine("due" if part.is_scheduled else "sent", _points(some, lambda each: each.due_per_s)),
                PlotLine("ended", _points(some, lambda each: each.ended_per_s)),
            ),
        ),
        Panel(
            title=f"latency of {part.order}s, ms",
            is_log=True,
            lines=tuple(
                PlotLine(name, _points(latency, read))
                for name, read in (
                    ("p50", lambda each: each.latency_ms.p50),
                    ("p90", lambda each: each.latency_ms.p90),
                    ("p99", lambda each: each.latency_ms.p99),
                    ("p99.9", lambda each: each.latency_ms.p999),
                )
            ),
        ),
        Panel(
            title=f"CPU of each {part.order} that ended, µs",
            is_stacked=True,
            lines=_by_process(costly, processes),
        ),
        Panel(
            title=f"{part.order}s under way",
            lines=(PlotLine("under way", _points(some, lambda each: float(each.under_way))),),
        ),
    ]


def _by_process(some: Sequence[Interval], processes: Sequence[str]) -> Sequence[PlotLine]:
    """The largest processes, and all others together."""
    shown = processes if len(processes) <= len(COLOURS) else processes[: len(COLOURS) - 1]
    others = [name for name in processes if name not in shown]
    parts: Mapping[str, Sequence[str]] = {name: (name,) for name in shown} | (
        {"others": others} if others else {}
    )

    def reading(names: Sequence[str]) -> Callable[[Interval], float]:
        return lambda each: sum(each.cpu_us_each.get(name, 0.0) for name in names)

    return tuple([PlotLine(name, _points(some, reading(names))) for name, names in parts.items()])


def _points(some: Sequence[Interval], read: Callable[[Interval], float]) -> Points:
    """A point in the middle of each interval."""
    return [(each.at_s - each.seconds / 2, read(each)) for each in some]


def _drawn(panel: Panel, top: float, end_s: float) -> Iterator[str]:
    lines = _stacked(panel.lines) if panel.is_stacked else panel.lines
    bottom, right = top + HEIGHT, WIDTH - RIGHT
    across = _linear(0.0, end_s, LEFT, right)
    values = [value for line in lines for _, value in line.points]
    up = (
        _logarithmic(values, bottom, top)
        if panel.is_log
        else _linear(0.0, max(values, default=1.0), bottom, top)
    )
    yield _text(LEFT, top - 12, panel.title, weight="bold")
    for value in up.ticks:
        y = up.place(value)
        yield f'<path d="M{LEFT} {y:.1f}H{right}" stroke="{FAINT}"/>'
        yield _text(LEFT - 8, y + 4, _number(value), anchor="end")
    for value in across.ticks:
        x = across.place(value)
        yield f'<path d="M{x:.1f} {bottom}v5" stroke="{INK}"/>'
        yield _text(x, bottom + 19, f"{_number(value)} s", anchor="middle")
    yield f'<path d="M{LEFT} {bottom}H{right}" stroke="{INK}"/>'
    below: Points = ()
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        places = [(across.place(x), up.place(y)) for x, y in line.points]
        if panel.is_stacked:
            yield _area(places, below or [(x, bottom) for x, _ in places], colour)
            below = places
        else:
            yield from _curve(places, colour)
    yield from _legend(panel, top)


def _stacked(lines: Sequence[PlotLine]) -> list[PlotLine]:
    sums = [0.0] * max((len(line.points) for line in lines), default=0)
    found = []
    for line in lines:
        sums = [total + value for total, (_, value) in zip(sums, line.points, strict=True)]
        found.append(
            PlotLine(line.name, [(x, total) for (x, _), total in zip(line.points, sums, strict=True)])
        )
    return found


def _curve(places: Points, colour: str) -> Iterator[str]:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
    yield f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2" stroke-linejoin="round"/>'
    if len(places) <= FEW_POINTS:
        yield from (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>' for x, y in places)


def _area(upper: Points, lower: Points, colour: str) -> str:
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*upper, *reversed(lower)))
    return (
        f'<polygon points="{path}" fill="{colour}" fill-opacity="0.75" stroke="{colour}" stroke-width="1"/>'
    )


def _legend(panel: Panel, top: float) -> Iterator[str]:
    """The names of the lines, in the order in which they lie above each other where they are stacked."""
    named = [(line.name, COLOURS[number % len(COLOURS)]) for number, line in enumerate(panel.lines)]
    for place, (name, colour) in enumerate(reversed(named) if panel.is_stacked or panel.is_log else named):
        y = top + 8 + 20 * place
        yield f'<rect x="{WIDTH - RIGHT + 16}" y="{y - 7}" width="14" height="10" fill="{colour}"/>'
        yield _text(WIDTH - RIGHT + 36, y + 3, name)


def _linear(low: float, high: float, first: float, last: float) -> Scale:
    high = high if high > low else low + 1.0
    step = 10 ** math.floor(math.log10((high - low) / TICKS))
    step *= next(each for each in (1, 2, 5, 10) if (high - low) / (step * each) <= TICKS + 1)
    ticks = [low + step * number for number in range(math.floor((high - low) / step) + 1)]
    return Scale(lambda value: first + (value - low) / (high - low) * (last - first), ticks)


def _logarithmic(values: Sequence[float], first: float, last: float) -> Scale:
    known = [value for value in values if value > 0] or [1.0, 10.0]
    marks = [each * 10.0**power for power in range(-3, 8) for each in (1, 2, 5)]
    low = max(mark for mark in marks if mark <= max(min(known), marks[0]))
    high = min((mark for mark in marks if mark >= max(known) and mark > low), default=marks[-1])
    span = math.log10(high / low)

    def place(value: float) -> float:
        return first + math.log10(max(value, low) / low) / span * (last - first)

    return Scale(place, [mark for mark in marks if low <= mark <= high])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:g}"


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "start",
    size: int = 13,
    weight: str = "normal",
    colour: str = INK,
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}" fill="{colour}">'
        f"{escape(text)}</text>"
    )
