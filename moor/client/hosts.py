"""Hosts, bare-metal nodes, cells and aggregates; the modes of hosts, and how a host is emptied; and the cloud as a whole."""

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Final
from uuid import UUID, uuid5

from msgspec import Struct, structs

from bus.message import Message
from bus.messages.audit import AdoptInstance, GiveBackInstance
from bus.messages.build import AskInstances, BuildRejected, InstancesFound, InstanceState, MoveKind
from bus.messages.cloud import AskCells, AskOverview, AskTiles, CellsFound, CellState, Overview, Tiles
from bus.messages.hosts import (
    HOSTS_PLACED_MAX,
    AggregateDeleted,
    AggregateSet,
    AggregatesFound,
    AggregateState,
    AskAggregates,
    AskHosts,
    DeleteAggregate,
    DeleteHost,
    HostDeleted,
    HostKind,
    HostPlace,
    HostSet,
    HostsFound,
    HostsPlaced,
    PlaceHosts,
    SetAggregate,
    SetHost,
)
from bus.messages.moves import MOVE_LIMITS, MoveInstance, MoveWait
from bus.messages.planning import AskCapabilities, CapabilitiesFound, Capability, HostHaving
from engine.flavors import Flavor, InstanceId, RequestId
from engine.hosts import HostMode, HostState, host_in_cell
from engine.inventories import AggregateId, ConsumerId, ProviderId, ResourceAmount, Share, near
from engine.refusals import TOGETHER_MAX
from kit.process import during
from moor.client.bus_client import (
    FOUND_AT_ONCE_MAX,
    LOOK_AGAIN_S,
    BusClient,
    InstanceFollower,
    as_received,
    items_of,
    rests,
    until_choosable,
)
from moor.client.errors import NotFound, Rejected
from moor.client.finding import Named, aggregate_ids, host_named
from moor.client.requests import ClientSession, Listing, new_request_ids, wait_of

# The request of an instance that Ironic has on a node follows from its id.
OF_NODES = UUID("2c1b0f0a-93b4-4d8e-8f43-6a0a3f3b9d10")


class Stayed(Struct, frozen=True):
    instance: InstanceId
    name: str
    reason: str


class Emptied(Struct, frozen=True):
    """The result of emptying a host: which instances moved, and which stayed."""

    host: str
    moved: tuple[InstanceState, ...]
    stayed: tuple[Stayed, ...]
    seconds: float


async def instances_on(asking: BusClient, host: str) -> list[InstanceState]:
    """The instances on this host. An instance in error counts only if it keeps its host."""
    question = AskInstances(host=host, limit=FOUND_AT_ONCE_MAX)
    found = await items_of(asking, question, InstancesFound, lambda page: page.instances)
    return [each for each in found if each.state != "error" or each.keeps_share]


