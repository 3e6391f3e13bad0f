"""Settings of placement that an operator may change."""

from datetime import timedelta

from msgspec import Struct

from bus.configuration.settings import require_positive
from bus.configuration.tuning import Section
from placement_worker.core.candidates.budget import DEFAULT_LIMITS, SearchLimits
from placement_worker.store import FEED_ENTRIES


class PlacementSettings(Struct, frozen=True):
    # An older claim, swap or release is refused if its consumer has no row any more. Rows of ended consumers are deleted
    # only after twice this time, so that clocks may differ by as much.
    horizon_s: int = 24 * 3600
    # How many rows each cell, and at the API level each project, may leave by releases that came before their claims. Beyond that
    # a release leaves none, and the log tells.
    tombstones_max: int = 10_000
    # How long the change log is kept for readers that were away.
    log_kept_s: int = 3600
    # How often the leader looks for other processes' writes, and how often another process tries to lead.
    feed_poll_ms: float = 50.0
    # The longest pause between two publications, in which changes gather: each publication reads the providers anew. After a
    # short publication the pause is short.
    feed_rest_ms: float = 20.0
    feed_lead_again_ms: float = 1_000.0
    # How many log entries are published at once, so that a log which grew during an outage is read a page at a time.
    feed_entries_max: int = FEED_ENTRIES
    prune_every_s: float = 300.0
    # Limits of one search for candidates, and of its answer: later pages of it are stored in the database.
    search_steps_max: int = DEFAULT_LIMITS.steps_max
    search_bytes_max: int = DEFAULT_LIMITS.bytes_max
    answer_bytes_max: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        require_positive(
            self,
            (
                *(
                    "horizon_s",
                    "tombstones_max",
                    "log_kept_s",
                    "feed_poll_ms",
                    "feed_lead_again_ms",
                    "prune_every_s",
                ),
                *("search_steps_max", "search_bytes_max", "answer_bytes_max", "feed_entries_max"),
            ),
        )

    @property
    def search_limits(self) -> SearchLimits:
        return SearchLimits(self.search_steps_max, self.search_bytes_max, self.answer_bytes_max)

    @property
    def horizon(self) -> timedelta:
        return timedelta(seconds=self.horizon_s)


SECTION = Section("placement", PlacementSettings, others=("db_url", "api_"))
