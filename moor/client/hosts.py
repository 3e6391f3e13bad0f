"""Hosts, bare-metal nodes and cells; the modes of hosts, and how a host is emptied."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from typing import Final

from msgspec import Struct, structs

from bus.message import Message
from bus.messages.build import AskInstances, BuildRejected, InstancesFound, InstanceState, MoveKind
from bus.messages.cloud import AskCells, CellsFound, CellState
from bus.messages.hosts import AskHosts, HostSet, HostsFound, SetHost
from bus.messages.moves import MOVE_LIMITS, MoveInstance, MoveWait
from engine.flavors import InstanceId
from engine.hosts import NODE, HostMode, HostState, host_in_cell, names_clash
from moor.client.bus_client import (
    FOUND_AT_ONCE_MAX,
    LOOK_AGAIN_S,
    BusClient,
    InstanceFollower,
    during,
    items_of,
    rests,
)
from moor.client.errors import NotFound, Rejected
from moor.client.requests import ClientSession, new_request_ids, wait_of


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
    a line about the progress.
    """

    def __init__(
        self,
        asking: BusClient,
        states: Sequence[InstanceState],
        kinds: Sequence[MoveKind],
        hosts: Sequence[str],
        *,
        wait: MoveWait | None = None,
        for_user: str = "",
        tell: Callable[[str], None] | None = None,
    ) -> None:
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
        self._following = InstanceFollower(asking, self._under_way)
        self._changed = asyncio.Event()

    async def make(self, at_once: int) -> None:
        """Keep `at_once` moves under way, or as many as the schedulers' limits allow, until all are over. Moves that wait for
        room do not count.
        """
        await during(self._make(at_once), self._following.follow(lambda _: self._changed.set()))

    async def _make(self, at_once: int) -> None:
        allowed = at_once
        while self._waiting or self._under_way:
            if self._waiting and self._going < allowed:
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
            self._tell(f"{len(self.moved)} moved, {len(self.stayed)} not yet")
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


async def empty(
    asking: BusClient,
    host: str,
    kinds: Sequence[MoveKind],
    *,
    hosts: Sequence[str] = (),
    wait: MoveWait | None = None,
    at_once: int,
    timeout_s: float,
    tell: Callable[[str], None] | None = None,
    stop: asyncio.Event | None = None,
) -> Emptied:
    """Order the first kind of move for each instance, and the next kind for those that did not move by it. When the time is up,
    or `stop` is set, nothing more is ordered: what moves then goes on.
    """
    begun = time.monotonic()
    moves = HostMoves(asking, await instances_on(asking, host), kinds, hosts, wait=wait, tell=tell)
    working = asyncio.create_task(moves.make(at_once))
    tasks = [working, *([asyncio.create_task(stop.wait())] if stop else ())]
    try:
        await asyncio.wait(tasks, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    return Emptied(host, tuple(moves.moved), moves.still_there(), time.monotonic() - begun)


HOSTS_PAGE = 500


class HostCalls(ClientSession):
    """The client's methods about hosts and cells. An application of single projects has the right to none of them."""

    async def list_hosts(
        self, *, cell: str = "", mode: HostMode | None = None, up: bool | None = None
    ) -> AsyncGenerator[HostState, None]:
        """All hosts in the order of their names, bare-metal nodes too; or those that are so. For admins."""
        question = AskHosts(limit=HOSTS_PAGE)
        async for each in self._items(question, HostsFound, lambda page: page.hosts):
            if cell in ("", each.cell) and mode in (None, each.setting.mode) and up in (None, each.up):
                yield each

    async def list_nodes(self, *, cell: str = "", up: bool | None = None) -> AsyncGenerator[HostState, None]:
        """The bare-metal nodes, as the schedulers know them. For admins."""
        async for each in self.list_hosts(cell=cell, up=up):
            if each.kind == NODE:
                yield each

    async def show_host(self, name: str) -> HostState:
        """A host or a node by its name; `CELL/NAME` if several cells have it. Raises `NotFound`. For admins."""
        found = [each async for each in self._items(AskHosts(name=name), HostsFound, lambda page: page.hosts)]
        if not found or not name:
            raise NotFound("host", name)
        if len(found) > 1:
            raise Rejected("host", name, names_clash(name, [each.cell for each in found]))
        return found[0]

    async def list_cells(self) -> tuple[CellState, ...]:
        """All cells, with their conductors, and whether each is up. For admins."""
        return (await self._ask(AskCells(), CellsFound)).cells

    async def set_host(self, name: str, mode: HostMode, *, reason: str = "", sure: bool = False) -> HostState:
        """Set a host or a node `up`, `draining`, `down` or `dead`. For operators.

        `down` counts as if its heartbeats had stopped. `dead` also says that nothing runs there; a node cannot be `dead`. A host
        that is heard is set `dead` only by one who is `sure` of that; otherwise `Rejected` says when it was heard.
        """
        order = SetHost(host=name, mode=mode, reason=reason, sure=sure)
        return (await self._ask(order, HostSet)).host

    async def drain(
        self,
        name: str,
        *,
        reason: str = "",
        hosts: Sequence[str] = (),
        wait: MoveWait | int | None = None,
        at_once: int = 10,
        timeout_s: float = 3600.0,
    ) -> Emptied:
        """Set a host draining and move its instances away: live, or else stopped meanwhile. For operators.

        At most `at_once` move at the same time. After `timeout_s` nothing more is ordered. The result says which instances have
        moved, and why each other one is still there. The host stays draining.
        """
        host = await self.set_host(name, "draining", reason=reason)
        with self._raising():
            return await empty(
                self._bus,
                host_in_cell(host.cell, host.name),
                DRAINING,
                hosts=hosts,
                wait=wait_of(wait),
                at_once=at_once,
                timeout_s=timeout_s,
            )

    async def evacuate_host(
        self,
        name: str,
        *,
        hosts: Sequence[str] = (),
        wait: MoveWait | int | None = None,
        at_once: int = 50,
        timeout_s: float = 3600.0,
    ) -> Emptied:
        """Build all instances of a host that is down anew on other hosts of its cell. For admins.

        Make sure that the host is off before. Instances for which no host has room wait for it, a day unless `wait` says else.
        """
        host = await self.show_host(name)
        if host.up:
            raise Rejected("host", name, "it is up, so nothing was evacuated: set it down first")
        with self._raising():
            return await empty(
                self._bus,
                host_in_cell(host.cell, host.name),
                EVACUATING,
                hosts=hosts,
                wait=wait_of(wait),
                at_once=at_once,
                timeout_s=timeout_s,
            )