class HostMoves:
    """Moves these instances off a host, some at a time. `moved` and `stayed` are up to date at every moment.

    The first kind of move is ordered for each instance, and the next kind for those that did not move by it. `tell` is called with
    what is so far.
    """

    def __init__(
        self,
        asking: BusClient,
        host: str,
        states: Sequence[InstanceState],
        kinds: Sequence[MoveKind],
        hosts: Sequence[str],
        *,
        wait: MoveWait | None = None,
        for_user: str = "",
        tell: Callable[[Emptied], None] | None = None,
    ) -> None:
        self._host = host
        self._begun_s = time.monotonic()
        self.moved: list[InstanceState] = []
        self.stayed = {each.id: Stayed(each.id, each.name, "its turn did not come") for each in states}
        self._asking = asking
        self._hosts = tuple(hosts)
        self._wait = wait
        self._for_user = for_user
        self._tell = tell
        # Each with the kinds of moves that are left for it.
        self._waiting = deque((each, tuple(kinds)) for each in states)
        self._under_way: dict[InstanceId, tuple[MoveInstance, InstanceState, tuple[MoveKind, ...]]] = {}
        # Did the last order move so many members of a group that others may be left, which follow these?
        self._is_cut = False
        self._changed = asyncio.Event()
        self._following = InstanceFollower(asking, self._under_way, tell=lambda _: self._changed.set())

    async def made(self, at_once: int, timeout_s: float, stop: asyncio.Event | None) -> Emptied:
        """Make them. When the time is up, or `stop` is set, nothing more is ordered: what moves then goes on."""
        working = asyncio.create_task(during(self._make(at_once), self._following.follow()))
        tasks = [working, *([asyncio.create_task(stop.wait())] if stop else ())]
        try:
            await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                working.result()
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            if self._tell is not None:
                self._tell(self.so_far())
        return self.so_far()

    def so_far(self) -> Emptied:
        return Emptied(self._host, tuple(self.moved), self.still_there(), time.monotonic() - self._begun_s)

    async def _make(self, at_once: int) -> None:
        """Keep `at_once` moves under way, or as many as the schedulers' limits allow, until all are over. Moves that wait for
        room do not count.
        """
        allowed = at_once
        while self._waiting or self._under_way:
            if self._waiting and self._going < (1 if self._is_cut else allowed):
                if await self._order(allowed - self._going):
                    allowed = self._going
            elif self._going or not self._waiting:
                await self._changed.wait()
                self._changed.clear()
            else:
                # Moves that others have ordered are under way.
                await asyncio.sleep(LOOK_AGAIN_S)
                allowed = 1
            # One more for each that is over: the limit may be further away by now.
            allowed = min(at_once, allowed + self._take_ends())

    @property
    def _going(self) -> int:
        """How many moves are under way, without those that wait for room."""
        return sum(self._why_waits(id_) == "" for id_ in self._under_way)

    def _why_waits(self, instance: InstanceId) -> str:
        state = self._following.states.get(instance)
        if state is None or state.waiting is None:
            return ""
        return f"its move waits for room until {state.waiting.until:%Y-%m-%d %H:%M:%S %Z}: {state.waiting.reason}"

    async def _order(self, count: int) -> int:
        """Order the next moves. Those that the cloud's limits of moves refuse wait again; returns their number."""
        some = [self._waiting.popleft() for _ in range(min(count, len(self._waiting)))]
        orders = [
            MoveInstance(
                request_id=id_,
                instance=state.id,
                kind=kinds[0],
                hosts=self._hosts,
                confirm_s=0,
                with_group=True,
                wait=self._wait,
                for_user=self._for_user,
            )
            for id_, (state, kinds) in zip(new_request_ids(len(some)), some, strict=True)
        ]
        for order, (state, kinds) in zip(orders, some, strict=True):
            self._under_way[state.id] = (order, state, kinds[1:])
            self._stays(state, "its move goes on")
        answers = [*zip(orders, some, await self._asking.ask_all(orders), strict=True)]
        self._is_cut = any(
            isinstance(answer, InstancesFound) and len(answer.instances) == TOGETHER_MAX
            for *_, answer in answers
        )
        with_others = self._take_companions(answers)
        beyond = []
        for order, (state, kinds), answer in answers:
            if isinstance(answer, InstancesFound):
                self._following.take(answer.instances)
                continue
            if state.id in with_others:
                continue
            del self._under_way[state.id]
            assert isinstance(answer, BuildRejected), f"{order!r} was answered by {answer!r}"
            if answer.field in MOVE_LIMITS:
                self._stays(state, answer.reason)
                beyond.append((state, kinds))
            else:
                self._did_not(state, kinds[1:], answer.reason)
        self._waiting.extendleft(reversed(beyond))
        return len(beyond)

    def _take_companions(
        self, answers: Iterable[tuple[MoveInstance, tuple[InstanceState, tuple[MoveKind, ...]], Message]]
    ) -> set[InstanceId]:
        """Count the instances that move by the order for another member of their server group as under way by that order.
        Returns their ids.
        """
        by = {
            each.id: order
            for order, (state, _), answer in answers
            if isinstance(answer, InstancesFound)
            for each in answer.instances
            if each.id != state.id
        }
        for id_, (order, state, kinds) in list(self._under_way.items()):
            if id_ in by:
                self._under_way[id_] = structs.replace(order, request_id=by[id_].request_id), state, kinds
        for state, kinds in [each for each in self._waiting if each[0].id in by]:
            self._waiting.remove((state, kinds))
            self._under_way[state.id] = structs.replace(by[state.id], instance=state.id), state, kinds[1:]
            self._stays(state, "its move goes on")
        return {*by}

    def _take_ends(self) -> int:
        """Note the moves that ended since the last call. Returns how many there are."""
        over = [
            (state, *each)
            for id_, each in self._under_way.items()
            if (state := self._following.states.get(id_)) is not None and rests(state, each[0].request_id)
        ]
        for now, order, state, kinds in over:
            del self._under_way[state.id]
            if why := _why_not(now, order):
                # By another kind it would need the same room, and wait for it as long again.
                self._did_not(state, () if _waited_in_vain(now) else kinds, why)
            else:
                self.moved.append(now)
                del self.stayed[state.id]
        if over and self._tell is not None:
            self._tell(self.so_far())
        return len(over)

    def still_there(self) -> tuple[Stayed, ...]:
        """The instances that did not move, each with the reason."""
        return tuple(
            structs.replace(each, reason=self._why_waits(each.instance) or each.reason)
            if each.instance in self._under_way
            else each
            for each in self.stayed.values()
        )

    def _did_not(self, state: InstanceState, kinds: tuple[MoveKind, ...], why: str) -> None:
        self._stays(state, why)
        if kinds:
            self._waiting.append((state, kinds))

    def _stays(self, state: InstanceState, why: str) -> None:
        self.stayed[state.id] = Stayed(state.id, state.name, why)


