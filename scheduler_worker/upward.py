"""What is heard on the brokers that cells have of their own.

Its hosts are heard of there, and what it says of its instances: that is said again at API level, where clients and
dashboards listen, so that they need not know which cells stand where. Nothing here is a call: who goes down to hear it
is the scheduler, and while it is away the words wait in the cell's own queue.
"""

import asyncio
import logging
from collections.abc import Collection, Sequence
from contextlib import aclosing

from bus.broker import Refusal
from bus.handling import Handler, Handlers, Reading, Received, Said, Tell
from bus.listening import listen
from bus.message import Message
from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed
from bus.messages.hosts import HostsAlive, HostsReported
from bus.station import Station
from bus.topology import EVENTS, Grant
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.instances import CellsWord
from scheduler_worker.late import LateTransaction

log = logging.getLogger(__name__)

WORDS = (InstanceActive, InstanceFailed, InstanceDeleted)
OF_HOSTS = (Grant(EVENTS, ("host.*.*",)),)


def relayed(handlers: Handlers) -> Handlers:
    """For a cell's own broker: what it says of its instances is said again, news or not. A crash in between repeats it,
    and who hears it twice goes by its sequence.
    """
    on_words = _on_words(handlers)

    async def on_words_to_relay(asks: Sequence[Received[CellsWord]], late: LateTransaction) -> Sequence[Said]:
        said = await on_words(asks, late)
        return [*said, *(Tell(ask.message, ask) for ask in asks)]

    return {**handlers, **dict.fromkeys(WORDS, on_words_to_relay)}


def without_relayed(handlers: Handlers, cells: Collection[str]) -> Handlers:
    """For the API level's broker: what was said again here was heard where it was said first."""
    on_words = _on_words(handlers)

    async def on_other_words(asks: Sequence[Received[CellsWord]], late: LateTransaction) -> Sequence[Said]:
        return await on_words([ask for ask in asks if ask.message.cell not in cells], late)

    return {**handlers, **dict.fromkeys(WORDS, on_other_words)}


def _on_words(handlers: Handlers) -> Handler:
    handler = handlers[InstanceActive]
    assert not isinstance(handler, Reading), "what cells say is saved"
    return handler


class CellEars:
    """Hears of hosts on a cell's own broker. A part; what keeps it from hearing keeps nobody else."""

    def __init__(self, station: Station, registry: HostRegistry) -> None:
        self._station = station
        self._registry = registry
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        listening = asyncio.create_task(self._listen())
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((listening, stopping), return_when=asyncio.FIRST_COMPLETED)
            if listening.done():
                listening.result()
        finally:
            for task in (listening, stopping):
                task.cancel()
            await asyncio.gather(listening, stopping, return_exceptions=True)

    async def stop(self) -> None:
        self._stopping.set()

    async def _listen(self) -> None:
        station = self._station
        while True:
            feed = listen(
                station.consuming,
                OF_HOSTS,
                process=station.name,
                settings=station.settings,
                codec=station.codec,
            )
            try:
                async with aclosing(feed):
                    async for batch in feed:
                        for each in batch:
                            self._take(each)
            except Refusal as refused:
                # The topology may be declared there, or the right granted, while we wait.
                log.error("cannot hear of hosts there: %s; trying again", refused)  # noqa: TRY400 - not a bug of ours
                await asyncio.sleep(station.settings.connect_delay_ms_max / 1000)

    def _take(self, heard: Received[Message]) -> None:
        match heard.message:
            case HostsReported() as report:
                self._registry.hear_facts(report)
            case HostsAlive(cell=cell, hosts=hosts):
                self._registry.hear_beats(cell, hosts)
            case _:
                pass
