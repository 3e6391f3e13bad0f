"""A station: a process's connections to one broker, and its publisher and asker there. And the part that hears a feed.

Consuming and publishing have a connection each (bus/workers/sending.py says why). A process that serves several brokers has a
station on each: a placement worker, for example, answers every cell on the cell's own broker.
"""

import asyncio
import os
import random
import secrets
import socket
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from datetime import datetime, timedelta
from itertools import islice
from typing import Generic, TypeVar

from msgspec import structs

from bus.addresses import Addresses, broker_at
from bus.broker import Broker
from bus.codec import CODEC, Codec
from bus.message import Message
from bus.messages.hosts import HostsAlive
from bus.queues import Grant
from bus.settings import BusSettings
from bus.workers import handling
from bus.workers.asking import Asker, listen
from bus.workers.authority import broker_facts_of
from bus.workers.handling import Handler, Handlers, Received, Tx
from bus.workers.publisher import Outgoing, Publisher, now
from bus.workers.sending import Link, pauses_of
from bus.workers.worker import OutboxStore, Transactions, Worker
from engine.inventories import CellName, ProviderId
from kit.metrics import Histogram, Readings
from kit.parts import PartGroup, Periodic, Supervised
from kit.process import Part

# For a station on a cell's broker. A message that is unconfirmed there at the end is kept on a row or comes again from
# a queue, so a broker that is down need not delay the end.
DRAIN_BELOW_MS_MAX = 2_000.0


class Station:
    """Sends orders, events and questions for a process. While `run` runs, it receives the answers. Close it last."""

    def __init__(
        self,
        broker: Broker,
        name: str,
        *,
        settings: BusSettings | None = None,
        codec: Codec = CODEC,
        asks: bool = False,
        clock: Callable[[], datetime] = now,
        chance: random.Random | None = None,
        cells: Iterable[str] | None = None,
    ) -> None:
        """`cells` are the cells served by a cell's own broker; None for the API level's broker."""
        self.name = name
        self.settings = settings or BusSettings()
        self.codec = codec
        self.chance = chance or random.Random(secrets.randbits(64))
        self.clock = clock
        facts = broker_facts_of(broker.user, cells)
        self.consuming = Link(
            broker, self.settings, facts, name="connection for consuming", chance=self.chance
        )
        self._publishing = Link(broker, self.settings, name="connection for publishing", chance=self.chance)
        self.publisher = Publisher(self._publishing, self.settings, name, clock)
        self._asker = (
            Asker(
                self.consuming,
                self.publisher,
                settings=self.settings,
                codec=codec,
                name=name,
                secret=f"{(chance or secrets.SystemRandom()).getrandbits(128):032x}",
                chance=self.chance,
            )
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
        outbox: OutboxStore[Tx] | None = None,
        sweeps: bool = True,
        batches_in_flight: int = 1,
        singly: bool = False,
        chance: random.Random | None = None,
        says_by: Publisher | None = None,
        before_burial: Mapping[type[Message], Sequence[Handler]] | None = None,
        committed: Callable[[], None] = lambda: None,
    ) -> Worker[Tx]:
        """A worker loop for one queue of this broker.

        With an `outbox` it also sends that outbox's unconfirmed messages again. If `sweeps` is false, another loop of
        the same outbox does so. `batches_in_flight` are handled beside each other. `singly`: most messages come alone, each in
        a parcel, so the broker hands over enough parcels ahead for full batches. The results of handlers are published by
        `says_by`, the publisher of another station, or else by this station. `before_burial` has handlers for messages that will be dead-lettered: they release what
        was claimed for such a message. The first handler that succeeds is enough. `committed` is called after each commit.
        """
        return Worker(
            queue,
            handlers,
            store,
            link=self.consuming,
            publisher=self.publisher,
            settings=self.settings,
            codec=self.codec,
            name=self.name,
            chance=chance or self.chance,
            outbox=outbox,
            sweeps=sweeps,
            batches_in_flight=batches_in_flight,
            singly=singly,
            says_by=says_by,
            before_burial=before_burial,
            committed=committed,
            clock=self.clock,
        )

    def raise_refusals(self) -> None:
        """Let questions that the broker refuses fail with its refusal, and not be asked again until their time is up."""
        if self._asker is not None:
            self._asker.raises_refusals = True

    @property
    def trouble(self) -> str:
        """Why this process has no connection to the broker now. Empty if it has what it needed so far."""
        return self.consuming.trouble or self._publishing.trouble

    async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
        if self._asker is None:
            raise TypeError(f"{self.name} cannot ask questions: create it by Station(..., asks=True)")
        return await self._asker.ask_all(questions)

    async def ask(self, question: Message) -> Message:
        return (await self.ask_all((question,)))[0]

    async def send(self, message: Message) -> None:
        """Publish an order or an event. Returns when the broker has it."""
        await self.publisher.send(message)

    @property
    def asked_again(self) -> int:
        return self._asker.asked_again if self._asker else 0

    async def run(self) -> None:
        """Receive the answers to this process's questions until stopped. A station that asks none only waits."""
        await (self._asker.taking_answers.run() if self._asker else self._stopping.wait())

    async def stop(self) -> None:
        self._stopping.set()
        if self._asker:
            await self._asker.taking_answers.stop()

    @property
    def readings(self) -> Readings:
        return (*self.publisher.readings, *(self._asker.readings if self._asker else ()))

    @property
    def parts(self) -> Sequence[object]:
        """The parts whose status health and metrics show (kit/parts.py)."""
        asking = (self._asker.taking_answers,) if self._asker else ()
        return (self.consuming, self._publishing, *asking)

    @property
    def connections_made(self) -> int:
        return self.consuming.connections_made + self._publishing.connections_made

    async def close(self) -> None:
        """Send what is left, then close the connections."""
        await self.publisher.close()
        await self.consuming.close()
        await self._publishing.close()


