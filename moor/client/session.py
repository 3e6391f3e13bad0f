"""The connection of a client, and its errors: what the bus raises becomes an error of `moor.client`."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from bus.addresses import broker_at
from bus.broker import Broker
from bus.message import Message, type_of
from bus.workers.station import NoAnswer
from kit.errors import AccessRefused, ConnectionLost, Refusal
from moor.client.bus_client import BusClient, answer_of, connected, pages_of, with_user
from moor.client.errors import BrokerAway, BrokerRefused, NotAllowed, NotFound, NotInTime
from moor.client.following import InstanceWatch

T = TypeVar("T")
P = TypeVar("P")


class ClientSession:
    """The open connection of a client. Many tasks may use it at once.

    A question or an order without an answer is sent again, with the same id, until `patience_s` are over: also to a broker
    that was away meanwhile, or over a new connection. Following an instance takes at most `timeout_s`.
    """

    def __init__(
        self,
        url: str | Broker = "",
        *,
        project: str | None = None,
        patience_s: float = 30.0,
        timeout_s: float = 120.0,
        as_operator: bool = False,
    ) -> None:
        """The bus is at `url`: `amqp://...`, `amqps://...` or `unix:///path`; or it is a broker in this process.

        Without a `url`, the client connects as the `moor` commands do: as MOOR_BUS_URL or the settings file say, or else to a
        `moor up` on this machine; and so for the `project`.

        With `as_operator`, a client of `moor up` is an operator and not an admin application. On RabbitMQ the user of the URL
        decides that.
        """
        if not url:
            url, stated = _of_the_commands()
            project = stated if project is None else project
        self.project = project or ""
        self.patience_s = patience_s
        self.timeout_s = timeout_s
        self._broker = broker_at(with_user(url, operates=as_operator)) if isinstance(url, str) else url
        self._opened: BusClient | None = None
        self._watches: dict[str, InstanceWatch] = {}
        self._beside: set[asyncio.Task[None]] = set()
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        with self._raising():
            station, running = await self._stack.enter_async_context(connected(self._broker, self.patience_s))
        self._opened = BusClient(station, running)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._opened = None
        for watch in self._watches.values():
            await watch.close()
        self._watches.clear()
        for task in self._beside:
            task.cancel()
        await asyncio.gather(*self._beside, return_exceptions=True)
        await self._stack.aclose()

    @property
    def _bus(self) -> BusClient:
        if self._opened is None:
            raise RuntimeError("the client is not open: use it inside `async with Client(...) as moor:`")
        return self._opened

    def _watch(self, project: str) -> InstanceWatch:
        if project not in self._watches:
            self._watches[project] = InstanceWatch(self._bus, project)
        return self._watches[project]

    def _run_beside(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run this until it ends, or until the client is closed."""
        task = asyncio.create_task(work)
        self._beside.add(task)
        task.add_done_callback(self._beside.discard)
        return task

    async def _ask(self, question: Message, kind: type[T]) -> T:
        with self._raising(question):
            return await answer_of(self._bus, question, kind)

    async def _items(
        self, question: Message, kind: type[P], items: Callable[[P], Iterable[T]]
    ) -> AsyncGenerator[T, None]:
        """The items on all pages of the answer. The next page is asked for when the caller gets to it."""
        pages = pages_of(self._bus, question, kind)
        while True:
            with self._raising(question):
                page = await anext(pages, None)
            if page is None:
                return
            for item in items(page):
                yield item

    async def _one(
        self, question: Message, kind: type[P], items: Callable[[P], Sequence[T]], what: str, name: object
    ) -> T:
        """The only item that the answer has, which is that with this name or id. Raises `NotFound`."""
        # Without a name the question would be for all of them.
        found = items(await self._ask(question, kind)) if name else ()
        if not found:
            raise NotFound(what, name)
        return found[0]

    @contextmanager
    def _raising(self, question: Message | None = None) -> Iterator[None]:
        """Turn what the bus raises into errors of the client."""
        request_id = getattr(question, "request_id", None)
        try:
            yield
        except NoAnswer as late:
            if self._opened is not None and (trouble := self._opened.trouble):
                raise BrokerAway(trouble, request_id) from late
            what = type_of(question) if question is not None else "the question"
            raise NotInTime(f"no worker has answered {what}", self.patience_s, (), request_id) from late
        except AccessRefused as refused:
            raise NotAllowed(str(refused), request_id) from refused
        except Refusal as refused:
            raise BrokerRefused(str(refused), request_id) from refused
        except ConnectionLost as lost:
            raise BrokerAway(str(lost), request_id) from lost


def _of_the_commands() -> tuple[str, str]:
    """The URL and the project that the `moor` commands would use."""
    # Reading them loads the settings of all workers.
    from moor.settings import GENERAL, sources  # noqa: PLC0415

    found = sources(os.environ, here=Path.cwd())
    return found.of_command({}).bus_url, found.of(GENERAL).project
