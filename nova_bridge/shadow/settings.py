"""The settings of shadow mode. How it chooses hosts is set in [scheduler]."""

from typing import Annotated

from msgspec import Meta, Struct

from kit.settings import Seconds, Section, require
from nova_bridge.scheduler.settings import QueueWord


class NovaShadowSettings(Struct, frozen=True, kw_only=True):
    queue: Annotated[
        QueueWord,
        Meta(
            description="The queue of copies of Nova's requests. Workers with the same one share the copies; each with its own gets all."
        ),
    ] = "moorage.shadow"
    wait_s: Annotated[
        Seconds,
        Meta(
            description="How long Nova's choice is waited for; then Nova counts as having found no host. It must be longer than Nova's "
            "scheduler takes: `rpc_response_timeout` of nova.conf."
        ),
    ] = 60.0
    file: Annotated[
        str,
        Meta(
            description="The file of the notes, which `moor shadow report` reads: one line of JSON for each instance. A second one with "
            "`.before` at the end has the older ones."
        ),
    ] = "nova-shadow.jsonl"

    def __post_init__(self) -> None:
        require(bool(self.file.strip()), f"file is {self.file!r}, must name a file")


NOVA_SHADOW = Section("nova_shadow", NovaShadowSettings, "`moor run nova-scheduler --shadow`")
