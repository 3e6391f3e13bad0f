"""Who sends the orders of a load run: its own client, or independent publishers.

Independent publishers have a connection each, and send each order as a message of its own, as many small clients do. On servers they are
in processes of their own, whose CPU time is counted apart; an embedded run has them in its one process.

Such a process is this module: `python -m laboratory.load.senders CONNECTIONS`. It reads orders from stdin, one a line, each with
the time at which it is due, by the clock that all processes of this machine share. It sends each at that time. When stdin ends, it prints how
much later than it was due each order was sent.
"""

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import cycle
from math import ceil

import msgspec

from bus.addresses import broker_at
from bus.broker import Broker
from bus.messages.build import BuildInstance, DeleteInstance
from bus.messages.moves import MoveInstance
from bus.settings import BusSettings
from bus.workers.publisher import Outgoing, Publisher
from bus.workers.sending import Link
from kit.errors import Failure
from kit.process import run_process
from laboratory.cloud_processes import Servers
from laboratory.load.firing import DueOrder

# A process that sends more messages of their own a second would soon be late.
PER_PROCESS_PER_S = 500
# So long before they are due, publishers' processes get their orders: a pause of this process makes none of them late.
AHEAD_S = 0.25
# Each order is a message of its own.
ALONE = BusSettings(parcel_items_max=1)
LINE_BYTES_MAX = 1 << 20
_LINES = msgspec.json.Decoder(tuple[float, BuildInstance | DeleteInstance | MoveInstance])


class PublisherEnded(Failure):
    """A process of publishers ended before the run did."""


class OwnSender:
    """Sends by these publishers in turn; with a single one, all that is due together."""

    ahead_s = 0.0

    def __init__(self, *publishers: Publisher) -> None:
        self._publishers = publishers
        self._turns = cycle(publishers)
        self._problem: BaseException | None = None

    def send(self, orders: Sequence[DueOrder]) -> None:
        if self._problem is not None:
            raise self._problem
        parts = [orders] if len(self._publishers) == 1 else [(each,) for each in orders]
        for part in parts:
            outgoing = [Outgoing(each.message) for each in part]
            next(self._turns).send_all(outgoing).add_done_callback(self._told)

    def _told(self, sent: asyncio.Future[None]) -> None:
        if not sent.cancelled() and (problem := sent.exception()):
            self._problem = problem


class PublisherProcesses:
    """Publishers in processes of their own. Call `finish` after the last order."""

    ahead_s = AHEAD_S

    def __init__(self, processes: Sequence[asyncio.subprocess.Process]) -> None:
        self._processes = processes
        self._turns = cycle(processes)

    @property
    def pids(self) -> Sequence[int]:
        return [each.pid for each in self._processes]

    def send(self, orders: Sequence[DueOrder]) -> None:
        for each in orders:
            into = next(self._turns).stdin
            assert into is not None, "it was started with a pipe"
            into.write(msgspec.json.encode(each) + b"\n")

    async def watch(self) -> None:
        """Raise as soon as one of the processes ends."""
        waits = [asyncio.create_task(each.wait()) for each in self._processes]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for each in waits:
                each.cancel()
        ended = next(each for each in self._processes if each.returncode is not None)
        assert ended.stderr is not None, "it was started with a pipe"
        said = (await ended.stderr.read()).decode(errors="replace").strip().splitlines()
        raise PublisherEnded(
            f"publishers ended with code {ended.returncode}: {said[-1] if said else 'they said nothing'}"
        )

    async def finish(self) -> list[float]:
        """End the processes. Returns how much later than it was due each order was sent."""
        late_s: list[float] = []
        for each in self._processes:
            # Without an input it would leave stdin open, and the process would wait for more.
            told, _ = await each.communicate(b"")
            late_s += msgspec.json.decode(told, type=list[float])
        return late_s


@asynccontextmanager
async def own_publishers(broker: Broker, count: int) -> AsyncIterator[OwnSender]:
    """Publishers in this process, with a connection each."""
    async with AsyncExitStack() as stack:
        yield OwnSender(*[await _connected(broker, number, stack) for number in range(1, count + 1)])


async def _connected(broker: Broker, number: int, stack: AsyncExitStack) -> Publisher:
    link = Link(broker, ALONE)
    stack.push_async_callback(link.close)
    await link.connection()
    publisher = Publisher(link, ALONE, f"load-publisher-{number}-{os.getpid()}")
    stack.push_async_callback(publisher.close)
    return publisher


@asynccontextmanager
async def publisher_processes(servers: Servers, count: int, rate: float) -> AsyncIterator[PublisherProcesses]:
    """So many publishers, in as few processes as the rate allows; without a rate, in as many as there are processors."""
    wanted = ceil(rate / PER_PROCESS_PER_S) if rate else os.cpu_count() or 1
    processes = []
    async with AsyncExitStack() as stack:
        for size in _shares(count, min(count, wanted)):
            process = await _start(servers.bus_url, size)
            stack.push_async_callback(_end, process)
            processes.append(process)
        for each in processes:
            await _until_ready(each)
        yield PublisherProcesses(processes)


def _shares(count: int, parts: int) -> Iterator[int]:
    for number in range(parts):
        yield count // parts + (number < count % parts)


async def _start(url: str, connections: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "laboratory.load.senders", str(connections)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "MOOR_BUS_URL": url},
        # The terminal sends Ctrl-C only to this process, which then ends these itself.
        start_new_session=True,
    )


async def _until_ready(process: asyncio.subprocess.Process) -> None:
    assert process.stdout is not None, "it was started with a pipe"
    if await process.stdout.readline() != b"ready\n":
        await PublisherProcesses([process]).watch()


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


# In a process of publishers


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
