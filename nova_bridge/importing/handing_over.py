"""One host is handed over: fenced in Nova and here, copied, verified, enabled here; or given back.

What was done is found by comparing both sides, so the same steps go on after an interruption. Until a host is in the aggregate of
those that were handed over, Nova is its master, and here it is `draining`: nothing is built on it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Literal
from uuid import UUID

from msgspec import Struct, structs

from bus.messages.audit import AdoptInstance, GiveBackInstance
from bus.messages.books import AskHolders, HoldersFound
from bus.messages.build import BuildRejected, InstanceState
from bus.messages.hosts import AggregateSet, HostSet, SetAggregate, SetHost
from engine.flavors import Flavor, InstanceId
from engine.hosts import HostMode, HostState, host_in_cell
from engine.inventories import AggregateId, ProviderId, Share
from kit.parts import Pauses, batches_of, what_remains
from moor.client.books.books_reader import BooksReader
from moor.client.books.views import InstanceView
from moor.client.bus_client import ASKED_AT_ONCE_MAX, BusClient, answer_of, hosts_of, items_of, providers_of
from nova_bridge.importing.judging import (
    HostPlan,
    contradictions_of,
    differences_of,
    inventories_here,
    inventories_in_nova,
    inventory_differences,
    planned,
    what_is_under_way,
    why_not_fenced,
)
from nova_bridge.importing.reading import HostRow, NovaDatabases
from nova_bridge.importing.records import NovaHost
from nova_bridge.importing.shares import SHARING, HostTree

if TYPE_CHECKING:
    from bus.message import Message
    from engine.inventories import ProviderState

# What Moorage has of the hosts that come from Nova, and the orders that an import sends. A host that was handed over is a member of
# an aggregate: that lasts, and everybody can see it.


FROM_NOVA = AggregateId(UUID("3d9c1f6e-2f0a-4f7e-9d0b-5a4d8f8c3b21"))
FROM_NOVA_NAME = "from-nova"
# Reasons of modes that an import sets.
TAKING, TAKEN = "being taken over from Nova", "taken over from Nova"
GIVING, GIVEN = "being given back to Nova", "given back to Nova"
HOLDERS_PAGE = 1000
# A conductor that has just got rows may still be writing them.
_LIVING = ("placed", "active", "rebuilding", "moving", "moved", "stopped", "shelved", "error", "deleting")


class Cloud:
    def __init__(self, api: BusClient, cells: Mapping[str, BusClient]) -> None:
        """`cells` has the client of each cell that has a broker of its own."""
        self.api = api
        self._cells = cells
        self.hosts: dict[tuple[str, str], HostState] = {}
        self.providers: list[ProviderState] = []
        self._handed_over: set[ProviderId] = set()
        self._trees: dict[ProviderId, list[ProviderState]] = {}
        self._pools: list[ProviderState] = []

    async def look(self) -> None:
        self.hosts = {(each.cell, each.name): each for each in await hosts_of(self.api)}
        self.providers = await providers_of(self.api)
        self._handed_over = {each.id for each in self.providers if FROM_NOVA in each.aggregates}
        self._trees = {}
        for each in self.providers:
            self._trees.setdefault(each.root, []).append(each)
        self._pools = [each for each in self.providers if SHARING in each.traits]

    def tree_of(self, host: HostState) -> HostTree:
        """The host's providers, as of the last look."""
        return HostTree(host.id, [*self._trees.get(host.id, ()), *self._pools])

    def has_taken(self, host: HostState) -> bool:
        """Was this host handed over, and not given back?"""
        return host.id in self._handed_over

    async def set_mode(self, host: HostState, mode: HostMode, reason: str) -> HostState:
        order = SetHost(host=host_in_cell(host.cell, host.name), mode=mode, reason=reason)
        state = (await answer_of(self.api, order, HostSet)).host
        self.hosts[host.cell, host.name] = state
        return state

    async def note_taken(self, host: HostState) -> None:
        order = SetAggregate(aggregate=FROM_NOVA, name=FROM_NOVA_NAME, add_hosts=(str(host.id),))
        await answer_of(self.api, order, AggregateSet)
        self._handed_over.add(host.id)

    async def note_given_back(self, host: HostState) -> None:
        order = SetAggregate(aggregate=FROM_NOVA, name=FROM_NOVA_NAME, remove_hosts=(str(host.id),))
        await answer_of(self.api, order, AggregateSet)
        self._handed_over.discard(host.id)

    async def living_on(self, host: HostState) -> list[InstanceId]:
        """The consumers that hold something of the host, by its own providers: to find the instances of a host by their rows, a
        scheduler reads all rows.
        """
        found: dict[InstanceId, None] = {}
        for provider in self.tree_of(host).own:
            question = AskHolders(provider=provider, limit=HOLDERS_PAGE)
            holders = await items_of(self.api, question, HoldersFound, lambda page: page.holders)
            found |= dict.fromkeys(each.id for each in holders)
        return sorted(found)

    async def known(self, ids: Sequence[InstanceId]) -> dict[InstanceId, InstanceState]:
        """Those of these instances that are here, and not deleted."""
        return {each.id: each for each in await self.api.instances(ids) if each.state in _LIVING}

    async def ordered(self, orders: Sequence[AdoptInstance | GiveBackInstance]) -> list[str]:
        """Send these orders, and return why some are refused."""
        refused: list[str] = []
        for some in batches_of(orders, ASKED_AT_ONCE_MAX):
            answers: list[Message] = await self.api.ask_all(some)
            refused += [
                f"instance {order.instance}: {answer.field}: {answer.reason}"
                for order, answer in zip(some, answers, strict=True)
                if isinstance(answer, BuildRejected)
            ]
        return refused

    async def views(
        self, cell: str, host: ProviderId, ids: Sequence[InstanceId]
    ) -> dict[InstanceId, InstanceView]:
        """What all books have of these instances, by id; those that the host does not tell of are among them."""
        reader = BooksReader(self.api, {cell: self._cells.get(cell, self.api)}, {cell})
        found: dict[InstanceId, InstanceView] = {}
        for some in batches_of(ids, ASKED_AT_ONCE_MAX):
            views, asked = await reader.views_of(list(some), [host])
            found |= {id_: view for id_, view in views.items() if host in asked}
        return found


