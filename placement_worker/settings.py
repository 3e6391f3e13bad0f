"""Settings of placement that an operator may change: of its workers, and of its HTTP API."""

from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct

from engine.candidates.budget import DEFAULT_LIMITS
from kit.settings import Count, Section


class PlacementSettings(Struct, frozen=True):
    horizon_s: Annotated[
        Count,
        Meta(
            description="A claim, swap or release that is older than this is refused if its consumer has no row any more. Rows of ended "
            "consumers are kept for twice this time. Longer accepts older messages, for more rows."
        ),
    ] = 24 * 3600
    tombstones_max: Annotated[
        Count,
        Meta(
            description="How many rows each cell may leave by releases that came before their claims. A further release is refused, and "
            "becomes a dead letter. More is safer in disorder; fewer limits what a faulty cell can write."
        ),
    ] = 10_000
    log_kept_s: Annotated[
        Count,
        Meta(
            description="How long the change log is kept for readers that were away. Longer lets a scheduler catch up after a longer outage "
            "without reading everything again, for more rows."
        ),
    ] = 3600
    search_steps_max: Annotated[
        Count,
        Meta(
            description="How many steps one search for candidates may take, asked on the bus or over HTTP; a step is 0.1 to 0.5 microseconds. "
            "More answers harder questions; fewer protects the process, and its other clients, from them."
        ),
    ] = DEFAULT_LIMITS.steps_max

    @property
    def horizon(self) -> timedelta:
        return timedelta(seconds=self.horizon_s)


# How many log entries are read at once: more would need more memory.
FEED_ENTRIES = 500
# A reader that asks for the changes since its cursor gets no more entries than this: then it is as cheap to read all providers.
CHANGES_MAX = 5_000


class FeedPace(Struct, frozen=True):
    """How often the change log is read. A program that simulates time gives another pace."""

    # The leader looks so often for changes that other processes wrote, as the HTTP API does.
    poll_s: float = 0.05
    # The longest pause between two publications, in which changes gather.
    rest_s_max: float = 0.02
    # Another process tries so often to become the leader.
    lead_again_s: float = 1.0
    entries_max: int = FEED_ENTRIES


FEED_PACE = FeedPace()


PLACEMENT = Section(
    "placement",
    PlacementSettings,
    "placement workers, and placement's HTTP API",
    others=("db_url",),
)