class FeedListener(Supervised):
    """A part that calls `hear` with batches of the events whose routing keys `grants` allow.

    The first batch, and the first one after each interruption, is `()`: events before it may be missing.
    """

    def __init__(
        self,
        name: str,
        station: Station,
        grants: Iterable[Grant],
        hear: Callable[[Sequence[Received[Message]]], None],
        *,
        is_needed: bool = False,
    ) -> None:
        pauses = pauses_of(station.settings)
        super().__init__(name, self._listen, is_needed=is_needed, pauses=pauses, chance=station.chance)
        self._station = station
        self._grants = grants
        self._hear = hear
        self._fed = Histogram(handling.FED)
        self._labels = (name,)
        self.readings: Readings = (self._fed,)

    async def _listen(self) -> None:
        feed = listen(
            self._station.consuming,
            self._grants,
            process=self._station.name,
            settings=self._station.settings,
            codec=self._station.codec,
            status=self.status,
        )
        async with aclosing(feed) as batches:
            async for batch in batches:
                if batch and (sent_at := batch[0].sent_at) is not None:
                    age_s = (self._station.clock() - sent_at).total_seconds()
                    self._fed.observe(age_s, len(batch), self._labels)
                self._hear(batch)


def stations_at(
    addresses: Addresses, role: str, *, asks: bool = False, settings: BusSettings | None = None
) -> tuple[Station, dict[str, Station]]:
    """A station on the API level's broker, and one on each other broker that has cells. A cell that is not in the
    mapping is on the API level's broker.
    """
    name = process_name(role)
    api = Station(broker_at(addresses.bus_url), name, asks=asks, settings=settings)
    drain_ms_max = min(api.settings.drain_ms_max, DRAIN_BELOW_MS_MAX)
    below = structs.replace(api.settings, drain_ms_max=drain_ms_max)
    at = {addresses.bus_url: api}
    for url in addresses.cell_bus_urls.values():
        if url not in at:
            cells = [cell for cell, theirs in addresses.cell_bus_urls.items() if theirs == url]
            at[url] = Station(broker_at(url), name, settings=below, cells=cells)
    return api, {cell: at[url] for cell, url in addresses.cell_bus_urls.items() if at[url] is not api}


async def close_all(stations: Iterable[Station]) -> None:
    """Close all these connections to the bus at once: a broker that is down does not delay the others."""
    await asyncio.gather(*[station.close() for station in dict.fromkeys(stations)])


