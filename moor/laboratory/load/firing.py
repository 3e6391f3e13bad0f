"""Gives the orders of a run, a bounded number at a time, and hears events until each has ended."""

import asyncio
from collections.abc import Callable

from bus.errors import Failure
from bus.workers.publisher import Outgoing
from bus.workers.station import Station
from moor.client import Feed
from moor.laboratory.load.orders import OrderRun

# The run fails if no order ends for this long.
SILENCE_S_MAX = 60.0


class NoProgress(Failure):
    """Orders are under way, but none has ended for SILENCE_S_MAX."""


async def fire(
    run: OrderRun, client: Station, feed: Feed, in_flight: int, progress: Callable[[int], None]
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