def _why_not(state: InstanceState, order: MoveInstance) -> str:
    move = state.move
    if state.state in ("deleting", "deleted"):
        return ""
    if move is None or move.request_id != order.request_id:
        return "another move came first"
    if move.outcome in ("failed", "aborted", "reverted"):
        return "; ".join(
            [move.failure or move.outcome, *(f"{each.host}: {each.reason}" for each in state.failures)]
        )
    return ""


def _waited_in_vain(state: InstanceState) -> bool:
    """Has its move ended while it waited for room? Such a move ends at the same time as its wait."""
    move = state.move
    return move is not None and move.outcome == "failed" and move.ends_by == move.waits_until


# A drain moves an instance live, or else stopped meanwhile.
DRAINING: Final[tuple[MoveKind, ...]] = ("live-migrate", "migrate")
EVACUATING: Final[tuple[MoveKind, ...]] = ("evacuate",)


HOSTS_PAGE = 500
_ENTRY = re.compile(r"hosts\[(\d+)\](.*)")
# An aggregate's id follows from its name, so that to create it again makes the same one.
AGGREGATE_NAMES = UUID("0a5c6a34-4a7e-4b8e-9d43-6f2f6a1c7d11")


@contextmanager
def _counted_from(start: int) -> Iterator[None]:
    """An order has some of all entries, from this one on: its refusal names the entry among all."""
    try:
        yield
    except Rejected as wrong:
        if not start or (found := _ENTRY.fullmatch(wrong.field)) is None:
            raise
        field = f"hosts[{int(found[1]) + start}]{found[2]}"
        raise type(wrong)(field, wrong.value, wrong.reason) from None


