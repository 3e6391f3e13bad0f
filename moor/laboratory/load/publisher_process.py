"""The process of some publishers of a load run: `python -m moor.laboratory.load.publisher_process CONNECTIONS`.

It reads orders from stdin, one a line, each with the time at which it is due, by the clock that all processes of this machine share. It
sends each at that time. When stdin ends, it prints how much later than it was due each order was sent.
"""

import asyncio
import os
import sys
import time
from contextlib import AsyncExitStack

import msgspec

from bus.messages.build import BuildInstance, DeleteInstance
from bus.messages.moves import MoveInstance
from bus.process import run_process
from bus.urls import broker_at
from moor.laboratory.load.firing import DueOrder
from moor.laboratory.load.senders import OwnSender, own_publishers

LINE_BYTES_MAX = 1 << 20
_LINES = msgspec.json.Decoder(tuple[float, BuildInstance | DeleteInstance | MoveInstance])


class OrderSending:
    """Sends each order when it is due."""

    def __init__(self, sender: OwnSender) -> None:
        self._sender = sender
        self.late_s: list[float] = []
        self._left = 0
        self._sent = asyncio.Event()
        self._problem: Exception | None = None

    def plan(self, line: bytes) -> None:
        self._check()
        at_s, message = _LINES.decode(line)
        self._left += 1
        wait_s = max(0.0, at_s - time.perf_counter())
        asyncio.get_running_loop().call_later(wait_s, self._send, DueOrder(at_s, message))

    def _send(self, order: DueOrder) -> None:
        try:
            self._sender.send((order,))
        except Exception as problem:  # noqa: BLE001 - raised by `_check`: a callback of the loop has no caller
            self._problem = problem
        self.late_s.append(time.perf_counter() - order.at_s)
        self._left -= 1
        self._sent.set()

    async def until_sent(self) -> None:
        """Wait until all orders were sent. Raise if one could not be."""
        while self._left:
            self._sent.clear()
            await self._sent.wait()
        self._check()

    def _check(self) -> None:
        if self._problem is not None:
            raise self._problem


async def main(connections: int) -> None:
    async with AsyncExitStack() as stack:
        broker = broker_at(os.environ["MOOR_BUS_URL"])
        sending = OrderSending(await stack.enter_async_context(own_publishers(broker, connections)))
        reader = asyncio.StreamReader(limit=LINE_BYTES_MAX)
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        async for line in reader:
            sending.plan(line)
        await sending.until_sent()
    sys.stdout.write(msgspec.json.encode(sending.late_s).decode())


if __name__ == "__main__":
    run_process(main(int(sys.argv[1])))
