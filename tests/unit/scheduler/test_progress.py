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


def test_a_gap_is_closed_by_a_reading_that_reaches_to_its_end(progress: Progress) -> None:
    assert progress.heard(at(13), "thirteen")

    progress.read(at(12), "twelve", heard=at(13))

    assert progress.cursor == "thirteen"
    assert not progress.heard(at(14), "fourteen")
    assert progress.cursor == "fourteen"


def test_a_message_far_ahead_of_what_placement_has_published_was_false(progress: Progress) -> None:
    false = at(11 + UNMARKED_MAX)
    assert progress.heard(false, "false")

    progress.read(at(10), "ten", heard=false)

    assert not progress.heard(at(11), "eleven")
    assert progress.cursor == "eleven"
