"""How far a picture has come: the feed and readings of the books, in whatever order they meet."""

from bus.messages.placement import LogPosition
from scheduler_worker.replica import Progress


def at(position: int, term: int = 1) -> LogPosition:
    return LogPosition(term=term, position=position)


def a_progress(position: int = 10, cursor: str = "c10") -> Progress:
    """The progress of a picture that was read after so many publications."""
    progress = Progress()
    progress.read(at(position), cursor)
    return progress


def test_messages_that_follow_each_other_move_the_cursor_on() -> None:
    progress = a_progress()

    assert not progress.heard(at(11), "c11")
    assert not progress.heard(at(12), "c12")

    assert progress.cursor == "c12"


def test_a_telling_that_is_not_complete_moves_nothing_until_its_last_message() -> None:
    progress = a_progress()

    assert not progress.heard(at(11), "")
    assert progress.cursor == "c10"
    assert not progress.heard(at(12), "c12")
    assert progress.cursor == "c12"


def test_a_jump_is_told_and_leaves_the_cursor_where_it_was() -> None:
    progress = a_progress()

    assert progress.heard(at(12), "c12")
    assert progress.heard(at(13), "c13")

    assert progress.cursor == "c10"


def test_a_reading_closes_the_gap_before_a_run_and_the_end_of_the_run_counts() -> None:
    progress = a_progress()
    progress.heard(at(13), "c13")
    progress.heard(at(14), "c14")

    progress.read(at(12), "c12")

    assert progress.cursor == "c14"
    assert not progress.heard(at(15), "c15")
    assert progress.cursor == "c15"


def test_a_reading_that_does_not_reach_the_run_leaves_the_gap_open() -> None:
    progress = a_progress()
    progress.heard(at(13), "c13")

    progress.read(at(11), "c11")

    assert progress.cursor == "c11"
    assert progress.heard(at(14), "c14")
    assert progress.cursor == "c11"


def test_a_cursor_that_was_told_before_a_reading_does_not_put_it_back() -> None:
    progress = a_progress()
    progress.heard(at(11), "c11")
    progress.heard(at(12), "")

    progress.read(at(11), "later than c11")

    assert progress.cursor == "later than c11"


def test_another_term_is_a_jump_until_the_books_were_read_in_it() -> None:
    progress = a_progress()

    assert progress.heard(at(1, term=2), "d1")
    progress.read(at(0, term=2), "d0")

    assert progress.cursor == "d1"
    assert not progress.heard(at(2, term=2), "d2")


def test_what_is_said_again_is_no_jump_and_no_progress() -> None:
    progress = a_progress()
    progress.heard(at(11), "c11")
    progress.heard(at(12), "c12")

    assert not progress.heard(at(11), "c11")
    assert progress.cursor == "c12"


def test_before_the_first_reading_nothing_is_missing_that_it_will_not_bring() -> None:
    progress = Progress()

    assert not progress.heard(at(7), "c7")
    assert not progress.heard(at(9), "c9")
    assert progress.cursor == ""

    progress.read(at(8), "c8")
    assert progress.cursor == "c9"


def test_a_false_position_far_ahead_hides_no_gap_once_the_books_were_read() -> None:
    progress = a_progress()
    assert progress.heard(at(2**40), "false")

    progress.read(at(11), "c11", progress.heard_up_to)

    assert progress.cursor == "c11"
    assert not progress.heard(at(12), "c12")
    assert progress.heard(at(14), "c14")


def test_a_feed_that_is_ahead_of_placements_note_goes_on() -> None:
    """Placement notes how far it has published after it has published."""
    progress = a_progress()
    progress.heard(at(11), "c11")
    progress.heard(at(12), "c12")

    progress.read(at(11), "c11", progress.heard_up_to)

    assert not progress.heard(at(13), "c13")
    assert progress.cursor == "c13"
