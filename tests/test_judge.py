"""The judge of the tests: what it changes, whom it asks, and what it says. And a slice of its file, another one at each commit."""

import ast
import textwrap
from collections.abc import Iterator, Sequence
from functools import partial

import msgspec
import pytest
from msgspec import structs

from tests.judge.asking import Judge
from tests.judge.forking import Answer, Job
from tests.judge.kinds import SIMULATION
from tests.judge.mutants import mutants_of
from tests.judge.places import Place, digest_of, files_of, functions_in, places, source_of
from tests.planted import matrix
from tests.planted.matrix import Verdict, again, holds_still, says, slice_of, tree
from tests.planting import MUTANT, PLANTED
from tests.waiting import PATIENCE, NeverTrueError, wait_for

IN_SLICE = 5
FILE = "tests/unit/placement/test_claims.py"
CAPACITY = Place("engine/inventories.py", "capacity_of")
SWAP = Place("placement_worker/core/swaps.py", "swap")
SECONDS = 60.0


@pytest.fixture(scope="module")
def judge() -> Iterator[Judge]:
    found = Judge([FILE], 0)
    yield found
    found.end()


def ask(judge: Judge, change: dict[str, str], tests: Sequence[str] = (), seconds: float = SECONDS) -> Answer:
    return judge.ask(Job(change, tuple(tests or judge.tests), seconds))


def test_some_lines_of_the_file_are_still_true() -> None:
    lines = slice_of(tree(), IN_SLICE)
    judge = Judge(sorted({each.by.partition("::")[0] for each in lines}), 0)

    wrong = [again(judge, each) for each in lines]
    judge.end()

    assert [each for each in wrong if each] == []


def test_each_planted_bug_is_seen_and_one_that_does_harm_by_two_kinds_or_with_a_reason() -> None:
    seen = matrix.seen_by()

    assert [bug for bug, kinds in seen.items() if not kinds] == []
    assert [*matrix.harmful(seen)] == []


def test_without_a_change_all_pass(judge: Judge) -> None:
    assert ask(judge, {}) == Answer(passed=len(judge.tests))


def test_with_a_planted_bug_the_first_test_that_sees_it_is_told_and_the_next_change_begins_anew(
    judge: Judge,
) -> None:
    seen = ask(judge, {PLANTED: "claims granted without a capacity check"})

    assert seen.failed in judge.tests
    assert ask(judge, {}, [seen.failed]) == Answer(passed=1)


def test_a_condition_is_left_out_also_if_only_one_stays(judge: Judge) -> None:
    node = functions_in(ast.parse(source_of(SWAP.file)))[SWAP.name]
    without = [
        each
        for each in mutants_of(SWAP, node)
        if each.what == "without the condition '_attempt_refused(draft, consumer, order)'"
    ]
    (answer,) = [ask(judge, {MUTANT: msgspec.json.encode(each).decode()}) for each in without]

    assert (answer.problem, answer.failed in judge.tests) == ("", True)


def test_a_mutant_is_made_also_where_a_function_is_known_by_other_names(judge: Judge) -> None:
    (mutant, *_) = mutants_of(CAPACITY, functions_in(ast.parse(source_of(CAPACITY.file)))[CAPACITY.name])

    assert ask(judge, {MUTANT: msgspec.json.encode(mutant).decode()}).failed in judge.tests


def test_what_cannot_be_planted_is_a_problem_and_not_a_bug_that_is_seen(judge: Judge) -> None:
    assert "no planted bug 'none'" in ask(judge, {PLANTED: "none"}).problem


def test_when_the_time_is_over_that_is_told(judge: Judge) -> None:
    assert ask(judge, {}, seconds=0.0).cut_off


def answered(answers: dict[str, Answer], tests: Sequence[str], _seconds: float) -> Answer:
    return next((answers[each] for each in tests if each in answers), Answer(passed=len(tests)))


