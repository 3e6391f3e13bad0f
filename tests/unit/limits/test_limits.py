"""Each limit of the product has a row: as much is taken, and one more is refused with the number that is allowed; or a reason why nobody is refused."""

import importlib
import inspect
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.unit.limits.kept import KEPT
from tests.unit.limits.refusals import REFUSED, UNTOLD, Case
from tests.unit.limits.unrefused import SEEN, WHY
from tests.unit.test_repository import ROOMS, ROOT

LIMIT = re.compile(r"\b_?[A-Z][A-Z0-9_]*_MAX\b")
DEFINED = re.compile(r"^ {0,4}([\w, ]*_MAX[\w, ]*)(?:: [^=\n]+)? = ", re.MULTILINE)
IMPORTED = re.compile(r"^from ([\w.]+) import (\([^)]*\)|.*)", re.MULTILINE)
# In a type, or in an option of a command.
STATED = re.compile(r"\b(?:Meta|option)\(([^()]*)")
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


@pytest.mark.parametrize(("limit", "case"), CASES)
async def test_as_much_as_a_limit_is_taken_and_one_more_is_refused_with_the_limit(
    limit: str, case: Case
) -> None:
    most = value_of(limit)

    assert await said(case, most) == ""
    refused = await said(case, most + 1)

    assert any(each in refused for each in (f"{most}", f"{most:,}", f"{most:g}")), refused


@pytest.mark.parametrize("limit", UNTOLD)
async def test_as_much_as_a_limit_counts_and_one_more_does_not(limit: str) -> None:
    most = value_of(limit)

    assert (await said(UNTOLD[limit], most) == "", await said(UNTOLD[limit], most + 1) != "") == (True, True)


@pytest.mark.parametrize("limit", KEPT)
def test_as_much_as_a_limit_is_kept_and_no_more(limit: str) -> None:
    most, kept = value_of(limit), KEPT[limit]

    assert (kept(most - 1), kept(most), kept(most + 1)) == (most - 1, most, most)


# The limits of the product


def test_each_limit_has_one_row_or_one_reason() -> None:
    """Write a row for a new limit: by what a sender comes to it (refusals.py, kept.py), the test that does so, or what happens instead (unrefused.py)."""
    reasons = [f"{file} {name}" for files in WHY.values() for file, names in files.items() for name in names]
    rows = Counter([*REFUSED, *UNTOLD, *KEPT, *SEEN, *reasons])
    defined, stated = all_limits()

    assert sorted(rows - Counter(set(rows))) == [], "these have two"
    assert sorted(defined - stated - set(rows)) == [], "these have none"
    assert sorted(set(rows) - defined) == [], "these limits are gone"


def test_the_tests_that_see_a_limit_are_there() -> None:
    named = {seen.partition("::")[::2] for seen in SEEN.values()}
    assert [(file, test) for file, test in named if f"def {test}(" not in (ROOT / file).read_text()] == []


def all_limits() -> tuple[set[str], set[str]]:
    """Each `..._MAX` that the rooms define, by its file and name; and those that a type or an option states (test_fields.py)."""
    files = {path: path.read_text() for room in ROOMS for path in (ROOT / room).rglob("*.py")}
    defined = {
        f"{path.relative_to(ROOT)} {name}"
        for path, text in files.items()
        for names in DEFINED.findall(text)
        for name in LIMIT.findall(names)
    }
    return defined, {limit for path, text in files.items() for limit in stated_in(path, text)}


def stated_in(path: Path, text: str) -> Iterator[str]:
    homes = {
        name: f"{module.replace('.', '/')}.py {name}"
        for module, names in IMPORTED.findall(text)
        for name in LIMIT.findall(names)
    }
    for stated in STATED.findall(text):
        yield from (homes.get(name, f"{path.relative_to(ROOT)} {name}") for name in LIMIT.findall(stated))
