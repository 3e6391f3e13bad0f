import pytest

from placement_worker.store_sql.log import Snapshot, has_seen


@pytest.mark.parametrize("cursor", ["7:7:", "5:9:5,8", "1:1:"])
def test_a_snapshot_is_written_as_it_was_read(cursor: str) -> None:
    assert str(Snapshot.of(cursor)) == cursor


@pytest.mark.parametrize("cursor", ["", "12", "9:8:", "9:3:", "3:9:8,5", "3:4:5", "0:0:", "a:b:"])
def test_an_invalid_text_is_no_snapshot(cursor: str) -> None:
    assert Snapshot.of(cursor) is None


@pytest.mark.parametrize(
    ("cursor", "forgotten", "seen"),
    [
        ("7:7:", "", True),
        ("7:7:", "7:7:", True),
        ("7:7:", "8:8:", False),
        # Transaction 5 is still open for both, or only for the one that pruned.
        ("5:9:5", "5:7:5", True),
        ("9:9:", "5:7:5", True),
        # It was committed, published and pruned since the cursor was taken.
        ("5:9:5", "7:7:", False),
        # It is younger than everything that was pruned.
        ("8:9:8", "7:7:", True),
    ],
)
def test_a_cursor_can_be_continued_if_it_has_seen_all_that_was_pruned(
    cursor: str, forgotten: str, *, seen: bool
) -> None:
    assert has_seen(cursor, forgotten) == seen


def test_a_snapshot_cut_off_sees_no_more_than_that() -> None:
    snapshot = Snapshot.of("5:9:5,7")

    assert snapshot is not None
    assert str(snapshot.before(7)) == "5:7:5"
    assert snapshot.before(20) == snapshot
