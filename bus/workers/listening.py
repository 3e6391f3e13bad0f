"""Reads events from a feed queue of this process, and reconnects when the connection breaks.

A feed drops its oldest messages when its reader is slow, and misses events while the queue does not exist. A reader
that must not miss any watches the positions in the events and catches up when they jump.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Iterable, Sequence

from bus.broker import Delivery, Interrupted
from bus.codec import Codec, known_messages
from bus.configuration.settings import BusSettings
from bus.message import Message
from bus.origin import Origin, origin_of
from bus.parts import Status
from bus.topology import Grant, Objects, feed_queue
from bus.workers.authority import BrokerFacts, all_count, judge, judge_parcel
from bus.workers.handling import Received, all_received
from bus.workers.link import Link, pauses_of

log = logging.getLogger(__name__)


async def listen(
    link: Link,
    grants: Iterable[Grant],
    *,
    process: str,
    settings: BusSettings,
    codec: Codec,
    status: Status | None = None,
) -> AsyncGenerator[Sequence[Received[Message]], None]:
    """Yields batches of the events whose routing keys `grants` allow, until the caller stops.

    The first batch is empty: it says that the queue exists, and that later events will arrive. So is the first one
    after each interruption, and no other. Messages that do not count (bus/workers/authority.py) are left out. `status` is the status
    of the listening part and counts interruptions.
    """
    queue = feed_queue(link.broker.user or "anyone", process, grants)
    status = status or Status(f"feed {queue.name}", pauses=pauses_of(settings))
    # A generator cannot be the work of a part, so it retries by itself.
    while True:
        try:
            async with link.opened() as connection:
                await connection.declare(Objects(queues=(queue,)))
                consuming = await connection.open_consuming(queue.name, settings.prefetch)
                try:
                    status.well()
                    yield ()
                    while True:
                        deliveries = await consuming.receive()
                        # A batch without messages would tell of an interruption.
                        if believed := [
                            each for delivery in deliveries for each in _believed(delivery, codec, link.facts)
                        ]:
                            yield believed
                        await consuming.acknowledge(deliveries[-1].tag, multiple=True)
                finally:
                    await consuming.close()
        except Interrupted as interrupted:
            await asyncio.sleep(status.failed(interrupted))


def _believed(delivery: Delivery, codec: Codec, facts: BrokerFacts) -> list[Received[Message]]:
    origin = origin_of(delivery)
    if (refused := judge_parcel(origin, facts)) is not None:
        log.warning("parcel ignored, key %s: %s", origin.key, refused.reason)
        return []
    known = known_messages(delivery.parcel, codec)
    if not all_count([each.message for each in known], origin, facts):
        known = [each for each in known if _counts(each.message, origin, facts)]
    return all_received(known, origin, delivery.returns)


def _counts(message: Message, origin: Origin, facts: BrokerFacts) -> bool:
    refused = judge(message, origin, facts)
    if refused is not None:
        log.warning("message ignored: %s", refused.reason)
    return refused is None
