"""Bugs that were made on purpose, each one real piece replaced by one that does less: a simulation that does not find
them would not find others.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.simulation.planted import of_the_books, of_the_bus, of_the_cells, of_the_scheduler

Plant = Callable[[], AbstractContextManager[None]]

BUGS: dict[str, Plant] = {
    "acknowledge before commit": of_the_bus.acknowledge_before_commit,
    "release twice": of_the_books.release_twice,
    "claim without guard": of_the_books.claim_without_guard,
    "claim after its own release": of_the_books.claim_after_its_own_release,
    "redelivery handled anew": of_the_cells.redelivery_handled_anew,
    "publish upward": of_the_cells.publish_upward,
    "delete overtakes place": of_the_cells.delete_overtakes_place,
    "late success of attempt 1 accepted": of_the_cells.late_success_accepted,
    "event dropped when its row is re-read": of_the_cells.event_dropped_when_its_row_is_read,
    "a gap in the feed ignored": of_the_scheduler.gap_in_the_feed_ignored,
}
