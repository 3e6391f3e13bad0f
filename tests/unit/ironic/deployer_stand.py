"""One node of a simulated Ironic, its row, and daemons that deploy it: each may die, and another takes over."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from uuid import UUID

import httpx
from msgspec import structs

from bus.memory import MemoryBroker
from bus.messages.cell import (
    DeployProgressed,
    InstanceRedeployed,
    InstanceSpawned,
    NodePower,
    UndeployOrdered,
)
from bus.workers.connections import Station
from bus.workers.set_aside import FailedRows
from engine.inventories import ProviderId
from ironic_sync.applying import NodeWriter
from ironic_sync.core.notifications import Ignored, read
from ironic_sync.core.offers import CellMap
from ironic_sync.core.rows import Answer, NodeRow
from ironic_sync.core.settling import NodePolicy, Order, after_order
from ironic_sync.deploying import Deployer
from ironic_sync.membership import Membership
from ironic_sync.rest import HttpIronicApi
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import read as read_rows
from kit.parts import Pauses
from kit.rest import RestLimits
from laboratory.ironic import (
    IronicSimSettings,
    IronicTransport,
    SimulatedIronic,
    SimulatedNode,
    WorkDurations,
    available_nodes,
)
from tests.running import closing, running
from tests.stores_in_memory import MemoryIronicStore
from tests.waiting import until

TERMS = NodePolicy(cells=CellMap(default="c1"), standard_traits=frozenset(), can_read=True)
QUICK = DaemonRules(look_s=0.005, deploy_read_s=0.02, deploy_pauses=Pauses(0.005, 0.02), progress_s=0.05)
DELAYS = WorkDurations(deploy_s=0.01, tear_down_s=0.01, clean_s=0.02, power_s=0.005, agent_call_s=0.005)
REST = RestLimits(tries_max=2, pauses=Pauses(0.001, 0.002))
NEWS = (DeployProgressed, UndeployOrdered, NodePower)
Said = Answer | DeployProgressed | UndeployOrdered | NodePower
# What happens at a request, given the way to make it.
Event = Callable[[Callable[[], Awaitable[httpx.Response]]], Awaitable[httpx.Response]]


def alone(name: str) -> FailedRows:
    """No other daemon is there to try what this one fails at."""
    return FailedRows(Station(MemoryBroker().as_user(), name), "ironic.c1.work")


class Wire(httpx.AsyncBaseTransport):
    """The way to the simulated Ironic. Something may happen at a request, by its number from 1 on."""

    def __init__(self, ironic: SimulatedIronic) -> None:
        self._inner = IronicTransport(ironic)
        self._numbers = itertools.count(1)
        # What happens instead of the request; it may make it.
        self.events: dict[int, Event] = {}
        self.requests: list[str] = []

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        number = next(self._numbers)
        self.requests.append(f"{request.method} {request.url.path.partition('/nodes/')[2][36:]}")

        async def go() -> httpx.Response:
            return await self._inner.handle_async_request(request)

        event = self.events.pop(number, None)
        return await (go() if event is None else event(go))


async def lose_request(_: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    raise httpx.ReadError("the connection broke before the request was read")


async def lose_answer(go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
    await go()
    raise httpx.ReadError("the connection broke before the answer came")


def now_us() -> int:
    return time.time_ns() // 1000


class Rows(MemoryIronicStore):
    looks = 0

    def row(self, node: ProviderId) -> NodeRow:
        return read_rows(self.tables.connection, [node])[0]

    async def due(self, owner: str, now: datetime, beyond: datetime, limit: int) -> tuple[NodeRow, ...]:
        self.looks += 1
        return await super().due(owner, now, beyond, limit)


class Place(Membership):
    """A daemon's place in a ring; it may be lost without the daemon knowing."""

    owned: dict[ProviderId, int] = {}

    def __init__(self, name: str) -> None:
        self.name = name
        self.owned = {}
        self.is_held = True
        self.listeners: list[Deployer] = []

    def may_act_on(self, node: ProviderId) -> bool:
        return self.is_held and node in self.owned

    def lose(self, node: ProviderId) -> None:
        del self.owned[node]
        for listener in self.listeners:
            listener.lost((node,))


