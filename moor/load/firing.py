"""Sends boot requests, a bounded number at a time, and hears events until each boot has ended.

A boot's latency is what a client sees: from the moment its request is handed to the publisher until the event that the
instance is active, or in error, is received.
"""

import asyncio
import time
from collections.abc import Callable, Iterable, Sequence

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
from bus.workers.handling import Received
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
    """Boots are under way, but none has ended for SILENCE_S_MAX."""


class Boot(Struct):
    """One request for one instance."""

    sent_s: float
    ended_s: float = 0.0
    state: InstanceState | None = None


class FiredBoots(Struct):
    """All boots of a run, with the times of the first request and of the last end."""

    boots: dict[RequestId, Boot]
    began_s: float
    ended_s: float = 0.0

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


async def fire(
    client: Station,
    feed: Feed,
    boots: int,
    in_flight: int,
    progress: Callable[[int], None],
    *,
    flavor: Flavor = FLAVOR,
) -> FiredBoots:
    """Make `boots` boots, with at most `in_flight` under way; call `progress` with the number that has ended."""
    fired = FiredBoots({}, time.perf_counter())
    ended = 0
    while ended < boots:
        count = min(boots - len(fired.boots), in_flight - (len(fired.boots) - ended))
        if count:
            _ask(client, fired, count, flavor)
        try:
            async with asyncio.timeout(SILENCE_S_MAX):
                heard = await anext(feed)
        except TimeoutError:
            raise NoProgress(
                f"{ended} of {boots} boots have ended, and none in the last {SILENCE_S_MAX:.0f} s"
            ) from None
        ended += _hear(fired, heard)
        progress(ended)
    return fired


def flavor_with(classes: Iterable[str]) -> Flavor:
    """The flavor that also takes one of each of these classes, as of the addresses of a segment."""
    others = sorted(set(classes) - set(amounts_of(FLAVOR)))
    return structs.replace(FLAVOR, extra_specs={f"resources:{name}": "1" for name in others})


def amounts_of(flavor: Flavor) -> dict[str, int]:
    """What each instance of a flavor of the load holds."""
    sizes = {"VCPU": flavor.vcpus, "MEMORY_MB": flavor.ram_mb, "DISK_GB": flavor.root_gb}
    return sizes | {key.removeprefix("resources:"): int(amount) for key, amount in flavor.extra_specs.items()}


def _ask(client: Station, fired: FiredBoots, count: int, flavor: Flavor) -> None:
    requests = []
    now_s = time.perf_counter()
    for id_ in new_request_ids(count):
        fired.boots[id_] = Boot(now_s)
        requests.append(
            Outgoing(BuildInstance(request_id=id_, flavor=flavor, project=PROJECT, deadline_s=DEADLINE_S))
        )
    client.publisher.send_all(requests)


def _hear(fired: FiredBoots, heard: Sequence[Received[Message]]) -> int:
    """Store the ends of boots; return how many boots these events ended."""
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
