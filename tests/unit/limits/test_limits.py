"""Each limit of the product has a row: as much is taken, and one more is refused with the number that is allowed; or a reason why nobody is refused."""

import ast
import importlib
import inspect
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.limits.refusals import REFUSED, Case
from tests.unit.limits.unrefused import SEEN, WHY
from tests.unit.test_class_names import ROOMS, ROOT

CASES = [
    (limit, case)
    for limit, cases in REFUSED.items()
    for case in (cases if isinstance(cases, tuple) else (cases,))
]


def value_of(limit: str) -> Any:
    file, name = limit.split()
    return getattr(importlib.import_module(file.removesuffix(".py").replace("/", ".")), name)


async def said(case: Case, much: float) -> str:
    try:
        result = case(much)
        if inspect.isawaitable(result):
            result = await result
    except Exception as problem:  # noqa: BLE001 - of which kind is not asked here
        return str(problem)
    return result if isinstance(result, str) else ""


@pytest.mark.asyncio
@pytest.mark.parametrize(("limit", "case"), CASES)
async def test_as_much_as_a_limit_is_taken_and_one_more_is_refused_with_the_limit(
    limit: str, case: Case
) -> None:
    most = value_of(limit)

    assert await said(case, most) == ""
    refused = await said(case, most + 1)

    assert any(each in refused for each in (f"{most}", f"{most:,}", f"{most:g}")), refused


# The limits of the product


def test_each_limit_has_one_row_or_one_reason() -> None:
    """Write a row for a new limit: by what a sender comes to it (refusals.py), the test that does so, or what happens instead (unrefused.py)."""
    reasons = [f"{file} {name}" for files in WHY.values() for file, names in files.items() for name in names]
    rows = Counter([*REFUSED, *SEEN, *reasons])
    defined, stated = all_limits()

    assert sorted(rows - Counter(set(rows))) == [], "these have two"
    assert sorted(defined - stated - set(rows)) == [], "these have none"
    assert sorted(set(rows) - defined) == [], "these limits are gone"


def test_the_tests_that_see_a_limit_are_there() -> None:
    named = {seen.partition("::")[::2] for seen in SEEN.values()}
    assert [(file, test) for file, test in named if f"def {test}(" not in (ROOT / file).read_text()] == []


def all_limits() -> tuple[set[str], set[str]]:
    """Each `..._MAX` that the rooms define, by its file and name; and those that a type or an option states (test_fields.py)."""
    trees = {path: ast.parse(path.read_text()) for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    defined = {
        f"{path.relative_to(ROOT)} {name}" for path, tree in trees.items() for name in defined_in(tree)
    }
    return defined, {limit for path, tree in trees.items() for limit in stated_in(path, tree)}


def defined_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id.endswith("_MAX"):
            yield node.id


def stated_in(path: Path, tree: ast.Module) -> Iterator[str]:
    homes = {
        name.asname or name.name: f"{str(node.module).replace('.', '/')}.py {name.name}"
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    }
    for call in ast.walk(tree):
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id in ("Meta", "option")
        ):
            for each in ast.walk(call):
                if isinstance(each, ast.Name):
                    yield homes.get(each.id, f"{path.relative_to(ROOT)} {each.id}")