def names_of(hosts: Iterable[HostState]) -> str:
    return ", ".join(sorted(host_in_cell(each.cell, each.name) for each in hosts))


# bare metal: ironic_sync has its nodes. in nova: Nova is its master, and it is not disabled there. kept back: it is disabled there, and
# something speaks against it. here: Moorage is its master.
Stage = Literal["bare metal", "in nova", "kept back", "here", "given back"]
SETTLE_S = 60.0
SETTLING = Pauses(first_s=0.05, max_s=2.0)


class HostReport(Struct, frozen=True):
    """How far a host is. `copied` of its `instances` are here. `reasons` keep it back; or differ, if it was verified."""

    cell: str
    host: str
    stage: Stage
    instances: int = 0
    copied: int = 0
    reasons: tuple[str, ...] = ()


class HandingOver:
    def __init__(
        self,
        databases: NovaDatabases,
        cloud: Cloud,
        flavors: Mapping[int, Flavor],
        *,
        clashes: Mapping[str, str],
        doubled: Collection[str],
        clock: Callable[[], datetime],
    ) -> None:
        """`clashes` says of hosts' names in several cells which these are; `doubled` are instances that several cells have."""
        self._databases = databases
        self._cloud = cloud
        self._flavors = flavors
        self._clashes = clashes
        self._doubled = frozenset(doubled)
        self._clock = clock

    async def take(self, row: HostRow) -> HostReport:  # noqa: PLR0911 - one for each that keeps it back
        """Hand this host over, as far as nothing keeps it back."""
        report = HostReport(row.cell, row.name, "kept back", row.instances)
        if row.is_bare_metal:
            return structs.replace(report, stage="bare metal")
        host = self._cloud.hosts.get((row.cell, row.name))
        if host is not None and self._cloud.has_taken(host):
            if host.setting.mode == "draining" and host.setting.reason == TAKING:
                await self._cloud.set_mode(host, "up", TAKEN)
            return structs.replace(report, stage="here", copied=row.instances)
        nova = await self._databases.host(row.cell, row.name)
        if reasons := self._reasons(nova):
            is_enabled = nova.service is not None and not nova.service.disabled
            return structs.replace(
                report, stage="in nova" if is_enabled else "kept back", reasons=tuple(reasons)
            )
        if host is None:
            return structs.replace(report, reasons=(_no_compute(row),))
        if not host.up and host.setting.mode == "up":
            return structs.replace(report, reasons=(f"its compute here is down: host {row.cell}/{row.name}",))
        plan = await self._planned(nova, host)
        if plan.contradictions:
            return structs.replace(report, reasons=plan.contradictions)
        return await self._copy(report, nova, host, plan)

    async def _copy(self, report: HostReport, nova: NovaHost, host: HostState, plan: HostPlan) -> HostReport:
        if (host.setting.mode, host.setting.reason) != ("draining", TAKING):
            host = await self._cloud.set_mode(host, "draining", TAKING)
        of_nova = {order.instance for order in plan.orders}
        if strangers := [each for each in await self._cloud.living_on(host) if each not in of_nova]:
            reasons = tuple(
                f"instance {each} was built on it here, while Nova has the host" for each in strangers
            )
            return structs.replace(report, reasons=reasons)
        refused = await self._cloud.ordered(plan.orders)
        copied = len(await self._cloud.known([order.instance for order in plan.orders]))
        report = structs.replace(report, copied=copied)
        if refused:
            return structs.replace(report, reasons=tuple(refused))
        # The host has answered, and the cell has told the API level: then nothing differs.
        if differences := await what_remains(partial(self._differences, host, plan), SETTLING, SETTLE_S):
            return structs.replace(report, reasons=tuple(differences))
        after = await self._databases.host(nova.cell, nova.name)
        if since := self._reasons(after):
            return structs.replace(report, reasons=tuple(since))
        if _lasting(after) != _lasting(nova):
            changed = "Nova has changed something on it meanwhile: run the command again"
            return structs.replace(report, reasons=(changed,))
        await self._cloud.note_taken(host)
        await self._cloud.set_mode(host, "up", TAKEN)
        return structs.replace(report, stage="here")

    async def verify(self, row: HostRow) -> HostReport:
        """Compare what both sides have of this host, and change nothing."""
        report = HostReport(row.cell, row.name, "in nova", row.instances)
        if row.is_bare_metal:
            return structs.replace(report, stage="bare metal")
        host = self._cloud.hosts.get((row.cell, row.name))
        nova = await self._databases.host(row.cell, row.name)
        if host is None:
            return structs.replace(report, reasons=(_no_compute(row), *contradictions_of(nova)))
        is_here = self._cloud.has_taken(host)
        report = structs.replace(report, stage="here" if is_here else "in nova")
        plan = await self._planned(nova, host)
        reasons = [*self._contradictions(nova), *plan.contradictions]
        if is_here and nova.service is not None and not nova.service.disabled:
            reasons.append("it is enabled in Nova, too: one host has two masters")
        if not is_here and host.setting.mode == "up":
            reasons.append("it is up here, too: one host has two masters")
        there, ours = inventories_in_nova(nova), inventories_here(self._cloud.tree_of(host).providers)
        reasons += inventory_differences(there, ours)
        of_nova = {order.instance for order in plan.orders}
        strangers = [each for each in await self._cloud.living_on(host) if each not in of_nova]
        states = await self._cloud.known(strangers)
        reasons += [
            f"instance {each}: it is {states[each].state if each in states else 'unknown'} here, and Nova does not have it on this host"
            for each in strangers
        ]
        reasons += await self._differences(host, plan)
        copied = len(await self._cloud.known([*of_nova]))
        return structs.replace(report, reasons=tuple(reasons), copied=copied)

    async def give_back(self, row: HostRow) -> HostReport:
        """Give the host back to Nova, if it has only what Nova knows."""
        report = HostReport(row.cell, row.name, "here", row.instances)
        host = self._cloud.hosts.get((row.cell, row.name))
        if host is None:
            return structs.replace(report, stage="kept back", reasons=(_no_compute(row),))
        nova = await self._databases.host(row.cell, row.name)
        if nova.service is None or not nova.service.disabled:
            return structs.replace(report, reasons=("it is enabled in Nova already: disable it there first",))
        # One that was interrupted has looked before; and it may have given some back since.
        goes_on = host.setting.reason == GIVING
        if not goes_on and (reasons := await self._why_not_back(host, nova)):
            return structs.replace(report, copied=row.instances, reasons=tuple(reasons))
        host = await self._cloud.set_mode(host, "draining", GIVING)
        living = await self._cloud.living_on(host)
        if not goes_on and (reasons := await self._why_not_back(host, nova)):
            await self._cloud.set_mode(host, "up", TAKEN)
            return structs.replace(report, copied=len(living), reasons=tuple(reasons))
        refused = await self._cloud.ordered([GiveBackInstance(instance=each) for each in living])
        if problems := refused or await self._until_gone(living):
            return structs.replace(report, copied=len(living), reasons=tuple(problems))
        await self._cloud.note_given_back(host)
        await self._cloud.set_mode(host, "draining", GIVEN)
        return structs.replace(report, stage="given back")

    async def _why_not_back(self, host: HostState, nova: NovaHost) -> list[str]:
        """What the host has here, and Nova does not know; and what it has no more."""
        of_nova = {InstanceId(UUID(each.id)) for each in nova.instances}
        living = {*await self._cloud.living_on(host)}
        return [
            *[
                f"instance {each} was built or moved here: delete it, or move it to another host"
                for each in sorted(living - of_nova)
            ],
            *[
                f"instance {each} is not on this host any more, and Nova still has it there: delete it in Nova"
                for each in sorted(of_nova - living)
                if self._cloud.has_taken(host)
            ],
        ]

    async def _until_gone(self, ids: Sequence[InstanceId]) -> Sequence[str]:
        async def left() -> list[str]:
            known = await self._cloud.known(ids)
            return [f"instance {each} is still {state.state} here" for each, state in known.items()]

        return await what_remains(left, SETTLING, SETTLE_S)

    def _reasons(self, nova: NovaHost) -> list[str]:
        return [
            *why_not_fenced(nova, self._clock()),
            *what_is_under_way(nova),
            *self._contradictions(nova),
        ]

    def _contradictions(self, nova: NovaHost) -> list[str]:
        found = contradictions_of(nova)
        if nova.name in self._clashes:
            found.append(self._clashes[nova.name])
        found += [
            f"instance {each.id} is in several cells of Nova"
            for each in nova.instances
            if each.id in self._doubled
        ]
        return found

    async def _planned(self, nova: NovaHost, host: HostState) -> HostPlan:
        tree = self._cloud.tree_of(host)
        if not tree.is_known:
            return HostPlan((), (f"placement here has no provider of host {nova.cell}/{nova.name} yet",))
        ids = [InstanceId(UUID(each.id)) for each in nova.instances]
        here = await self._cloud.known(ids)
        views = await self._cloud.views(nova.cell, host.id, sorted(here)) if here else {}
        shares = {
            id_: Share(host=view.consumer.host, amounts=view.consumer.held)
            for id_, view in views.items()
            if view.consumer is not None and view.consumer.host is not None and view.consumer.held
        }
        return planned(nova, tree, self._flavors, shares, self._clock())

    async def _differences(self, host: HostState, plan: HostPlan) -> list[str]:
        ids = [order.instance for order in plan.orders]
        views = await self._cloud.views(host.cell, host.id, ids) if ids else {}
        found: list[str] = []
        for order in plan.orders:
            found += differences_of(
                order, plan.needs[order.instance], views.get(order.instance), is_asked=order.instance in views
            )
        return found


def _no_compute(row: HostRow) -> str:
    return f"there is no host {row.name} in cell {row.cell} here: start its compute, `moor run compute`"


def _lasting(nova: NovaHost) -> NovaHost:
    """Without what changes by itself."""
    service = None if nova.service is None else structs.replace(nova.service, seen_at=None)
    return structs.replace(nova, service=service, nodes=())
