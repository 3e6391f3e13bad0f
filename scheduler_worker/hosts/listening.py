"""Reports and heartbeats of hosts, and of conductors, in a cell that has a broker of its own."""

from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import aclosing

from bus.message import Message
from bus.parts import Status, Supervised
from bus.topology import EVENTS, Grant
from bus.workers.handling import Received
from bus.workers.link import pauses_of
from bus.workers.listening import listen
from bus.workers.station import Station

# What conductors tell schedulers.
OF_CONDUCTORS = ("conductor.beat.*", "live.told.*")
OF_CELLS = (Grant(EVENTS, ("host.*.*", *OF_CONDUCTORS)),)


def feed_of(
    station: Station, grants: Iterable[Grant], status: Status
) -> AsyncGenerator[Sequence[Received[Message]], None]:
    return listen(
        station.consuming,
        grants,
        process=station.name,
        settings=station.settings,
        codec=station.codec,
        status=status,
    )


class HostListener(Supervised):
    """A part for one cell's broker; while that is away, hosts of other cells are heard all the same."""

    def __init__(self, station: Station, hear: Callable[[Received[Message]], None]) -> None:
        super().__init__(
            "hear of hosts in cells",
            self._listen,
            is_needed=True,
            pauses=pauses_of(station.settings),
            chance=station.chance,
        )
        self._station = station
        self._hear = hear

    async def _listen(self) -> None:
        async with aclosing(feed_of(self._station, OF_CELLS, self.status)) as feed:
            async for batch in feed:
                for each in batch:
                    self._hear(each)
