"""The outcomes of a replay: their table, their JSON and their picture."""

from collections.abc import Callable
from html import escape

import msgspec
from msgspec import Struct
from rich.console import RenderableType

from laboratory.replay.playing import LARGE, HostKind, Played, ReplayMoment
from moor.tables import lines_of

_HOUR_S, _DAY_S = 3600.0, 86_400.0


class Replay(Struct, frozen=True, kw_only=True):
    """A trace, the hosts and the seed; and the outcome under each policy."""

    trace: str
    hosts: tuple[HostKind, ...]
    seed: int
    policies: tuple[Played, ...]


def as_json(replay: Replay) -> bytes:
    return msgspec.json.format(msgspec.json.encode(replay), indent=2) + b"\n"


def as_table(replay: Replay) -> RenderableType:
    headings = (
        "policy",
        "refused",
        "their vCPU",
        f"of {LARGE} vCPU or more",
        "peak",
        "stranded",
        "empty hosts",
        "µs CPU a choice",
        *(("spread", "moves", "a guest", "at most") if any(each.moves for each in replay.policies) else ()),
    )
    lines = [
        (
            each.policy,
            f"{each.refused:,} of {each.instances:,}",
            f"{each.refused_vcpus:,}",
            f"{each.refused_large:,}",
            f"{each.peak:.1%}",
            f"{each.stranded:.1%}",
            f"{each.empty_hosts:,.0f}",
            f"{each.cpu_us_per_choice:,.0f}",
            *(
                (
                    f"{100 * each.spread:.1f}",
                    f"{each.moves:,}",
                    f"{each.moves / each.instances:.3f}",
                    f"{each.moved_most}",
                )
                if any(each.moves for each in replay.policies)
                else ()
            ),
        )
        for each in replay.policies
    ]
    return lines_of([tuple(f"[bold]{each}[/bold]" for each in headings), *lines])


# The picture: three charts over one another, a line for each policy.

_WIDTH, _LEFT, _RIGHT, _TOP = 860, 70, 20, 40
_HEIGHT, _GAP = 150, 46
_INK, _PALE = "#334", "#dde"
_COLOURS = ("#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#7f7f7f")


class _Chart(Struct, frozen=True):
    title: str
    value: Callable[[ReplayMoment], float]
    # How a value on the scale is written.
    written: Callable[[float], str]


_CHARTS = (
    _Chart("vCPU in use", lambda moment: moment.used_share, lambda value: f"{value:.0%}"),
    _Chart("vCPU refused, in all", lambda moment: moment.refused_vcpus, lambda value: f"{value:,.0f}"),
    _Chart(
        "of the free vCPU: stranded beside too little memory or disk",
        lambda moment: moment.stranded_share,
        lambda value: f"{value:.1%}",
    ),
)


def as_svg(replay: Replay) -> str:
    height = _TOP + len(_CHARTS) * (_HEIGHT + _GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" font-family="sans-serif" font-size="12" fill="{_INK}">',
        f"<title>{escape(replay.trace)}, by policy</title>",
        f'<rect width="{_WIDTH}" height="{height}" fill="#fff"/>',
    ]
    at = float(_LEFT)
    for played, colour in zip(replay.policies, _colours(replay), strict=True):
        parts.append(
            f'<rect x="{at:.0f}" y="10" width="14" height="4" fill="{colour}"/><text x="{at + 20:.0f}" y="16">{escape(played.policy)}</text>'
        )
        at += 40 + 7 * len(played.policy)
    for number, chart in enumerate(_CHARTS):
        parts += _chart(replay, chart, _TOP + number * (_HEIGHT + _GAP))
    return "\n".join([*parts, "</svg>", ""])


def _colours(replay: Replay) -> list[str]:
    return [_COLOURS[number % len(_COLOURS)] for number in range(len(replay.policies))]


def _chart(replay: Replay, chart: _Chart, top: float) -> list[str]:
    everything = [moment for played in replay.policies for moment in played.moments]
    first, last = min(each.at_s for each in everything), max(each.at_s for each in everything)
    most = max(1e-9, *(chart.value(each) for each in everything))
    seconds = max(last - first, 1e-9)

    def x(at_s: float) -> float:
        return _LEFT + (at_s - first) / seconds * (_WIDTH - _LEFT - _RIGHT)

    def y(value: float) -> float:
        return top + 20 + _HEIGHT - 20 - value / most * (_HEIGHT - 20)

    parts = [f'<text x="{_LEFT}" y="{top + 12:.0f}">{escape(chart.title)}</text>']
    parts += [
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y(part * most):.1f}" y2="{y(part * most):.1f}" stroke="{_PALE}"/>'
        f'<text x="{_LEFT - 8}" y="{y(part * most) + 4:.1f}" text-anchor="end">{escape(chart.written(part * most))}</text>'
        for part in (0.0, 0.5, 1.0)
    ]
    unit_s, unit = (_DAY_S, "d") if seconds > 2 * _DAY_S else (_HOUR_S, "h")
    parts += [
        f'<text x="{x(at_s):.1f}" y="{top + _HEIGHT + 16:.0f}" text-anchor="middle">{at_s / unit_s:.1f} {unit}</text>'
        for at_s in (first + part * seconds for part in (0.0, 0.25, 0.5, 0.75, 1.0))
    ]
    for played, colour in zip(replay.policies, _colours(replay), strict=True):
        points = " ".join(f"{x(each.at_s):.1f},{y(chart.value(each)):.1f}" for each in played.moments)
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.5" points="{points}"/>')
    return parts
