"""Numbers as small pictures."""

from engine.refusals import FunnelStep, NoValidHost
from moor.dashboard.rendering import HEIGHT, SEEN_MIN, WIDTH, funnel_of, funnel_parts, line_of, share


def test_a_line_goes_from_left_to_right_with_the_highest_at_the_top() -> None:
    points = [
        tuple(map(float, each.split(","))) for each in line_of([(0.0, 0.0), (1.0, 5.0), (2.0, 10.0)]).split()
    ]

    assert [x for x, _ in points] == [0.0, WIDTH / 2, WIDTH]
    assert points[0][1] > points[1][1] > points[2][1] > 0
    assert points[0][1] < HEIGHT


def test_lines_of_nothing_and_of_one_value_are_drawn() -> None:
    assert line_of([]) == ""
    assert len(line_of([(7.0, 3.0)]).split()) == 1
    assert len(line_of([(1.0, 0.0), (2.0, 0.0)]).split()) == 2


def test_a_funnel_ends_with_what_is_left() -> None:
    found = NoValidHost(
        hosts=200,
        steps=(
            FunnelStep(step="enabled", removed=50, example="h1: down"),
            FunnelStep(step="capacity", removed=150, example="h2: full"),
        ),
    )

    assert [(each.left, each.removed) for each in funnel_of(found)] == [
        (150, 50),
        (0, 150),
    ]
    assert funnel_of(NoValidHost(hosts=0, steps=())) == []


def test_a_share_is_at_most_whole_and_nothing_at_all_is_full() -> None:
    assert (share(1, 4), share(9, 4), share(0, 0), share(0, 5)) == (25.0, 100.0, 100.0, 0.0)


def test_each_part_of_a_funnel_begins_as_wide_as_the_one_above_ends() -> None:
    parts = funnel_parts([("all hosts", 1000), ("enabled", 500), ("capacity", 1), ("traits", 0)])

    widths = []
    for part in parts:
        (a, _), (b, _), (c, _), (d, _) = (map(float, corner.split(",")) for corner in part.points.split())
        widths.append((round(b - a, 2), round(c - d, 2)))
    assert widths == [(100, 100), (100, 50), (50, SEEN_MIN), (SEEN_MIN, 0)]
    assert [part.count for part in parts] == [1000, 500, 1, 0]
    assert [part.count for part in funnel_parts([("all hosts", 0)])] == [0]
