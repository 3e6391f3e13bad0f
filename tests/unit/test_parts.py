"""Every test of a long proof runs in one of the parts of `make test`, and without parts all run."""

import pytest

from tests import parts
from tests.parts import PART_VARIABLE, PARTS, is_todays_name, part_of

THINGS = tuple(f"test_{number}" for number in range(50))


def test_each_thing_is_in_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PART_VARIABLE, "1")
    found: list[str] = []
    named: list[str] = []
    for today in range(PARTS):
        monkeypatch.setattr(parts, "_today", lambda today=today: today)
        found += part_of(THINGS)
        named += filter(is_todays_name, THINGS)

    assert sorted(found) == sorted(named) == sorted(THINGS)


def test_without_parts_everything_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PART_VARIABLE, raising=False)

    assert part_of(THINGS) == [*filter(is_todays_name, THINGS)] == [*THINGS]


def test_the_commit_says_which_part_it_is() -> None:
    assert 0 <= parts._today() < PARTS  # noqa: SLF001
