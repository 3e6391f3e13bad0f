"""One process's place on one broker: its connections, its way out, and its way to ask.

Consuming and publishing have a connection each (bus/link.py says why). A process that serves several brokers, such as a
placement worker that answers every cell on the cell's own broker, has a station on each.
"""

import asyncio
import os
import random
import secrets
import socket
from collections.abc import Sequence
from contextlib import suppress

from bus.asking import Asker
from bus.broker import Broker
from bus.codec import CODEC, Codec
from bus.handling import Handlers, Tx
from bus.link import Link
from bus.message import Message
from bus.publisher import Publisher
from bus.settings import BusSettings
from bus.worker import Outbox, Transactions, Worker


class Station:
    """A part of a process (bus/process.py): run it to have answers delivered, close it last."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        *,
        settings: BusSettings | None = None,
        codec: Codec = CODEC,
        asks: bool = False,
    ) -> None:
        self.name = name
        self.settings = settings or BusSettings()
        self.codec = codec
        self.consuming = Link(broker, self.settings)
        self._publishing = Link(broker, self.settings)
        self.publisher = Publisher(self._publishing, self.settings, name)
        self._asker = (
            Asker(self.consuming, self.publisher, settings=self.settings, codec=codec, name=name)
            if asks
            else None
        )
        self._stopping = asyncio.Event()

    def worker(
        self,
        queue: str,
        handlers: Handlers,
        store: Transactions[Tx],
        *,
        outbox: Outbox[Tx] | None = None,
        chance: random.Random | None = None,
    ) -> Worker[Tx]:
        """A loop over one queue of this broker; what its handlers say leaves by this station."""
        return Worker(
            queue,
            handlers,
            store,
            link=self.consuming,
            publisher=self.publisher,
            settings=self.settings,
            codec=self.codec,
            name=self.name,
            chance=chance or random.Random(secrets.randbits(64)),
            outbox=outbox,
        )

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        if self._asker is None:
            raise TypeError(f"{self.name} was not made to ask: Station(..., asks=True)")
        return await self._asker.ask_all(questions)

    async def ask(self, question: Message) -> Message:
        return (await self.ask_all((question,)))[0]

    @property
    def asked_again(self) -> int:
        return self._asker.asked_again if self._asker else 0

    async def run(self) -> None:
        """Take in answers until stopped; a station that does not ask only waits."""
        stopping = asyncio.create_task(self._stopping.wait())
        asking = asyncio.create_task(self._asker.run()) if self._asker else None
        try:
            await asyncio.wait(
                [stopping, asking] if asking else [stopping], return_when=asyncio.FIRST_COMPLETED
            )
            if asking and asking.done():
                asking.result()
        finally:
            for task in (stopping, asking):
                if task is not None:
                    task.cancel()
                    with suppress(asyncio.CancelledError):
                        await task

    async def stop(self) -> None:
        self._stopping.set()

    async def close(self) -> None:
        """Let go of what was said, then of the broker."""
        await self.publisher.close()
        await self.consuming.close()
        await self._publishing.close()


def process_name(role: str) -> str:
    """Who this process is in logs, message ids and dead letters: the role, where, and a suffix that no other has."""
    return f"{role}-{socket.gethostname().replace('.', '-')}-{os.getpid()}-{secrets.token_hex(2)}"
