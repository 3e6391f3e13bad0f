"""Each mark has a test that goes there, and each test that names a line of the log names one that the product has."""

import logging
from collections import Counter

import pytest

from tests.marks import asked_for, hits, lines_of_rooms

log = logging.getLogger("bus.a_rare_path")


def test_each_mark_names_one_path_and_has_a_test_and_each_line_that_tests_name_is_there() -> None:
    lines = [*lines_of_rooms()]
    marks, named = Counter(text for text, is_mark in lines if is_mark), {*asked_for()}

    assert len(marks) > 40, "the walk does not find the marks"
    assert [text for text, places in marks.items() if places > 1] == []
    assert {*marks} - named == set(), (
        "no test says that it gets there: `@pytest.mark.hits` (docs/CONTRIBUTING.md)"
    )
    assert named - {text for text, _ in lines} == set(), "the product does not log this"


def test_a_path_that_is_not_taken_is_told_and_a_line_counts_by_its_text() -> None:
    text, filled_in = "the disk of %s is full", "the disk of h1 is full"
    with hits(text):
        log.warning(text, "h1")

    with pytest.raises(AssertionError, match=filled_in), hits(text, filled_in):
        log.warning(text, "h1")
    assert not log.isEnabledFor(logging.DEBUG)