def by_station(cells: Mapping[str, Station]) -> dict[Station, tuple[str, ...]]:
    """Group these cells by their stations, since several cells may share a broker.

    Raises ValueError unless each station was created with exactly those cells that `cells` gives to it.
    """
    found = {
        station: tuple(cell for cell, there in cells.items() if there is station)
        for station in dict.fromkeys(cells.values())
    }
    for station, here in found.items():
        if station.consuming.facts.cells != frozenset(here):
            raise ValueError(
                f"the station {station.name} serves the cells {here}: create it with cells={here}"
            )
    return found


def process_name(role: str) -> str:
    """The name of this process in logs, message ids and dead letters: role, host name, process id and a random suffix."""
    return f"{role}-{socket.gethostname().replace('.', '-')}-{os.getpid()}-{secrets.token_hex(2)}"


# Tells schedulers and conductors which hosts there are and what lives: the one way of all rooms to send heartbeats, and to
# report hosts whose facts have changed.


BEATS_PER_MESSAGE = 5000

# What an announcer notes of a host whose facts have changed, such as its row.
Touched = TypeVar("Touched")


def is_silent(unheard_for: timedelta, down_after: timedelta) -> bool:
    """Whether a host counts as down because no heartbeat of it came for this time.

    Schedulers and conductors all use this rule, with the same setting (`BusSettings.host_down_s`).
    """
    return unheard_for >= down_after


class Heartbeats(Periodic):
    """A part that sends the heartbeats that `beats` returns, at an interval.

    A heartbeat that has not left when the next is due is withdrawn: it would report an old state as the current one.
    """

    def __init__(
        self,
        name: str,
        publisher: Publisher,
        beats: Callable[[], Awaitable[Sequence[Message]]],
        every_s: float,
        *,
        rests_first: bool = False,
        chance: random.Random | None = None,
    ) -> None:
        async def beat() -> None:
            await publisher.send_within(every_s, await beats())

        super().__init__(name, beat, every_s, rests_first=rests_first, is_cut_short=True, chance=chance)


class HostAnnouncer(PartGroup, Generic[Touched]):
    """Reports hosts when their facts change, and sends heartbeats of those that are alive.

    A subclass says in `reports` how changed hosts are reported, and in `alive` which hosts of each cell are alive now.
    """

    def __init__(
        self,
        reporting: str,
        beating: str,
        publisher: Publisher,
        *,
        every_s: float,
        beat_s: float,
        beside: Sequence[Part] = (),
        chance: random.Random | None = None,
    ) -> None:
        """`reporting` and `beating` are the names of the two parts, `every_s` and `beat_s` their intervals. The parts
        `beside` run with them.
        """
        self.reporting = Periodic(reporting, self.report, every_s, is_cut_short=True, chance=chance)
        heartbeats = Heartbeats(beating, publisher, self._beats, beat_s, rests_first=True, chance=chance)
        super().__init__(self.reporting, *beside, heartbeats)
        self.publisher = publisher
        # The hosts to report next, and those whose reports are being sent.
        self.touched: dict[ProviderId, Touched] = {}
        self.sending: dict[ProviderId, Touched] = {}

    async def reports(self, touched: Mapping[ProviderId, Touched]) -> Iterable[Message]:
        """The messages that report these hosts."""
        raise NotImplementedError

    def alive(self) -> Mapping[CellName, Iterable[ProviderId]]:
        raise NotImplementedError

    async def report(self) -> None:
        """Report the hosts that were touched. If that fails, they stay touched."""
        self.sending, self.touched = self.touched, {}
        try:
            await self.send(await self.reports(self.sending))
        except Exception:
            self.touched = self.sending | self.touched
            raise

    async def send(self, messages: Iterable[Message]) -> None:
        await self.publisher.send_all([Outgoing(each) for each in messages])

    async def _beats(self) -> Sequence[Message]:
        beats = []
        for cell, hosts in self.alive().items():
            left = iter(hosts)
            while some := tuple(islice(left, BEATS_PER_MESSAGE)):
                beats.append(HostsAlive(cell=cell, hosts=some))
        return beats
