"""A worker in shadow mode beside a Nova of a few computes whose own scheduler goes on."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from uuid import UUID

from bus.workers.sending import Link
from engine.flavors import InstanceId
from kit.keystone import OpenStackSettings
from nova_bridge.cloud import ServerSeen
from nova_bridge.placement_api import PlacementApi
from nova_bridge.settings import NovaSettings
from nova_bridge.shadow.notes import ShadowNote, read_notes
from nova_bridge.shadow.wiring import COPIES, shadow_parts
from tests.contracts.stage import SETTINGS
from tests.stories.cloud import QUICK
from tests.stories.nova.nova_world import ONCE, NovaWorld
from tests.waiting import until

SMALL = {"VCPU": 1, "MEMORY_MB": 64, "DISK_GB": 1}


class Shadow:
    """The worker's notes and its page of metrics."""

    def __init__(self, file: Path, page: Callable[[], str]) -> None:
        self.file = file
        self.page = page

    @property
    def notes(self) -> Sequence[ShadowNote]:
        return read_notes(self.file).notes if self.file.exists() else ()

    async def note_of(self, instance: UUID) -> ShadowNote:
        return await until(
            lambda: next((each for each in self.notes if each.instance == instance), None),
            f"a note of instance {instance}",
        )

    async def counted(self, copies: int, outcome: str = "decided") -> None:
        """Wait until the page counts so many with this outcome."""
        line = f'moor_nova_shadow_copies_total{{outcome="{outcome}"}} {copies}.0'
        await until(self.page, line, lambda page: line in page)


@asynccontextmanager
async def in_the_shadow(
    world: NovaWorld,
    folder: Path,
    *,
    asks_server: Callable[[InstanceId], Awaitable[ServerSeen | None]] | None = None,
    wait_s: float = 1.0,
) -> AsyncIterator[Shadow]:
    """Nova's choice is looked for at short intervals, and waited for for so long."""
    file = folder / "shadow.jsonl"
    settings = NovaSettings(rpc_timeout_s=wait_s, shadow_file=str(file))
    api = PlacementApi("http://placement", OpenStackSettings(), limits=ONCE, transport=world.line)
    link = Link(world.broker_of_nova(), SETTINGS, name="Nova")
    parts = shadow_parts(
        link,
        world.known,
        settings,
        QUICK,
        api=api,
        look_s=0.05,
        asks_server=asks_server,
        look_again=world.known.read_soon,
    )
    async with world.running(parts, link, api) as page:
        await world.until_heard(COPIES)
        yield Shadow(file, page)