@pytest.mark.parametrize(
    ("with_change", "without", "expected"),
    [
        ({"b": Answer(failed="b", passed=1)}, {}, "seen by b"),
        ({"seed 2": Answer(failed="seed 2: a promise")}, {}, "seen by seed 2: a promise"),
        ({}, {}, "not seen by 4 tests"),
        # It fails without the change, too, so it says nothing, and the others are asked.
        ({"b": Answer(failed="b", passed=1)}, {"b": Answer(failed="b")}, "not seen by 3 tests"),
        ({"b": Answer(passed=1, cut_off=True)}, {}, "cut off after 60 s, not seen by 1 of 4 tests"),
        ({"b": Answer(problem="TypeError")}, {}, "NOT JUDGED: TypeError"),
    ],
)
def test_what_is_said_of_a_bug(
    with_change: dict[str, Answer], without: dict[str, Answer], expected: str
) -> None:
    tests = ("a", "b", "seed 2", "c")

    assert says(partial(answered, with_change), partial(answered, without), tests, SECONDS) == expected


@pytest.mark.parametrize(
    ("kind", "changed", "holds"),
    [
        ("unit", ("tests/unit/test_it.py",), False),
        ("unit", ("tests/unit/test_other.py", "engine/flavors.py"), True),
        ("unit", None, False),
        (SIMULATION, ("tests/simulation/plan.py",), False),
        (SIMULATION, ("tests/unit/test_it.py",), True),
    ],
    ids=["its test", "other files", "no such tree", "the simulation", "not the simulation"],
)
def test_a_verdict_holds_until_its_place_or_a_test_has_changed(
    monkeypatch: pytest.MonkeyPatch, kind: str, changed: tuple[str, ...] | None, *, holds: bool
) -> None:
    monkeypatch.setattr(matrix, "digest", lambda _: "as it was")
    monkeypatch.setattr(matrix, "tests_for", lambda *_: ["tests/unit/test_it.py::test_it"])
    monkeypatch.setattr(matrix, "changed_since", lambda _: changed and frozenset(changed))
    verdict = Verdict("a bug", kind, "as it was", "an old tree", "not seen by 3 tests")

    assert holds_still(verdict, "a new tree") is holds
    assert holds_still(verdict, verdict.tree)
    assert not holds_still(structs.replace(verdict, place="something else"), verdict.tree)


def test_the_changes_since_a_tree_are_known_if_git_has_it() -> None:
    assert matrix.changed_since(tree()) == frozenset()
    assert matrix.changed_since("0" * 12) is None


def test_less_patience_is_had_where_a_test_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PATIENCE, "0.01")
    looks = iter([False] * 100)

    with pytest.raises(NeverTrueError):
        # The look after these ends it by another error.
        wait_for(lambda: next(looks))


def test_the_digest_of_a_place_changes_with_its_work_alone() -> None:
    assert digest_of(CAPACITY) == digest_of(Place(CAPACITY.file, CAPACITY.name))
    assert digest_of(Place(CAPACITY.file, "no_function")) == "gone"
    there = {*places()}
    assert CAPACITY in there
    assert {each.file for each in there} <= {*files_of()}


MUTATED = """
def chosen(hosts, least):
    log.info("chosen", least + 1)
    if not hosts:
        return None
    if all(hosts) and least < 3:
        await first()
        await second()
    return hosts[0]
"""


def test_what_is_changed_in_a_function() -> None:
    (node,) = functions_in(ast.parse(textwrap.dedent(MUTATED).replace("def", "async def"))).values()

    assert [f"{each.line}: {each.what}" for each in mutants_of(Place("file", "chosen"), node)] == [
        "4: nothing is done if 'not hosts'",
        "6: nothing is done if 'all(hosts) and least < 3'",
        "4: 'not hosts' turned",
        "7: without 'await first()'",
        "7: 'await first()' after the line behind it",
        "8: without 'await second()'",
        "6: without the condition 'all(hosts)'",
        "6: without the condition 'least < 3'",
        "6: 'all(hosts)': any",
        "6: 'least < 3': Lt is LtE",
        "6: 3 is 4",
        "9: 0 is 1",
    ]
