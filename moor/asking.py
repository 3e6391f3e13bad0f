"""The bus client of the `moor` commands: it asks questions, hears events and follows instances to an end state."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, TypeVar

from bus.message import Message
from bus.messages.build import AskInstances, CellHeard, InstanceDetails, InstancesFound
from bus.messages.hosts import AskHosts, HostsFound
from bus.messages.placement import AskSnapshot, SnapshotPage
from bus.workers.station import Station
from engine.hosts import HostState
from engine.inventories import ProviderState
from kit.errors import Unavailable
from moor.client.bus_client import (
    FEW_TYPES,
    FOUND_AT_ONCE_MAX,
    LOCAL,
    LOOK_AGAIN_S,
    Asks,
    BusClient,
    Feed,
    InstanceFollower,
    States,
    answer_of,
    batches_of,
    connected,
    during,
    feed_of,
    granted,
    hearing,
    items_of,
    pages_of,
    readable,
    running,
    station_on,
    with_user,
)
from moor.options import broker_of, command_settings, run_with
from moor.settings import Settings

if TYPE_CHECKING:
    from engine.flavors import InstanceId

# What commands use of the public client, and what this file adds.
__all__ = [
    "ASKED_AT_ONCE_MAX",
    "FOUND_AT_ONCE_MAX",
    "LOCAL",
    "LOOK_AGAIN_S",
    "PAGE",
    "Asks",
    "CommandClient",
    "Feed",
    "InstanceFollower",
    "States",
    "answer_of",
    "answers_of",
    "ask_bus",
    "asked",
    "asked_for_all",
    "batches_of",
    "client",
    "during",
    "feed_of",
    "granted",
    "hearing",
    "hosts_of",
    "items_of",
    "pages_of",
    "providers_of",
    "readable",
    "running",
    "station_on",
    "until_choosable",
]

T = TypeVar("T")
P = TypeVar("P")

ASKED_AT_ONCE_MAX = 200
PAGE = 500
UNTIL_LOOK_S = 0.1


class CommandClient(BusClient):
    """The client of one command. It remembers what was said of the instances that it found, beside their states."""

    def __init__(self, station: Station, running: asyncio.Task[None]) -> None:
        super().__init__(station, running)
        # The cells of the instances that were found, and when each was last heard.
        self.cells: dict[str, CellHeard] = {}
        # What their rows say beyond their states.
        self.details: dict[InstanceId, InstanceDetails] = {}

    async def pages_of_instances(self, question: AskInstances) -> AsyncIterator[InstancesFound]:
        async for page in super().pages_of_instances(question):
            self.cells |= {each.cell: each for each in page.cells}
            self.details |= {each.id: each for each in page.details}
            yield page


async def answers_of(asking: "CommandClient", questions: Sequence[Message], kind: type[T]) -> list[T]:
    """Ask many questions, ASKED_AT_ONCE_MAX at a time, and return their answers, each of type `kind`."""
    answers: list[T] = []
    for some in batches_of(questions, ASKED_AT_ONCE_MAX):
        answered = zip(some, await asking.ask_all(some), strict=True)
        answers += [granted(question, answer, kind) for question, answer in answered]
    return answers


async def hosts_of(asking: Asks, name: str = "") -> list[HostState]:
    """All hosts, or only the host with this name."""
    return await items_of(asking, AskHosts(name=name, limit=PAGE), HostsFound, lambda page: page.hosts)


async def providers_of(asking: Asks) -> list[ProviderState]:
    return await items_of(asking, AskSnapshot(limit=PAGE), SnapshotPage, lambda page: page.providers)


async def until_choosable(
    asking: Asks, are_enough: Callable[[Sequence[HostState]], bool]
) -> Sequence[HostState]:
    """Wait until schedulers can choose enough hosts: the hosts are up, and placement has their providers. A host that an
    operator has taken out of use counts as if it were up: nobody needs to wait for it.
    """
    while True:
        # Raised while the workers that answer are still starting.
        with suppress(Unavailable):
            up = [host for host in await hosts_of(asking) if host.up or host.setting.mode != "up"]
            if are_enough(up):
                provided = {each.id for each in await providers_of(asking)}
                found = [host for host in up if host.id in provided]
                if are_enough(found):
                    return found
        await asyncio.sleep(UNTIL_LOOK_S)


@asynccontextmanager
async def client(
    settings: Settings, *, operates: bool = False, patience_s: float = 30.0
) -> AsyncIterator[CommandClient]:
    """A client that waits at most `patience_s` for an answer.

    If there is no broker now, raise at once. If the broker goes away later, wait for it.
    """
    broker = broker_of(with_user(settings.bus_url, operates=operates))
    async with connected(broker, patience_s, FEW_TYPES) as (station, task):
        yield CommandClient(station, task)


def ask_bus(bus: str, work: Callable[[CommandClient], Awaitable[T]], *, operates: bool = True) -> T:
    """Run a command's work with a client on this bus."""
    return run_with(client(command_settings(bus=bus), operates=operates), work)


def asked(bus: str, question: Message, kind: type[T], *, operates: bool = True) -> T:
    """Do the whole work of a command that asks one question: connect to this bus, ask, and return the answer, of type
    `kind`.
    """
    return ask_bus(bus, lambda asking: answer_of(asking, question, kind), operates=operates)


def asked_for_all(
    bus: str, question: Message, kind: type[P], items: Callable[[P], Iterable[T]], *, operates: bool = True
) -> list[T]:
    """Ask a question on this bus and return the items on all pages of the answer."""
    return ask_bus(bus, lambda asking: items_of(asking, question, kind, items), operates=operates)
