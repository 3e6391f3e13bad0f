"""The settings of shadow mode. How it chooses hosts is set in [scheduler]."""

from typing import Annotated

from msgspec import Meta, Struct

from bus.configuration.sections import Count, Seconds, Section, require
from scheduler_worker.nova_worker.settings import QueueWord


class NovaShadowSettings(Struct, frozen=True, kw_only=True):
    queue: Annotated[
        QueueWord,
        Meta(
            description="The queue of copies of Nova's requests. Workers with the same one share the copies; each with its own gets all."
        ),
    ] = "moorage.shadow"
    length_max: Annotated[
        Count,
        Meta(
            description="How many copies wait at most; the oldest are dropped. More survives longer pauses; fewer needs less memory of Nova's "
            "broker."
        ),
    ] = 1000
    expires_s: Annotated[
        Count,
        Meta(
            description="After how long without a worker the queue of copies is deleted. Shorter leaves less behind; longer survives longer "
            "restarts."
        ),
    ] = 300
    look_s: Annotated[
        Seconds,
        Meta(
            description="How often placement is asked what Nova has chosen; for one request, ever more seldom. Shorter sees a host before its "
            "instance moves on; longer loads placement less."
        ),
    ] = 1.0
    wait_s: Annotated[
        Seconds,
        Meta(
            description="How long Nova's choice is waited for; then Nova counts as having found no host. It must be longer than Nova's "
            "scheduler takes: `rpc_response_timeout` of nova.conf."
        ),
    ] = 60.0
    waiting_max: Annotated[
        Count,
        Meta(
            description="Of how many requests Nova's choice is waited for at once; then the oldest is noted without. More compares more under "
            "load; fewer needs less memory: of each is kept how every host looked."
        ),
    ] = 300
    file: Annotated[
        str,
        Meta(
            description="The file of the notes, which `moor shadow report` reads: one line of JSON for each instance. A second one with "
            "`.before` at the end has the older ones."
        ),
    ] = "nova-shadow.jsonl"
    notes_max: Annotated[
        Annotated[int, Meta(ge=2, le=10_000_000)],
        Meta(
            description="How many notes are kept at most. More reports on longer times; fewer needs less disk."
        ),
    ] = 100_000
    kept_s: Annotated[
        Seconds,
        Meta(
            description="How long notes are kept at most. Longer reports on longer times; shorter keeps less of what users asked for."
        ),
    ] = 14 * 86_400.0

    def __post_init__(self) -> None:
        require(bool(self.file.strip()), f"file is {self.file!r}, must name a file")
        require(
            self.look_s <= self.wait_s, f"look_s is {self.look_s}, must be at most wait_s ({self.wait_s})"
        )


NOVA_SHADOW = Section("nova_shadow", NovaShadowSettings, "`moor run nova-scheduler --shadow`")
