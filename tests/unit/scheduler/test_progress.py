"""How up to date a scheduler knows its picture of placement to be, by what it hears of the feed and by what it reads."""

import pytest

from bus.messages.placement import LogPosition
from scheduler_worker.replica import UNMARKED_MAX, Progress


def at(position: int, term: int = 1) -> LogPosition:
    return LogPosition(term=term, position=position)


@pytest.fixture
def progress() -> Progress:
    """The database was read, up to the tenth message of the feed."""
    known = Progress()
    known.read(at(10), "ten")
    return known


@pytest.mark.parametrize(
    ("heard", "missed"),
    [
        ([at(11), at(12), at(13)], [False, False, False]),
        # The feed repeats messages that the reading had.
        ([at(9), at(10), at(11)], [False, False, False]),
        ([at(11), at(11), at(12)], [False, False, False]),
        ([at(12)], [True]),
        ([at(11), at(13), at(14)], [False, True, True]),
        # Another process publishes.
        ([at(11), at(12, term=2)], [False, True]),
    ],
)
def test_a_message_that_does_not_follow_the_one_before_tells_that_some_were_missed(
    progress: Progress, heard: list[LogPosition], missed: list[bool]
) -> None:
    assert [progress.heard(each, "") for each in heard] == missed


def test_nothing_is_missed_before_the_database_was_read() -> None:
    progress = Progress()

    assert not progress.heard(at(7), "seven")
    assert not progress.heard(at(9), "nine")


@pytest.mark.parametrize(
    ("heard", "reached", "cursor", "then"),
    [
        # A gap is closed by a reading that reaches to its end.
        (at(13), at(12), "heard", at(14)),
        # A message far ahead of what placement has published was false.
        (at(11 + UNMARKED_MAX), at(10), "read", at(11)),
    ],
)
def test_a_reading_closes_a_gap_or_shows_that_there_was_none(
    progress: Progress, heard: LogPosition, reached: LogPosition, cursor: str, then: LogPosition
) -> None:
    assert progress.heard(heard, "heard")

    progress.read(reached, "read", heard=heard)

    assert progress.cursor == cursor
    assert not progress.heard(then, "then")
    assert progress.cursor == "then"
