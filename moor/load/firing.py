"""Sends boot requests, a bounded number at a time, and hears events until each boot has ended.

A boot's latency is what a client sees: from the moment its request is handed to the publisher until the event that the
instance is active, or in error, is received.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from msgspec import Struct, structs

from bus.errors import Failure
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
from bus.workers.publisher import Outgoing
from bus.workers.station import Station
from moor.client import Feed
from moor.instances.request_ids import new_request_ids
from scheduler_worker.requests.instance_ids import instance_id_of

FLAVOR = Flavor(name="load", vcpus=1, ram_mb=1024, root_gb=8)
PROJECT = "moor-load"
# The deadline of each request.
DEADLINE_S = 300
# The run fails if no boot ends for this long.
SILENCE_S_MAX = 60.0


class NoProgress(Failure):
    """Orders are under way, but none has ended for SILENCE_S_MAX."""


class Boot(Struct):
    """One request for one instance: what it was last heard to be, and the flavor that it has now."""

    flavor: Flavor
    sent_s: float = 0.0
    ended_s: float = 0.0
    state: InstanceState | None = None


class Run(Protocol):
    """Orders that are given one after the other; `ended` of them have ended."""

    count: int
    ended: int

    @property
    def sent(self) -> int: ...

    def next_orders(self, count: int) -> Sequence[Message]:
        """So many more orders at most, which are sent now."""

    def hear(self, message: Message) -> None: ...


async def fire(
    run: Run, client: Station, feed: Feed, in_flight: int, progress: Callable[[int], None]
) -> None:
    """Give all orders of a run, with at most `in_flight` under way; call `progress` with the number that has ended."""
    while run.ended < run.count:
        if room := min(in_flight - (run.sent - run.ended), run.count - run.sent):
            client.publisher.send_all([Outgoing(each) for each in run.next_orders(room)])
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                heard = await anext(feed)
        except TimeoutError:
            raise NoProgress(
                f"{run.ended} of {run.count} orders have ended, and none in the last {SILENCE_S_MAX:.0f} s"
            ) from None
        for each in heard:
            run.hear(each.message)
        progress(run.ended)


class BootRun:
    """Boots of one flavor, with the times of the first request and of the last end."""

    def __init__(self, count: int, flavor: Flavor) -> None:
        self.count = count
        self.ended = 0
        self.boots: dict[RequestId, Boot] = {}
        self.began_s = time.perf_counter()
        self.ended_s = 0.0
        self._flavor = flavor

    @property
    def sent(self) -> int:
        return len(self.boots)

    @property
    def instances(self) -> dict[InstanceId, Boot]:
        """The boots by the one instance of each."""
        return {instance_id_of(request, 0): boot for request, boot in self.boots.items()}

    @property
    def states(self) -> list[InstanceState]:
        return [boot.state for boot in self.boots.values() if boot.state is not None]

    @property
    def latencies_s(self) -> list[float]:
        return [
            boot.ended_s - boot.sent_s
            for boot in self.boots.values()
            if boot.state is not None and boot.state.state == "active"
        ]

    def next_orders(self, count: int) -> Sequence[Message]:
        now_s = time.perf_counter()
        ids = new_request_ids(count)
        self.boots.update({id_: Boot(self._flavor, now_s) for id_ in ids})
        return [boot_of(id_, self._flavor) for id_ in ids]

    def hear(self, message: Message) -> None:
        match message:
            case InstanceActive(instance=state) | InstanceFailed(instance=state):
                boot = self.boots.get(state.request_id)
                if boot is not None and boot.state is None:
                    boot.state, boot.ended_s = state, time.perf_counter()
                    self.ended_s = boot.ended_s
                    self.ended += 1
            case BuildRejected() as rejected:
                raise RuntimeError(f"a request was rejected: {rejected}")
            case _:
                pass


def boot_of(request: RequestId, flavor: Flavor) -> BuildInstance:
    return BuildInstance(request_id=request, flavor=flavor, project=PROJECT, deadline_s=DEADLINE_S)


def flavor_with(classes: Iterable[str]) -> Flavor:
    """The flavor that also takes one of each of these classes, as of the addresses of a segment."""
    others = sorted(set(classes) - set(amounts_of(FLAVOR)))
    return structs.replace(FLAVOR, extra_specs={f"resources:{name}": "1" for name in others})


def amounts_of(flavor: Flavor) -> dict[str, int]:
    """What each instance of a flavor of the load holds."""
    sizes = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.ram_mb, "DISK_GB": flavor.root_gb}
    return sizes | {key.removeprefix("resources:"): int(amount) for key, amount in flavor.extra_specs.items()}
