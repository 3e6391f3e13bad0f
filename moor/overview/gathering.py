"""What schedulers and brokers say about the whole cloud now."""

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec import Struct, structs

from bus.messages.cloud import AskOverview, Overview
from bus.topology import DEAD_QUEUE, Queue, QueueKind, Site
from bus.workers.asking import NoAnswer
from kit.errors import ConnectionLost, Refusal
from kit.settings import without_password
from moor.asking import Asks, answer_of
from moor.broker.applications_command import depths_of
from moor.broker.deployments import BrokerDeployment, deployments_of
from moor.options import broker_of
from moor.settings import Settings

if TYPE_CHECKING:
    from bus.broker import Connection


class BrokerSeen(Struct, frozen=True):
    """How many parcels wait in each queue of a broker; None in one that is not declared. `unread` are the queues that no worker
    consumes. `trouble` says why nothing is known of the broker.
    """

    url: str
    queues: Mapping[str, int | None] = {}
    trouble: str = ""
    unread: tuple[str, ...] = ()

    @property
    def waiting(self) -> int:
        return sum(depth or 0 for depth in self.queues.values())

    @property
    def dead_letters(self) -> int:
        return self.queues.get(DEAD_QUEUE) or 0


class CloudView(Struct, frozen=True):
    """`silent` says why no scheduler has answered; then there is no overview. `cells` are those that the settings name. `nodes`
    says what keeps bare-metal nodes unused, if Ironic was asked.
    """

    overview: Overview | None
    silent: str = ""
    brokers: tuple[BrokerSeen, ...] = ()
    cells: tuple[str, ...] = ()
    nodes: tuple[str, ...] = ()

    @property
    def dead_letters(self) -> int:
        return sum(broker.dead_letters for broker in self.brokers)


class CloudViewer:
    """Looks at a cloud as often as it is told to. Its connections to the brokers stay open between two looks.

    With `brokers_kept_s`, what is known of the brokers is kept so long. With `once` it looks only once, and may cost a scheduler more.
    """

    def __init__(
        self, asking: Asks, settings: Settings, *, brokers_kept_s: float = 0.0, once: bool = False
    ) -> None:
        self._asking = asking
        self._question = AskOverview(once=once)
        self._settings = settings
        self._kept_s = brokers_kept_s
        self._brokers: tuple[BrokerSeen, ...] = ()
        self._kept_until_s = 0.0
        self._connections: dict[str, Connection] = {}

    async def look(self) -> CloudView:
        try:
            overview, silent = await answer_of(self._asking, self._question, Overview), ""
        except NoAnswer as problem:
            overview, silent = None, str(problem)
        now_s = asyncio.get_running_loop().time()
        if now_s >= self._kept_until_s:
            self._brokers = tuple([await self._seen(each) for each in brokers_of(self._settings, overview)])
            self._kept_until_s = now_s + self._kept_s
        return CloudView(overview, silent, self._brokers, self._settings.addresses.cells)

    async def close(self) -> None:
        for connection in self._connections.values():
            await connection.close()
        self._connections.clear()

    async def _seen(self, deployment: BrokerDeployment) -> BrokerSeen:
        url = deployment.url
        queues = deployment.objects().queues
        try:
            if url not in self._connections:
                self._connections[url] = await broker_of(url).connect()
            connection = self._connections[url]
            depths = await depths_of([each.name for each in queues], connection)
            read = [each.name for each in queues if _is_read(each) and depths[each.name] is not None]
            unread = tuple([name for name in read if not await connection.consumers(name)])
        except (ConnectionLost, Refusal) as problem:
            if (lost := self._connections.pop(url, None)) is not None:
                with suppress(ConnectionLost, Refusal):
                    await lost.close()
            return BrokerSeen(without_password(url), trouble=str(problem))
        needed = {each.name for each in queues if _is_needed(each)}
        return BrokerSeen(
            without_password(url),
            {name: at for name, at in depths.items() if at is not None or name in needed},
            unread=unread,
        )


def brokers_of(settings: Settings, overview: Overview | None) -> tuple[BrokerDeployment, ...]:
    """The brokers of the cells that the settings name, and of those that schedulers know."""
    addresses = structs.replace(settings.addresses, bus_url=settings.bus_url)
    cells = {*addresses.cells, *([each.cell for each in overview.cells] if overview else ())}
    return deployments_of(addresses, sorted(cells))


def _is_needed(queue: Queue) -> bool:
    """Ironic's notifications have no queue where there is no Ironic."""
    return queue.site is not Site.IRONIC


def _is_read(queue: Queue) -> bool:
    """Does each worker of the role that the queue is named after consume it? A compute need not answer questions."""
    is_optional = queue.kind is QueueKind.QUESTIONS and queue.name.startswith("compute.")
    return queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS) and not is_optional
