"""Each entry of the two stages names tests that are there."""

import ast
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.stages import BY_TURNS, IS_KEPT, PARTS, entries, has_none_of, is_for_proof, of_other_commits

TESTS = Path(__file__).parents[1]


def test_each_entry_names_tests() -> None:
    assert [each for each in entries() if not _is_there(each)] == []


def _is_there(entry: str) -> bool:
    file, _, name = entry.partition("::")
    if not name:
        return (TESTS / file).exists()
    if not (TESTS / file).is_file():
        return False
    function, _, parameters = name.partition("[")
    names = [
        each.name
        for each in ast.walk(ast.parse((TESTS / file).read_text()))
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return function in names if parameters else any(each.startswith(function) for each in names)


def test_of_the_long_ones_some_are_kept() -> None:
    assert not is_for_proof("tests/adversity/test_authority.py::test_a")
    assert is_for_proof("tests/adversity/test_foreign_broker.py::test_a")
    assert is_for_proof("tests/api/test_real_keystone.py::test_a[x]")
    assert not is_for_proof("tests/unit/bus/test_codec.py::test_a")


def test_what_has_none_of_the_tests_that_are_asked_for_is_not_imported() -> None:
    there = {each.relative_to(TESTS).as_posix() for each in TESTS.rglob("test_*.py")}
    none = {each for each in there if has_none_of(each, "not rabbitmq and not proof")}

    assert {"conformance/test_candidates_upstream.py", "api/test_real_keystone.py"} <= none
    assert not {each.partition("::")[0] for each in IS_KEPT} & none
    assert not has_none_of("adversity", "rabbitmq and not proof")
    assert has_none_of("unit", "rabbitmq and not proof")
    assert not any(has_none_of(each, "") for each in there)


def test_every_test_that_a_page_names_is_there() -> None:
    there = {each.name for each in TESTS.rglob("test_*.py")}
    # Tutorials name the reader's own.
    pages = [each for each in (TESTS.parent / "docs").rglob("*.md") if each.parent.name != "tutorials"]
    named = {name for page in pages for name in re.findall(r"\btest_\w+\.py", page.read_text())}
    assert named
    assert named - there == set()


def test_each_of_the_files_by_turns_has_its_turn() -> None:
    items: list[Any] = [
        SimpleNamespace(path=each, get_closest_marker=lambda _: True)
        for folder in (*BY_TURNS, "stories", "unit")
        for each in sorted((TESTS / folder).rglob("test_*.py"))
    ]
    turns = [{each.path for each in of_other_commits(items, tree)} for tree in map(str, range(20))]

    assert len({frozenset(each) for each in turns}) == PARTS
    assert set.intersection(*turns) == set()
    assert {each.relative_to(TESTS).parts[0] for each in set.union(*turns)} == {*BY_TURNS, "stories"}
