"""The bus as the check of a compute uses it: it sends a conductor's orders, and hears all that the compute publishes.

It reads the conductor's own queue, so it takes the conductor's place. Messages there that are not about its own orders are
held, and go back into the queue at its end; they belong to the cell.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import TypeVar
from uuid import uuid4

from msgspec import Struct

from bus.broker import LINES, PLAIN, Connection, Consuming, Delivery, Parcel, Publishing, Receipt
from bus.clock import now
from bus.codec import CODEC, encode, lines_of
from bus.errors import Failure, Interrupted
from bus.message import Envelope, Message, type_of
from bus.messages.build import InstanceId
from bus.messages.cell import InstanceMessage
from bus.messages.host_modes import HostHolds, HostsNotHere
from bus.origin import Origin, origin_of
from bus.topology import CELL, DEAD, EVENTS, PLACEMENT, Binding, Objects, Queue, QueueKind, in_cell
from bus.unreadable import Unreadable
from bus.urls import broker_at
from bus.workers.authority import BrokerFacts, broker_facts_of, judge, judge_parcel
from bus.workers.dead_letters import open_dead_letters

T = TypeVar("T")

# What the API level sends to a conductor. A cell that gets such orders is in use.
OF_THE_API_LEVEL = frozenset({"place", "remove", "rebuild", "move", "settle", "alternates", "host.mode"})
PREFETCH = 10_000
LETTERS_MAX = 2_000
# The conductor's messages that the cell had before: so long they may take to arrive.
FIRST_LOOK_S = 10.0
LOOK_S = 0.02


class CannotCheck(Failure):
    """The check cannot run, or cannot go on."""


class Heard(Struct, frozen=True):
    """One message of the compute, or a line that nobody can read. `refused` says why a worker would not take it."""

    at_s: float
    exchange: str
    key: str
    line: bytes
    message: Message | None = None
    refused: str = ""

    def __str__(self) -> str:
        text = self.line.decode(errors="replace")
        return f"{text} ({self.refused})" if self.refused else text


class Wire:
    def __init__(self, cell: str, publishing: Publishing, watching: Connection, facts: BrokerFacts) -> None:
        self.cell = cell
        self.heard: list[Heard] = []
        # Those about which the check has sent orders, and the numbers of its questions to hosts.
        self.instances = set[InstanceId]()
        self.questions: set[int] = set()
        self.sent: set[bytes] = set()
        self._publishing, self._watching, self._facts = publishing, watching, facts
        self.in_use: set[str] = set()
        self._news = asyncio.Event()

    # Sending

    async def send(self, *messages: Message) -> list[bytes]:
        """Send these orders, all in one parcel under the key of the first; returns their bytes."""
        lines = [encode(Envelope(message=each, id=f"check-{uuid4()}", sent_at=now())) for each in messages]
        await self.send_lines(lines, type_of(messages[0]))
        return lines

    async def send_lines(self, lines: Sequence[bytes], type_: str) -> None:
        body = b"\n".join(lines)
        self.sent |= {body, *lines}
        receipt = await self._publishing.publish(
            Parcel(
                exchange=in_cell(CELL, self.cell),
                routing_key=f"{type_}.{self.cell}",
                encoded=body,
                content_type=PLAIN if len(lines) == 1 else LINES,
                mandatory=True,
            )
        )
        if receipt is not Receipt.CONFIRMED:
            raise CannotCheck(f"the order {type_!r} was not stored: the broker says {receipt.value}")

    # Hearing

    async def until(self, look: Callable[[], T | None], limit_s: float) -> T | None:
        """What `look` finds, as soon as it finds something; None if it has found nothing after so long."""
        until_s = time.monotonic() + limit_s
        while True:
            if self.in_use:
                orders = ", ".join(sorted(self.in_use))
                raise CannotCheck(
                    f"conductor.{self.cell}.work has orders of the API level ({orders}): cell {self.cell!r} is in use; "
                    "check a compute in a cell of its own"
                )
            if (found := look()) is not None:
                return found
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return None
            self._news.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), left_s)

    async def hear_conductor(self, consuming: Consuming) -> None:
        while True:
            for delivery in await consuming.receive():
                heard = self._read(delivery)
                self.heard += heard
                if all(map(self._is_ours, heard)):
                    await consuming.acknowledge(delivery.tag)
                self.in_use |= {
                    kind
                    for each in heard
                    if each.message is not None and (kind := type_of(each.message)) in OF_THE_API_LEVEL
                }
            self._news.set()

    async def hear(self, consuming: Consuming) -> None:
        while True:
            for delivery in await consuming.receive():
                self.heard += self._read(delivery)
                await consuming.acknowledge(delivery.tag)
            self._news.set()

    def _is_ours(self, heard: Heard) -> bool:
        match heard.message:
            case InstanceMessage(instance=instance):
                return instance in self.instances
            case HostHolds(number=number):
                return number in self.questions
            case HostsNotHere():
                # Only the check asks for hosts that are not there.
                return True
            case _:
                return False

    def _read(self, delivery: Delivery) -> list[Heard]:
        parcel, at_s = delivery.parcel, time.monotonic()
        if parcel.exchange == DEAD:
            return [Heard(at_s, DEAD, parcel.routing_key, parcel.body)]
        origin = origin_of(delivery)
        lines = lines_of(parcel)
        if isinstance(lines, Unreadable):
            return [Heard(at_s, parcel.exchange, parcel.routing_key, parcel.body, refused=lines.reason)]
        return [self._one(origin, line, at_s) for line in lines]

    def _one(self, origin: Origin, line: bytes, at_s: float) -> Heard:
        envelope = CODEC.decode(line)
        if not isinstance(envelope, Envelope):
            why = envelope.reason if isinstance(envelope, Unreadable) else "its version is not known yet"
            return Heard(at_s, origin.exchange, origin.key, line, refused=why)
        message = envelope.message
        refused = judge_parcel(origin, self._facts) or judge(message, origin, self._facts)
        return Heard(at_s, origin.exchange, origin.key, line, message, refused.reason if refused else "")

    # The end

    async def drop_dead_letters(self) -> None:
        """Remove the dead letters of which this check is the cause, and no others."""
        async with open_dead_letters(self._watching, LETTERS_MAX) as opened:
            ours = [tag for tag, letter in opened.letters.items() if letter.parcel.body in self.sent]
            if ours:
                await opened.drop(ours)


@asynccontextmanager
async def opened_wire(url: str, watch_url: str, cell: str) -> AsyncIterator[Wire]:
    """A wire as the conductor of this cell. The user of `watch_url` may bind queues to all exchanges, and read dead letters."""
    async with AsyncExitStack() as stack:
        broker = broker_at(url)
        connection = await broker.connect()
        stack.push_async_callback(connection.close)
        watching = await broker_at(watch_url).connect()
        stack.push_async_callback(watching.close)
        work = f"conductor.{cell}.work"
        if (others := await connection.consumers(work)) > 0:
            raise CannotCheck(
                f"{others} conductors consume {work}: cell {cell!r} is in use. Check a compute in a cell without a "
                "conductor, or stop the conductors first"
            )
        wire = Wire(cell, await connection.open_publishing(), watching, broker_facts_of(broker.user))
        queue = _watch_queue(cell)
        await watching.declare(Objects(queues=(queue,)))
        heard = await watching.open_consuming(queue.name, PREFETCH)
        depth = await connection.depth(work)
        orders = await connection.open_consuming(work, PREFETCH)
        stack.push_async_callback(orders.close)
        tasks = [
            asyncio.create_task(_until_interrupted(wire.hear(heard))),
            asyncio.create_task(_until_interrupted(wire.hear_conductor(orders))),
        ]
        stack.callback(lambda: [task.cancel() for task in tasks])
        await wire.until(lambda: len(wire.heard) >= depth or None, FIRST_LOOK_S if depth else 0)
        yield wire


async def _until_interrupted(hearing: Coroutine[None, None, None]) -> None:
    with suppress(Interrupted):
        await hearing


def _watch_queue(cell: str) -> Queue:
    """It ends with its connection."""
    bindings = (
        Binding(PLACEMENT, f"inventory.report.{cell}"),
        Binding(EVENTS, f"host.state.{cell}"),
        Binding(EVENTS, f"host.beat.{cell}"),
        Binding(DEAD, f"compute.{cell}.work"),
    )
    return Queue(f"answers.check.{cell}", QueueKind.ANSWERS, bindings)
