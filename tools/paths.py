"""The files and functions of the rooms that one operation runs through: `python -m tools.paths [--files]`.

A whole cloud runs in this process, on the bus in memory and SQLite. Not counted is what also runs while nothing happens (beats, looks
for what is due), and filters and weighers.
"""

import argparse
import asyncio
import sys
import threading
from collections.abc import Awaitable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from bus.message import Message
from bus.messages.build import BuildInstance, FlavorChange, InstanceActive, InstanceMoved
from bus.messages.moves import MoveInstance
from bus.messages.placement import ProvidersChanged
from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.flavors import Flavor, InstanceId
from moor.client.bus_client import Feed, hearing
from moor.client.requests import new_request_ids
from moor.clouds.cloud import BareMetalPlan, CloudPlan, cells_of_groups
from moor.clouds.temporary_cloud import TemporaryCloud, temporary_cloud

ROOT = Path(__file__).parent.parent
ROOMS = (
    "kit",
    "bus",
    "engine",
    "placement_worker",
    "scheduler_worker",
    "cell_conductor",
    "compute_sim",
    "ironic_sync",
)
# The files of filters and weighers.
_CHOSEN = chosen_plugins(PluginSettings())
PLUGINS = {f"{type(each).__module__.replace('.', '/')}.py" for each in (*_CHOSEN.filters, *_CHOSEN.weighers)}
HOSTS, NODES, CELL = 6, 2, "c1"
FLAVOR = Flavor(name="small", vcpus=1, ram_mb=512, root_gb=1)
# Long enough for every loop of the workers to come round, and for what follows an operation.
IDLE_S, AFTER_S = 12.0, 1.5
Place = tuple[str, str]


class Calls:
    """The code that is called, in all threads that start after it was made."""

    def __init__(self) -> None:
        self._codes: set[CodeType] = set()
        threading.setprofile(self._called)
        sys.setprofile(self._called)

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            self._codes.add(frame.f_code)

    async def places(self, work: Awaitable[object]) -> set[Place]:
        """The places that run during the work, and shortly after it."""
        self._codes.clear()
        await work
        await asyncio.sleep(AFTER_S)
        places = [(Path(code.co_filename), code.co_qualname) for code in self._codes.copy()]
        inside = [(file.relative_to(ROOT), name) for file, name in places if file.is_relative_to(ROOT)]
        # A comprehension or a lambda is a part of its function; since Python 3.12 most have no code of their own.
        return {
            (str(file), name.partition(".<locals>.<")[0]) for file, name in inside if file.parts[0] in ROOMS
        }


async def operations(cloud: TemporaryCloud, calls: Calls) -> dict[str, set[Place]]:
    """What each operation runs through, without what runs all the time."""
    await cloud.until_ready()
    booted: list[InstanceId] = []

    node = (await cloud.nodes())[0]

    async def ask(order: Message) -> None:
        await cloud.client.ask(order)

    async with hearing(cloud.client, "#") as heard:

        async def boot() -> None:
            await ask(BuildInstance(request_id=new_request_ids(1)[0], flavor=FLAVOR))
            booted.append((await _next(heard, InstanceActive)).instance.id)

        async def resize() -> None:
            request_id, change = new_request_ids(1)[0], FlavorChange(vcpus=2)
            await ask(MoveInstance(request_id=request_id, instance=booted[0], kind="resize", change=change))
            await _next(heard, InstanceMoved)

        async def maintenance() -> None:
            cloud.simulated.ironic.set_maintenance(str(node.id), is_on=True)
            await _next(heard, ProvidersChanged)

        # What only the first boot of a process or on a host does, or what still begins, is not a boot's.
        for _ in range(3 * HOSTS):
            await boot()
        always = await calls.places(asyncio.sleep(IDLE_S))
        ran = {each.__name__: await calls.places(each()) for each in (boot, resize, maintenance)}
        always |= await calls.places(asyncio.sleep(IDLE_S))
    return {
        name: {each for each in places - always if each[0] not in PLUGINS} for name, places in ran.items()
    }


async def _next(heard: Feed, kind: type[Message]) -> Any:
    """The next event of this kind."""
    async for batch in heard:
        for each in batch:
            if isinstance(each.message, kind):
                return each.message
    raise AssertionError("the feed has ended")


async def main(*, shows_files: bool) -> None:
    calls = Calls()
    metal = BareMetalPlan(nodes=NODES, cells=cells_of_groups((CELL,)))
    plan = CloudPlan(cells={CELL: HOSTS}, metal=metal)
    async with temporary_cloud(plan, role="paths") as cloud:
        for name, places in (await operations(cloud, calls)).items():
            files = sorted({file for file, _ in places})
            print(f"{name}: {len(files)} files, {len(places)} functions")
            if shows_files:
                print("\n".join(f"  {file}" for file in files))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", action="store_true", help="list the files")
    asyncio.run(main(shows_files=parser.parse_args().files))
