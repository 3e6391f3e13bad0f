"""The public client: for asyncio, and for programs without it."""

import asyncio
import functools
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from contextlib import aclosing
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

from bus.message import Message
from bus.messages.build import InstanceState
from engine.flavors import InstanceId, RequestId
from kit.errors import ConnectionLost
from moor.client.bus_client import CLOSED, during
from moor.client.hosts import HostCalls
from moor.client.instances import ConsoleCalls, MoveCalls, PlanCalls
from moor.client.requests import SentRequest
from moor.client.stored import DeviceProfileCalls, FlavorCalls, GroupCalls, ImageCalls, QuotaCalls

# If the caller is slower than the events, the others wait at the broker, which drops the oldest at its limit.
EVENTS_AHEAD_MAX = 1_000


class Client(
    MoveCalls,
    ConsoleCalls,
    PlanCalls,
    GroupCalls,
    FlavorCalls,
    ImageCalls,
    DeviceProfileCalls,
    QuotaCalls,
    HostCalls,
):
    """A client of Moorage on its bus: `async with Client(url) as moor:`."""

    async def events(self, *keys: str) -> AsyncGenerator[Message, None]:
        """The events with these routing keys from now on, such as `instance.#` or `build.#`; `*` is one word, `#` any.

        The subscription begins when the first event is asked for. Events may be missed while the broker is away: each has the whole
        state of its subject. Only events of the client's project, if it has one. To wait for a request, follow it instead.
        """
        heard: asyncio.Queue[Message] = asyncio.Queue(EVENTS_AHEAD_MAX)
        # A task of the session, which ends it even if the caller abandons the iterator.
        hearing = self._run_beside(self._hear(keys, heard))
        try:
            while True:
                with self._raising():
                    event = (
                        await during(heard.get(), _failure_of(hearing))
                        if heard.empty()
                        else heard.get_nowait()
                    )
                yield event
        finally:
            hearing.cancel()

    async def _hear(self, keys: tuple[str, ...], heard: asyncio.Queue[Message]) -> None:
        async with aclosing(self._bus.listen(*keys, project=self.project)) as batches:
            async for batch in batches:
                for each in batch:
                    await heard.put(each)


async def _failure_of(hearing: asyncio.Task[None]) -> None:
    await asyncio.wait((hearing,))
    if hearing.cancelled():
        raise ConnectionLost(CLOSED)
    hearing.result()


# The public client for programs without asyncio. Each method runs that of `Client`, on an event loop in a thread of its own.

T = TypeVar("T")
Args = ParamSpec("Args")


class SyncSentRequest:
    """A `SentRequest`, for programs without asyncio."""

    def __init__(self, request: SentRequest, client: "SyncClient") -> None:
        self._request = request
        self._client = client

    @property
    def id(self) -> RequestId:
        return self._request.id

    @property
    def instances(self) -> tuple[InstanceId, ...]:
        return self._request.instances

    @property
    def states(self) -> tuple[InstanceState, ...]:
        """The instances as this request has last heard of them."""
        return self._request.states

    def follow(self, timeout_s: float | None = None) -> Iterator[InstanceState]:
        """Yield the state of each instance, and each new state, until the order has ended in all of them."""
        return self._client.iterate(self._request.follow(timeout_s))

    def until_ended(self, timeout_s: float | None = None) -> tuple[InstanceState, ...]:
        """Wait until the order has ended, well or not, and return the states of the instances."""
        return self._client.run(self._request.until_ended(timeout_s))

    def until_done(self, timeout_s: float | None = None) -> tuple[InstanceState, ...]:
        """Wait until the order has ended, and return the states. Raises `NotDone` or `NoHostFound` if it has failed."""
        return self._client.run(self._request.until_done(timeout_s))


