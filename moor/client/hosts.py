"""Hosts, bare-metal nodes and cells; the modes of hosts, and how a host is emptied."""

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import suppress
from typing import NamedTuple

from bus.messages.build import MoveKind
from bus.messages.cloud import AskCells, CellsFound, CellState
from bus.messages.hosts import AskHosts, HostSet, HostsFound, SetHost
from bus.messages.moves import MoveWait
from engine.hosts import NODE, HostMode, HostState, host_in_cell, names_clash
from moor.client.errors import NotFound, Rejected
from moor.client.moving import Emptied, HostMoves, instances_on
from moor.client.requests import wait_of
from moor.client.session import ClientSession, listed

HOSTS_PAGE = 500


class _Emptying(NamedTuple):
    kinds: Sequence[MoveKind]
    hosts: Sequence[str]
    wait: MoveWait | None
    at_once: int
    timeout_s: float


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
        found = await listed(self._items(AskHosts(name=name), HostsFound, lambda page: page.hosts))
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
        how = _Emptying(("live-migrate", "migrate"), hosts, wait_of(wait), at_once, timeout_s)
        return await self._empty(host_in_cell(host.cell, host.name), how)

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
        how = _Emptying(("evacuate",), hosts, wait_of(wait), at_once, timeout_s)
        return await self._empty(host_in_cell(host.cell, host.name), how)

    async def _empty(self, host: str, how: _Emptying) -> Emptied:
        begun = time.monotonic()
        with self._raising():
            there = await instances_on(self._bus, host)
            moves = HostMoves(self._bus, there, how.kinds, how.hosts, wait=how.wait)
            with suppress(TimeoutError):
                async with asyncio.timeout(how.timeout_s):
                    await moves.make(how.at_once)
        return Emptied(host, tuple(moves.moved), moves.still_there(), time.monotonic() - begun)
