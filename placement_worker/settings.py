"""What an operator may tune of placement."""

from datetime import timedelta

from msgspec import Struct

from bus.tuning import Section
from placement_worker.core.candidates.budget import DEFAULT_LIMITS, SearchLimits
from placement_worker.store import FEED_ENTRIES


class PlacementSettings(Struct, frozen=True):
    # A claim, swap or release made longer ago than this is refused if nothing is known of its consumer any more.
    # Ended consumers are forgotten only after twice that, so that clocks may differ by as much.
    horizon_s: int = 24 * 3600
    # How long the change log is kept for readers that were away.
    log_kept_s: int = 3600
    # How often another process's writes are looked for, and how often somebody who does not lead tries to.
    feed_poll_ms: float = 50.0
    # How long changes gather at most once some were told: each telling reads the providers anew. After a short telling they
    # gather for a short time.
    feed_rest_ms: float = 20.0
    feed_lead_again_ms: float = 1_000.0
    # How many writes are told at once, so that a log which grew while nobody could publish it is read a page at a time.
    feed_entries_max: int = FEED_ENTRIES
    prune_every_s: float = 300.0
    # What one search for candidates may cost, and how long its answer may be: later pages of it are kept in the database.
    search_steps_max: int = DEFAULT_LIMITS.steps_max
    search_bytes_max: int = DEFAULT_LIMITS.bytes_max
    answer_bytes_max: int = 32 * 1024 * 1024

    def __post_init__(self) -> None:
        for field in (
            *("horizon_s", "log_kept_s", "feed_poll_ms", "feed_lead_again_ms", "prune_every_s"),
            *("search_steps_max", "search_bytes_max", "answer_bytes_max", "feed_entries_max"),
        ):
            if getattr(self, field) <= 0:
                raise ValueError(f"{field} is {getattr(self, field)}, must be more than 0")

    @property
    def search_limits(self) -> SearchLimits:
        return SearchLimits(self.search_steps_max, self.search_bytes_max, self.answer_bytes_max)

    @property
    def horizon(self) -> timedelta:
        return timedelta(seconds=self.horizon_s)


SECTION = Section("placement", PlacementSettings, others=("db_url", "api_"))