def _waits(
    method: Callable[Concatenate[Client, Args], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["SyncClient", Args], T]:
    @functools.wraps(method)
    def waiting(self: "SyncClient", /, *args: Args.args, **kwargs: Args.kwargs) -> T:
        return self.run(method(self.client, *args, **kwargs))

    return waiting


def _orders(
    method: Callable[Concatenate[Client, Args], Coroutine[Any, Any, SentRequest]],
) -> Callable[Concatenate["SyncClient", Args], SyncSentRequest]:
    @functools.wraps(method)
    def ordering(self: "SyncClient", /, *args: Args.args, **kwargs: Args.kwargs) -> SyncSentRequest:
        return SyncSentRequest(self.run(method(self.client, *args, **kwargs)), self)

    return ordering


def _iterates(
    method: Callable[Concatenate[Client, Args], AsyncGenerator[T, None]],
) -> Callable[Concatenate["SyncClient", Args], Iterator[T]]:
    @functools.wraps(method)
    def iterating(self: "SyncClient", /, *args: Args.args, **kwargs: Args.kwargs) -> Iterator[T]:
        return self.iterate(method(self.client, *args, **kwargs))

    return iterating


class SyncClient:
    """`Client` for programs without asyncio: `with SyncClient(url) as moor:`. Several threads may use it at once."""

    def __init__(
        self,
        url: str = "",
        *,
        project: str | None = None,
        patience_s: float = 30.0,
        timeout_s: float = 120.0,
        as_operator: bool = False,
    ) -> None:
        self.client = Client(
            url, project=project, patience_s=patience_s, timeout_s=timeout_s, as_operator=as_operator
        )
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="moor client", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        try:
            self.run(self.client.__aenter__())
        except BaseException:
            self._end()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.run(self.client.__aexit__(kind, error, trace))
        finally:
            self._end()

    def _end(self) -> None:
        self.run(self._loop.shutdown_asyncgens())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run this on the client's loop and return its result."""
        if not self._thread.is_alive():
            work.close()
            raise RuntimeError("the client is not open: use it inside `with SyncClient(...) as moor:`")
        if threading.current_thread() is self._thread:
            work.close()
            raise RuntimeError("this is the client's own thread: it would wait for itself for ever")
        done = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return done.result()
        except BaseException:
            # Ctrl-C here ends the work there.
            done.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield what the generator yields on the client's loop."""
        try:
            while True:
                try:
                    item = self.run(_next(items))
                except StopAsyncIteration:
                    return
                yield item
        finally:
            # A generator that nobody finished may outlive the client.
            if self._thread.is_alive():
                self.run(items.aclose())

    boot = _orders(Client.boot)
    find_request = _orders(Client.find_request)
    delete = _orders(Client.delete)
    show = _waits(Client.show)
    details = _waits(Client.details)
    list_instances = _iterates(Client.list_instances)
    history = _iterates(Client.history)
    console = _waits(Client.console)
    follow_console = _iterates(Client.follow_console)

    migrate = _orders(Client.migrate)
    live_migrate = _orders(Client.live_migrate)
    resize = _orders(Client.resize)
    evacuate = _orders(Client.evacuate)
    shelve = _orders(Client.shelve)
    offload = _orders(Client.offload)
    unshelve = _orders(Client.unshelve)
    stop = _orders(Client.stop)
    start = _orders(Client.start)
    reboot = _orders(Client.reboot)
    confirm = _orders(Client.confirm)
    revert = _orders(Client.revert)
    abort = _orders(Client.abort)
    rebuild = _orders(Client.rebuild)
    list_moves = _iterates(Client.list_moves)

    plan = _waits(Client.plan)
    verdicts = _iterates(Client.verdicts)
    plan_drain = _waits(Client.plan_drain)
    explain = _waits(Client.explain)

    create_group = _waits(Client.create_group)
    delete_group = _waits(Client.delete_group)
    show_group = _waits(Client.show_group)
    list_groups = _iterates(Client.list_groups)

    create_flavor = _waits(Client.create_flavor)
    delete_flavor = _waits(Client.delete_flavor)
    show_flavor = _waits(Client.show_flavor)
    list_flavors = _iterates(Client.list_flavors)

    create_image = _waits(Client.create_image)
    set_image = _waits(Client.set_image)
    delete_image = _waits(Client.delete_image)
    show_image = _waits(Client.show_image)
    list_images = _iterates(Client.list_images)

    create_device_profile = _waits(Client.create_device_profile)
    delete_device_profile = _waits(Client.delete_device_profile)
    show_device_profile = _waits(Client.show_device_profile)
    list_device_profiles = _iterates(Client.list_device_profiles)

    set_quota = _waits(Client.set_quota)
    show_quota = _waits(Client.show_quota)
    list_quotas = _iterates(Client.list_quotas)

    list_hosts = _iterates(Client.list_hosts)
    list_nodes = _iterates(Client.list_nodes)
    show_host = _waits(Client.show_host)
    list_cells = _waits(Client.list_cells)
    set_host = _waits(Client.set_host)
    drain = _waits(Client.drain)
    evacuate_host = _waits(Client.evacuate_host)

    events = _iterates(Client.events)


async def _next(items: AsyncGenerator[T, None]) -> T:
    return await anext(items)
