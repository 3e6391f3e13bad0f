"""A worker process that takes what it can get and never finishes: there to be killed. Says when it has enough."""

import asyncio
import sys
from collections.abc import Sequence

from bus.handling import Received, Said
from bus.messages.placement import ReleaseClaim
from bus.station import Station
from bus.urls import broker_at
from tests.contracts.stage import SETTINGS, WORK, Remembering


async def hold(_: Sequence[Received[ReleaseClaim]], __: None) -> Sequence[Said]:
    await asyncio.Event().wait()
    return ()


async def main(url: str) -> None:
    broker = broker_at(url)
    worker = Station(broker, "holding", settings=SETTINGS).worker(WORK, {ReleaseClaim: hold}, Remembering())
    running = asyncio.create_task(worker.run())
    connection = await broker.connect()
    # Taking a parcel apart may have been cut off by the last kill: then there are more messages than it can hold.
    while worker.intake.in_hand < SETTINGS.prefetch and await connection.depth(WORK):
        await asyncio.sleep(0.01)
    sys.stdout.write("holding\n")
    sys.stdout.flush()
    await running


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