class HostCalls(ClientSession):
    """The client's methods about hosts and cells. An application of single projects has the right to none of them."""

    def list_hosts(
        self,
        *,
        cell: str = "",
        mode: HostMode | None = None,
        up: bool | None = None,
        kind: HostKind = "",
        place: str = "",
        name: str = "",
    ) -> Listing[HostState, HostsFound]:
        """All hosts in the order of their names, bare-metal nodes too; or those that are so, or in this domain. A page also says what they
        use. For admins.
        """
        question = as_received(
            AskHosts(cell=cell, mode=mode or "", up=up, kind=kind, place=place, name=name, limit=HOSTS_PAGE)
        )
        return Listing(self, question, HostsFound, lambda page: page.hosts)

    async def show_host(self, name: str) -> HostState:
        """A host or a node by its name; `CELL/NAME` if several cells have it. Raises `NotFound`. For admins."""
        with self._raising():
            return await host_named(self._bus, name)

    async def until_choosable(self, count: int) -> Sequence[HostState]:
        """Wait until schedulers can choose so many hosts: they are up, and placement has their providers. Returns them. For operators.

        A host that an operator has taken out of use counts as if it were up.
        """
        with self._raising():
            return await until_choosable(self._bus, lambda found: len(found) >= count)

    async def set_host(
        self, name: str, mode: HostMode, *, reason: str = "", sure: bool = False, for_user: str = ""
    ) -> HostState:
        """Set a host or a node `up`, `draining`, `down` or `dead`. For operators.

        `down` counts as if its heartbeats had stopped. `dead` also says that nothing runs there; a node cannot be `dead`. A host
        that is heard is set `dead` only by one who is `sure` of that; otherwise `Rejected` says when it was heard. The program
        acts for the person `for_user`, and answers for that name.
        """
        order = SetHost(host=name, mode=mode, reason=reason, sure=sure, for_user=for_user)
        return (await self._ask(order, HostSet)).host

    async def place_hosts(self, places: Iterable[tuple[str, str]], *, for_user: str = "") -> list[HostPlace]:
        """Say where hosts are: pairs of a name (`CELL/NAME` if several cells have it) and a place, such as `dc1/hall2/row7/rack3`; an
        empty one stands for what the host's compute or Ironic reports. Returns them with their places. For operators.

        If one is unknown, or named twice, nothing is changed, and `Rejected` names its entry: `hosts[7].host`.
        """
        hosts = [HostPlace(host=host, place=place) for host, place in places]
        orders: list[PlaceHosts] = []
        for start in range(0, len(hosts), HOSTS_PLACED_MAX):
            some = tuple(hosts[start : start + HOSTS_PLACED_MAX])
            with _counted_from(start):
                orders.append(as_received(PlaceHosts(hosts=some, for_user=for_user)))
        if len(orders) > 1:
            # None is sent before all are right.
            known: dict[str, int] = {}
            checked = await self._placed([structs.replace(each, only_check=True) for each in orders])
            for number, each in enumerate(checked):
                if (first := known.setdefault(each.host, number)) != number:
                    why = f"hosts[{first}] names it, too"
                    raise Rejected(f"hosts[{number}].host", hosts[number].host, why)
        return await self._placed(orders)

    async def _placed(self, orders: Sequence[PlaceHosts]) -> list[HostPlace]:
        placed: list[HostPlace] = []
        for number, order in enumerate(orders):
            with _counted_from(number * HOSTS_PLACED_MAX):
                placed += (await self._ask(order, HostsPlaced)).hosts
        return placed

    async def adopt_on_node(
        self,
        node: UUID,
        instance: UUID,
        flavor: Flavor,
        *,
        cell: str,
        resource_class: str,
        created_at: datetime,
        project: str,
        user: str = "",
        name: str = "",
    ) -> InstanceState:
        """Take over an instance that Ironic has on this bare-metal node, with the one unit of its class; nothing is ordered from Ironic.

        To repeat it is harmless. Raises `Rejected`. For operators.
        """
        host = ProviderId(node)
        order = AdoptInstance(
            instance=InstanceId(ConsumerId(instance)),
            request_id=RequestId(uuid5(OF_NODES, str(instance))),
            of_cell=cell,
            host=str(node),
            share=Share(host=host, amounts=(ResourceAmount(host, resource_class, 1),)),
            state="active",
            flavor=flavor,
            created_at=created_at,
            name=name,
            project=project,
            user=user,
        )
        return (await self._ask(order, InstancesFound)).instances[0]

    async def give_back(self, instance: UUID) -> InstanceState:
        """Forget an instance that was taken over; its host leaves it as it is. Raises `Rejected` if it changed here since. For operators."""
        order = GiveBackInstance(instance=InstanceId(ConsumerId(instance)))
        return (await self._ask(order, InstancesFound)).instances[0]

    async def delete_host(self, name: str, *, for_user: str = "") -> HostState:
        """Delete a host that goes for good, with its providers; returns it as it was. For operators.

        Refused (`Rejected`) while it is heard, has instances, or anybody holds something of it. If it comes back, it is a new host.
        """
        return (await self._ask(DeleteHost(host=name, for_user=for_user), HostDeleted)).host

    async def instances_on(self, host: str) -> list[InstanceState]:
        """The instances on this host. An instance in error counts only if it keeps its host. For admins."""
        with self._raising():
            return await instances_on(self._bus, host)

    async def drain(
        self,
        name: str,
        *,
        reason: str = "",
        hosts: Sequence[str] = (),
        wait: MoveWait | int | None = None,
        at_once: int = 10,
        timeout_s: float = 3600.0,
        for_user: str = "",
        tell: Callable[[Emptied], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> Emptied:
        """Set a host draining and move its instances away: live, or else stopped meanwhile. For operators.

        At most `at_once` move at the same time. After `timeout_s`, or when `stop` is set, nothing more is ordered. The result says
        which instances have moved, and why each other one is still there; `tell` is called with it as it is so far. The host stays
        draining.
        """
        host = await self.set_host(name, "draining", reason=reason, for_user=for_user)
        return await self._emptied(
            host_in_cell(host.cell, host.name),
            DRAINING,
            hosts,
            wait,
            at_once=at_once,
            timeout_s=timeout_s,
            for_user=for_user,
            tell=tell,
            stop=stop,
        )

    async def evacuate_host(
        self,
        name: str,
        *,
        hosts: Sequence[str] = (),
        wait: MoveWait | int | None = None,
        at_once: int = 50,
        timeout_s: float = 3600.0,
        for_user: str = "",
        tell: Callable[[Emptied], None] | None = None,
        stop: asyncio.Event | None = None,
    ) -> Emptied:
        """Build all instances of a host that is down anew on other hosts of its cell. For admins.

        Make sure that the host is off before. Instances for which no host has room wait for it, a day unless `wait` says else. The
        other arguments are those of `drain`.
        """
        try:
            host = await self.show_host(name)
            if host.up:
                raise Rejected("host", name, "it is up, so nothing was evacuated: set it down first")
            name = host_in_cell(host.cell, host.name)
        except NotFound:
            # Schedulers may have forgotten a host that still has instances.
            if not await self.instances_on(name):
                raise
        return await self._emptied(
            name,
            EVACUATING,
            hosts,
            wait,
            at_once=at_once,
            timeout_s=timeout_s,
            for_user=for_user,
            tell=tell,
            stop=stop,
        )

    async def _emptied(
        self,
        name: str,
        kinds: Sequence[MoveKind],
        hosts: Sequence[str],
        wait: MoveWait | int | None,
        *,
        at_once: int,
        timeout_s: float,
        for_user: str,
        tell: Callable[[Emptied], None] | None,
        stop: asyncio.Event | None,
    ) -> Emptied:
        with self._raising():
            there = await instances_on(self._bus, name)
            moves = HostMoves(
                self._bus, name, there, kinds, hosts, wait=wait_of(wait), for_user=for_user, tell=tell
            )
            return await moves.made(at_once, timeout_s, stop)

    def list_capabilities(self) -> Listing[Capability, CapabilitiesFound]:
        """The traits, resource classes and facts that hosts have: on how many hosts, with which values. For admins."""
        return Listing(
            self, AskCapabilities(limit=HOSTS_PAGE), CapabilitiesFound, lambda page: page.capabilities
        )

    def list_hosts_having(self, name: str, value: str = "") -> Listing[HostHaving, CapabilitiesFound]:
        """The hosts that have this trait, resource class or fact, each with its value. For admins."""
        question = AskCapabilities(having=name, value=value, limit=HOSTS_PAGE)
        return Listing(self, question, CapabilitiesFound, lambda page: page.hosts)

    # Cells, and the cloud as a whole

    def list_cells(self, *, up: bool | None = None) -> Listing[CellState, CellsFound]:
        """All cells, with their conductors, and whether each is up; or only those that are, or are not. For admins."""
        return Listing(
            self,
            AskCells(),
            CellsFound,
            lambda page: [each for each in page.cells if up in (None, each.life != "down")],
        )

    async def show_cell(self, name: str) -> CellState:
        """A cell, with its conductors. Raises `NotFound`. For admins."""
        found = {each.cell: each async for each in self.list_cells()}
        if name not in found:
            raise NotFound("cell", name, near=near(name, found))
        return found[name]

    async def overview(self, *, once: bool = False) -> Overview:
        """The whole cloud as one scheduler knows it: cells, workers, room, what waits. `once`: no second question follows. For admins."""
        return await self._ask(AskOverview(once=once), Overview)

    async def tiles(self, cell: str, *, skipped: int = 0, named: bool = False) -> Tiles:
        """How full the hosts of a cell are, one letter each, in the order of their names: a page of them. For admins."""
        return await self._ask(AskTiles(in_cell=cell, skipped=skipped, named=named), Tiles)


class AggregateCalls(ClientSession):
    """The client's methods about aggregates: groups of hosts and nodes, with metadata. For admins."""

    def list_aggregates(self) -> Listing[AggregateState, AggregatesFound]:
        """All aggregates in the order of their names, without their hosts."""
        question = AskAggregates(limit=HOSTS_PAGE)
        return Listing(self, question, AggregatesFound, lambda page: page.aggregates)

    async def show_aggregate(self, aggregate: Named) -> AggregateState:
        """An aggregate with its hosts, by its name or id, or the beginning of its id. Raises `NotFound`."""
        found = await self._aggregate_pages(str(aggregate)) if aggregate else []
        if aggregate and not found:
            with self._raising():
                (id_,) = await aggregate_ids(self._bus, [aggregate])
            found = await self._aggregate_pages(str(id_))
        if not found:
            raise NotFound("aggregate", str(aggregate))
        hosts = tuple(host for page in found for host in page.hosts)
        return structs.replace(found[0], hosts_count=len(hosts), hosts=hosts)

    async def _aggregate_pages(self, name: str) -> list[AggregateState]:
        question = AskAggregates(name=name, limit=HOSTS_PAGE)
        listing = Listing(self, question, AggregatesFound, lambda page: page.aggregates)
        return [each async for each in listing]

    async def create_aggregate(
        self, name: str, *, id_: UUID | None = None, metadata: Mapping[str, str] | None = None
    ) -> AggregateState:
        """Create an aggregate; without an id one follows from the name. To repeat it is harmless."""
        id_ = AggregateId(id_ or uuid5(AGGREGATE_NAMES, name))
        return await self._aggregate(SetAggregate(aggregate=id_, name=name, metadata=dict(metadata or {})))

    async def set_aggregate(
        self,
        aggregate: Named,
        *,
        metadata: Mapping[str, str | None] | None = None,
        add_hosts: Sequence[str] = (),
        remove_hosts: Sequence[str] = (),
    ) -> AggregateState:
        """Change an aggregate: set metadata, remove keys by None, add and remove hosts or nodes by their names or ids; all else stays."""
        known = await self.show_aggregate(aggregate)
        order = SetAggregate(
            aggregate=known.id,
            metadata=dict(metadata or {}),
            add_hosts=tuple(add_hosts),
            remove_hosts=tuple(remove_hosts),
        )
        return await self._aggregate(order)

    async def _aggregate(self, order: SetAggregate) -> AggregateState:
        written = (await self._ask(order, AggregateSet)).aggregate
        return await self.show_aggregate(written.id)

    async def delete_aggregate(self, aggregate: Named) -> AggregateState:
        """Delete an aggregate that has no hosts; returns it as it was. Raises `NotFound`."""
        known = await self.show_aggregate(aggregate)
        await self._ask(DeleteAggregate(aggregate=known.id), AggregateDeleted)
        return known
