"""What is heard on the brokers that cells have of their own.

Its hosts are heard of there, and what it says of its instances: that is said again at API level, where clients and
dashboards listen, so that they need not know which cells stand where. Nothing here is a call: who goes down to hear it
is the scheduler, and while it is away the words wait in the cell's own queue.
"""

import logging
from collections.abc import Collection, Sequence
from contextlib import aclosing

from bus.handling import Handler, Handlers, Reading, Received, Said, Tell
from bus.link import pauses_of
from bus.listening import listen
from bus.message import Message
from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed
from bus.messages.hosts import HostsAlive, HostsReported
from bus.parts import Supervised
from bus.station import Station
from bus.topology import EVENTS, Grant
from scheduler_worker.core.instances.lifecycle import CellsWord
from scheduler_worker.hosts.registry import HostRegistry
from scheduler_worker.outbox.lazy_transaction import LateTransaction

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


class CellEars(Supervised):
    """Hears of hosts on a cell's own broker; what keeps it from hearing keeps nobody else."""

    def __init__(self, station: Station, registry: HostRegistry) -> None:
        super().__init__(
            "hear of hosts in cells",
            self._listen,
            is_needed=True,
            pauses=pauses_of(station.settings),
            chance=station.chance,
        )
        self._station = station
        self._registry = registry

    async def _listen(self) -> None:
        station = self._station
        feed = listen(
            station.consuming,
            OF_HOSTS,
            process=station.name,
            settings=station.settings,
            codec=station.codec,
            status=self.status,
        )
        async with aclosing(feed):
            async for batch in feed:
                for each in batch:
                    self._take(each)

    def _take(self, heard: Received[Message]) -> None:
        match heard.message:
            case HostsReported() as report:
                self._registry.hear_facts(report, heard.cell)
            case HostsAlive(cell=cell, hosts=hosts):
                self._registry.hear_beats(cell, hosts, heard.cell)
            case _:
                pass
