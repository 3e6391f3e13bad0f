"""Hosts, bare-metal nodes, cells and aggregates; the modes of hosts; and the cloud as a whole."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID, uuid5

from msgspec import structs

from bus.messages.audit import AdoptInstance, GiveBackInstance
from bus.messages.build import AskInstances, InstancesFound, InstanceState
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
from bus.messages.planning import AskCapabilities, CapabilitiesFound, Capability, HostHaving
from engine.flavors import Flavor, InstanceId, RequestId
from engine.hosts import HostMode, HostState
from engine.inventories import AggregateId, ConsumerId, ProviderId, ResourceAmount, Share, near
from moor.client.bus_client import (
    FOUND_AT_ONCE_MAX,
    BusClient,
    as_received,
    items_of,
    until_choosable,
)
from moor.client.errors import NotFound, Rejected
from moor.client.finding import Named, aggregate_ids, host_named
from moor.client.requests import ClientSession, Listing

# The request of an instance that Ironic has on a node follows from its id.
OF_NODES = UUID("2c1b0f0a-93b4-4d8e-8f43-6a0a3f3b9d10")


async def instances_on(asking: BusClient, host: str) -> list[InstanceState]:
    """The instances on this host. An instance in error counts only if it keeps its host."""
    question = AskInstances(host=host, limit=FOUND_AT_ONCE_MAX)
    found = await items_of(asking, question, InstancesFound, lambda page: page.instances)
    return [each for each in found if each.state != "error" or each.keeps_share]


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
