"""What Moorage has of the hosts that come from Nova, and the orders that an import sends. A host that was handed over is a member of
an aggregate: that lasts, and everybody can see it.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from bus.auditing.views import InstanceView
from bus.message import AggregateId, Message, ProviderId
from bus.messages.administration import AskHolders, HoldersFound
from bus.messages.adoption import AdoptInstance, GiveBackInstance
from bus.messages.aggregates import AggregateSet, SetAggregate
from bus.messages.build import BuildRejected, InstanceId, InstanceState
from bus.messages.hosts import HostMode, HostSet, HostState, SetHost, host_in_cell
from moor.asking import (
    ASKED_AT_ONCE_MAX,
    CommandClient,
    answer_of,
    batches_of,
    hosts_of,
    items_of,
    providers_of,
)
from moor.books.books_reader import BooksReader
from moor.importing_nova.core.shares import SHARING, HostTree

if TYPE_CHECKING:
    from bus.messages.placement import ProviderState

FROM_NOVA = AggregateId(UUID("3d9c1f6e-2f0a-4f7e-9d0b-5a4d8f8c3b21"))
FROM_NOVA_NAME = "from-nova"
# Reasons of modes that an import sets.
TAKING, TAKEN = "being taken over from Nova", "taken over from Nova"
GIVING, GIVEN = "being given back to Nova", "given back to Nova"
HOLDERS_PAGE = 1000
# A conductor that has just got rows may still be writing them.
_LIVING = ("placed", "active", "rebuilding", "moving", "moved", "stopped", "shelved", "error", "deleting")


class Cloud:
    def __init__(self, api: CommandClient, cells: Mapping[str, CommandClient]) -> None:
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