class Stand:
    """`hears`: whether Ironic's notifications arrive."""

    def __init__(
        self,
        *,
        node: SimulatedNode | None = None,
        hears: bool = True,
        settings: IronicSimSettings | None = None,
    ) -> None:
        (self._node,) = (node,) if node else available_nodes(1)
        self.id = ProviderId(UUID(self._node.uuid))
        self.ironic = SimulatedIronic(
            [self._node],
            time.time,
            self._publish,
            settings or IronicSimSettings(delays=DELAYS),
        )
        self.wire = Wire(self.ironic)
        self.store = Rows()
        self.writer = NodeWriter(self.store, TERMS, alone("d1"), skew_us=1, clock_us=now_us)
        self.writer.listen(self._follow)
        self.said: list[Said] = []
        # Messages that the broker has not accepted.
        self.unsaid: list[asyncio.Future[None]] = []
        # Whether placement takes reports, and the broker what is said.
        self.is_placed = True
        self.takes: Callable[[Said], bool] = lambda _: True
        self._hears = hears
        self._work: asyncio.Queue[Callable[[], Awaitable[object]]] = asyncio.Queue()
        # What notifications showed of the node.
        self.states: list[str] = []

    @property
    def node(self) -> SimulatedNode:
        node = self.ironic.node(self._node.uuid)
        assert node is not None
        return node

    @property
    def answers(self) -> list[Answer]:
        return [each for each in self.said if not isinstance(each, NEWS)]

    @property
    def row(self) -> NodeRow:
        return self.store.row(self.id)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Ironic, its notifications, and placement."""
        async with running((self.ironic,)):
            following = asyncio.create_task(self._do_what_follows())
            try:
                yield
            finally:
                following.cancel()

    @asynccontextmanager
    async def daemon(self, name: str = "d1") -> AsyncIterator[Place]:
        """One that owns the node under a new epoch, and has read it."""
        place = Place(name)
        async with closing(HttpIronicApi("http://ironic", transport=IronicTransport(self.ironic))) as (
            plain,
        ):
            found = await plain.node(self.id)

        def take(row: NodeRow) -> NodeRow:
            epoch = place.owned[self.id] = row.epoch + 1
            row = structs.replace(row, node=found, owner=name, epoch=epoch, cell="c1", seen_epoch=epoch)
            return structs.replace(row, read_epoch=epoch)

        await self.writer.change({self.id: take})
        api = HttpIronicApi("http://ironic", limits=REST, transport=self.wire)
        api.order_only_if(place.may_act_on)
        deployer = Deployer(api, self.writer, self.store, place, self._say, QUICK, alone(name))
        place.listeners.append(deployer)
        self.writer.listen(deployer.touch)
        working = asyncio.create_task(deployer.run())
        try:
            yield place
        finally:
            # As if it were killed.
            working.cancel()
            with suppress(asyncio.CancelledError):
                await working

    def dies_at(self, number: int, *, is_done: bool) -> asyncio.Event:
        """When a daemon has come to this request, which Ironic gets or does not get: it hears nothing of it."""
        died = asyncio.Event()

        async def die(go: Callable[[], Awaitable[httpx.Response]]) -> httpx.Response:
            if is_done:
                await go()
            died.set()
            return await asyncio.Future[httpx.Response]()

        self.wire.events[number] = die
        return died

    async def order(self, order: Order) -> None:
        """As a daemon takes it that does not own the node."""
        told: list[Answer | None] = []

        def change(row: NodeRow) -> NodeRow:
            row, answer = after_order(
                row, order, datetime.fromtimestamp(now_us() / 1e6, UTC), can_deploy=True
            )
            told[:] = [answer]
            return row

        await self.writer.change({self.id: change})
        self.said += [each for each in told if each is not None]

    async def until(self, condition: Callable[[], bool], what: str) -> None:
        await until(
            lambda: ([*self.ironic.nodes.values()], self.row.deploy, self.said), what, lambda _: condition()
        )

    async def until_looked(self, times: int = 5) -> None:
        """A daemon has looked so often for what is due, and has worked on what it found."""
        looks = self.store.looks + times
        await self.until(lambda: self.store.looks > looks, f"{times} looks")

    async def until_said(self, kind: type[Answer]) -> None:
        await self.until(
            lambda: any(isinstance(each, kind) for each in self.answers), f"{kind.__name__} is said"
        )

    async def until_available(self) -> None:
        await self.until(
            lambda: (
                (self.node.provision_state, self.node.instance_uuid, self.node.vifs)
                == ("available", None, ())
            ),
            "the node is available",
        )

    # Inside

    def _say(self, message: Said) -> "asyncio.Future[None]":
        done = asyncio.get_running_loop().create_future()
        if not self.takes(message):
            self.unsaid.append(done)
            return done
        is_on = any(each.instance_uuid == str(message.instance) for each in self.ironic.nodes.values())
        if isinstance(message, InstanceSpawned):
            assert is_on, "it is said to be active, and is not on the node"
            assert self.node.provision_state == "active"
        elif isinstance(message, InstanceRedeployed):
            is_running = is_on and self.node.provision_state == "active"
            assert message.is_active == is_running, f"{message}, and the node is {self.node.provision_state}"
            assert message.failure or "deploying" in self.states, "it is said to be rebuilt, and is not"
        elif not isinstance(message, NEWS):
            assert not is_on, f"{message} is said while the instance is on the node"
        self.said.append(message)
        done.set_result(None)
        return done

    def _publish(self, _key: str, _properties: Mapping[str, object], body: bytes) -> None:
        if (node := self.ironic.nodes.get(self._node.uuid)) is not None:
            self.states.append(node.provision_state)
        if self._hears and not isinstance(word := read(body), Ignored):
            self._work.put_nowait(lambda: self.writer.hear([word]))

    def _follow(self, rows: Sequence[NodeRow]) -> None:
        if any(row.needs_report for row in rows):
            self._work.put_nowait(self._report)

    async def _report(self) -> None:
        """As placement accepts what is offered."""
        if self.is_placed:
            await self.writer.change(
                {self.id: lambda row: structs.replace(row, reported=row.offer) if row.needs_report else row}
            )

    async def place_again(self) -> None:
        self.is_placed = True
        await self._report()

    async def _do_what_follows(self) -> None:
        while True:
            await (await self._work.get())()
