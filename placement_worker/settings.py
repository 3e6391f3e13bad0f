"""Settings of placement that an operator may change."""

from datetime import timedelta
from typing import Annotated

from msgspec import Meta, Struct

from bus.messages.cloud import VALUES_BYTES_MAX
from engine.candidates.budget import DEFAULT_LIMITS, SearchLimits
from kit.settings import Bytes, Count, Milliseconds, MillisecondsOr0, Seconds, Section
from placement_worker.store import FEED_ENTRIES


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
            description="How many rows each cell, and at the API level each project, may leave by releases that came before their claims. "
            "Beyond it a release leaves none, and the log says so. More is safer in disorder; fewer limits what a faulty cell can "
            "write."
        ),
    ] = 10_000
    log_kept_s: Annotated[
        Count,
        Meta(
            description="How long the change log is kept for readers that were away. Longer lets a scheduler catch up after a longer outage "
            "without reading everything again, for more rows."
        ),
    ] = 3600
    feed_poll_ms: Annotated[
        Milliseconds,
        Meta(
            description="How often the leader looks for changes that other processes wrote. Shorter keeps the schedulers' pictures fresher, for "
            "more queries."
        ),
    ] = 50.0
    feed_rest_ms: Annotated[
        MillisecondsOr0,
        Meta(
            description="The longest pause between two publications of changes, in which changes gather. Longer costs less under load; shorter "
            "keeps the schedulers' pictures fresher."
        ),
    ] = 20.0
    feed_lead_again_ms: Annotated[
        Milliseconds,
        Meta(
            description="How often another process tries to become the leader that publishes changes. Shorter resumes the feed sooner after the "
            "leader's death, for more queries."
        ),
    ] = 1_000.0
    feed_entries_max: Annotated[
        Count,
        Meta(
            description="How many log entries are published at once. More catches up faster after an outage; fewer needs less memory."
        ),
    ] = FEED_ENTRIES
    prune_every_s: Annotated[
        Seconds,
        Meta(
            description="How often old rows are deleted. Shorter makes many small deletes; longer makes fewer large ones."
        ),
    ] = 300.0
    search_steps_max: Annotated[
        Count,
        Meta(
            description="How many steps one search for candidates may take; a step is 0.1 to 0.5 microseconds. More answers harder questions; "
            "fewer protects the worker from them."
        ),
    ] = DEFAULT_LIMITS.steps_max
    search_bytes_max: Annotated[
        Bytes,
        Meta(
            description="How much memory the tables of one search may take. More answers harder questions; less protects the worker from them."
        ),
    ] = DEFAULT_LIMITS.bytes_max

    @property
    def search_limits(self) -> SearchLimits:
        return SearchLimits(self.search_steps_max, self.search_bytes_max, VALUES_BYTES_MAX)

    @property
    def horizon(self) -> timedelta:
        return timedelta(seconds=self.horizon_s)


PLACEMENT = Section(
    "placement",
    PlacementSettings,
    "placement workers",
    others=("db_url", "api_*"),
)
