"""Ask for so many instances, so many at once, and listen until each of them has ended.

What is measured of a boot is what a client sees of it: from the moment its request is handed to the bus to the moment
the event that it is active, or in error, is heard.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct

from bus.codec import CODEC
from bus.handling import Received
from bus.link import Link
from bus.listening import listen
from bus.message import Message
from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    Flavor,
    InstanceActive,
    InstanceFailed,
    InstanceId,
    InstanceState,
    RequestId,
)
from bus.publisher import Outgoing
from bus.station import Station
from bus.topology import EVENTS, Grant
from moor.request_ids import new_request_ids
from scheduler_worker.requests.instance_ids import instance_id_of

FLAVOR = Flavor(name="load", vcpus=1, ram_mb=1024, root_gb=8)
PROJECT = "moor-load"
# Each boot is given this long by itself; and this long without any end of any boot, something is wrong.
DEADLINE_S = 300
SILENCE_S_MAX = 60.0

Feed = AsyncGenerator[Sequence[Received[Message]], None]


class Silence(RuntimeError):  # noqa: N818 - named for what it is
    """Boots are under way, and none of them ends any more."""


class Boot(Struct):
    """One request for one instance."""

    asked_s: float
    ended_s: float = 0.0
    state: InstanceState | None = None


class Fired(Struct):
    """All of them, and when it began and ended."""

    boots: dict[RequestId, Boot]
    began_s: float
    ended_s: float = 0.0

    @property
    def instances(self) -> dict[InstanceId, Boot]:
        """The boots by the one instance of each."""
        return {instance_id_of(request, 0): boot for request, boot in self.boots.items()}

    @property
    def latencies_s(self) -> list[float]:
        return sorted(
            boot.ended_s - boot.asked_s
            for boot in self.boots.values()
            if boot.state is not None and boot.state.state == "active"
        )


@asynccontextmanager
async def hearing(client: Station) -> AsyncGenerator[Feed]:
    """The ends of boots, from now on."""
    link = Link(client.consuming.broker, client.settings)
    keys = ("instance.active.#", "instance.error.#", "build.rejected")
    feed = listen(link, [Grant(EVENTS, keys)], process=client.name, settings=client.settings, codec=CODEC)
    await anext(feed)
    try:
        yield feed
    finally:
        await feed.aclose()
        await link.close()


async def fire(
    client: Station, feed: Feed, boots: int, in_flight: int, progress: Callable[[int], None]
) -> Fired:
    """So many boots, never more of them under way than that; `progress` hears how many have ended."""
    fired = Fired({}, time.perf_counter())
    ended = 0
    while ended < boots:
        count = min(boots - len(fired.boots), in_flight - (len(fired.boots) - ended))
        if count:
            _ask(client, fired, count)
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                heard = await anext(feed)
        except TimeoutError:
            raise Silence(
                f"{ended} of {boots} boots have ended, and in the last {SILENCE_S_MAX:.0f} s not one more"
            ) from None
        ended += _hear(fired, heard)
        progress(ended)
    return fired


def _ask(client: Station, fired: Fired, count: int) -> None:
    requests = []
    now_s = time.perf_counter()
    for id_ in new_request_ids(count):
        fired.boots[id_] = Boot(now_s)
        requests.append(
            Outgoing(BuildInstance(request_id=id_, flavor=FLAVOR, project=PROJECT, deadline_s=DEADLINE_S))
        )
    client.publisher.send_all(requests)


def _hear(fired: Fired, heard: Sequence[Received[Message]]) -> int:
    """How many more have ended."""
    now_s = time.perf_counter()
    count = 0
    for each in heard:
        match each.message:
            case InstanceActive(instance=state) | InstanceFailed(instance=state):
                boot = fired.boots.get(state.request_id)
                if boot is not None and boot.state is None:
                    boot.state, boot.ended_s = state, now_s
                    fired.ended_s = now_s
                    count += 1
            case BuildRejected() as rejected:
                raise RuntimeError(f"a request was rejected: {rejected}")
            case _:
                pass
    return count
