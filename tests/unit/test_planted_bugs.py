"""A planted bug whose place is gone is an error, also of a run that plants none."""

import ast
from pathlib import Path

from tests.judge.kinds import SIMULATION
from tests.planted import BUGS, HARM_OF
from tests.planted.matrix import harmful, kept, of_one_kind, sums

ONE_KIND_MAX = 19


def test_every_planted_bug_fits_the_product() -> None:
    for bug in BUGS.values():
        with bug():
            pass


def test_the_tests_that_are_said_to_see_bugs_are_there() -> None:
    named = {each.by.partition("[")[0] for each in kept().values() if each.by and each.kind != SIMULATION}
    files = {file for file, _, _ in (each.partition("::") for each in named)}
    there = {
        f"{file}::{node.name}"
        for file in files
        if Path(file).exists()
        for node in ast.walk(ast.parse(Path(file).read_text()))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }

    assert named - there == set()


def test_few_bugs_that_do_harm_are_seen_by_one_kind_of_test_alone_and_each_says_why() -> None:
    excused = of_one_kind()

    assert {*excused} <= {*HARM_OF}
    assert all(excused.values())
    assert len(excused) <= ONE_KIND_MAX


def test_a_bug_that_does_harm_and_that_fewer_than_two_kinds_see_is_told() -> None:
    its = sorted(bug for bug, harm in HARM_OF.items() if harm == "doubled")
    first, second, *others = its
    seen = dict.fromkeys(BUGS, ("stories", "unit")) | {first: ("unit",), second: ()}

    assert [line for line in harmful(seen) if line.startswith("doubled: ")] == [
        f"doubled: {first}: unit",
        f"doubled: {second}: NOTHING",
    ]
    told = f"doubled: {len(its)} bugs, {len(others)} seen by two kinds or more, 1 by one, 1 by none"
    assert [line.startswith(told) for line in sums(seen) if line.startswith("doubled: ")] == [True]
