"""A worker process that takes all messages that it can and never finishes them; tests kill it. It prints when it has
enough.
"""

import asyncio
import sys
from collections.abc import Sequence

from bus.addresses import broker_at
from bus.messages.placement import ReleaseClaim
from bus.workers.handling import Received, Said
from bus.workers.station import Station
from tests.contracts.stage import SETTINGS, WORK, Remembering


async def hold(_: Sequence[Received[ReleaseClaim]], __: None) -> Sequence[Said]:
    await asyncio.Event().wait()
    return ()


async def main(url: str) -> None:
    broker = broker_at(url)
    worker = Station(broker, "holding", settings=SETTINGS).worker(WORK, {ReleaseClaim: hold}, Remembering())
    running = asyncio.create_task(worker.run())
    connection = await broker.connect()
    # The last kill may have interrupted the splitting of a parcel: then there are more messages than it can hold.
    while worker.intake.in_hand < SETTINGS.prefetch and await connection.depth(WORK):
        await asyncio.sleep(0.01)
    sys.stdout.write("holding\n")
    sys.stdout.flush()
    await running


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
