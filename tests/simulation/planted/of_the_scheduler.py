"""A scheduler's picture, planted."""

from contextlib import AbstractContextManager
from typing import Any

from scheduler_worker.core.progress import Progress
from tests.simulation.replacing import replaced


def gap_in_the_feed_ignored() -> AbstractContextManager[None]:
    """A jump in the feed's positions is taken for nothing."""

    def by(real: Any) -> Any:
        def heard(self: Any, at: Any, cursor: str) -> bool:
            real(self, at, cursor)
            return False

        return heard

    return replaced(Progress, "heard", by)
