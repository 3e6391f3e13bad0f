"""A planted bug whose place is gone is an error, also of a run that plants none."""

from tests.planted import BUGS, HARM_OF
from tests.planted.matrix import harm_table, of_one_kind

ONE_KIND_MAX = 19


def test_every_planted_bug_fits_the_product() -> None:
    for bug in BUGS.values():
        with bug():
            pass


def test_few_bugs_that_do_harm_are_seen_by_one_kind_of_test_alone_and_each_says_why() -> None:
    excused = of_one_kind()

    assert {*excused} <= {*HARM_OF}
    assert all(excused.values())
    assert len(excused) <= ONE_KIND_MAX


def test_a_bug_that_does_harm_and_that_fewer_than_two_kinds_see_is_told() -> None:
    its = sorted(bug for bug, harm in HARM_OF.items() if harm == "doubled")
    first, second, *others = its
    seen = dict.fromkeys(BUGS, ("stories", "unit")) | {first: ("unit",), second: ()}
    lines = [line for line in harm_table(seen) if line.startswith("doubled: ")]

    assert lines[:2] == [f"doubled: {first}: unit", f"doubled: {second}: NOTHING"]
    sums = f"{len(its)} bugs, {len(others)} seen by two kinds or more, 1 by one, 1 by none"
    assert [each.startswith(f"doubled: {sums}") for each in lines[2:]] == [True]
