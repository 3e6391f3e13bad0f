"""One host of those that a filter has judged: the facts that the reason of a refusal names."""

from bus.message import AggregateId, ConsumerId
from bus.messages.aggregates import Aggregate
from bus.messages.hosts import HostState
from bus.messages.placement import ProviderState, ServerGroup
from scheduler_worker.core.choosing.compound.compounds import Compounds
from scheduler_worker.core.choosing.hosts.host_columns import Hosts
from scheduler_worker.core.picture.columns import HostProfile


class OneHost:
    """The host at the position `at` of some hosts. Each answer is that of the same question to `hosts`, for this host."""

    def __init__(self, hosts: Hosts, at: int) -> None:
        self.hosts = hosts
        self.at = at
        self.row = hosts.row(at)
        self._columns = hosts.columns

    @property
    def name(self) -> str:
        return self._columns.names[self.row]

    @property
    def cell(self) -> str:
        return self._columns.cells.names[int(self._columns.cell[self.row])]

    @property
    def why_cell_is_down(self) -> str:
        return self._columns.cells_down.get(int(self._columns.cell[self.row]), "")

    @property
    def zone(self) -> str:
        code = int(self._columns.zone[self.row])
        return self._columns.zones.names[code] if self._columns.registered[self.row] else ""

    @property
    def is_node(self) -> bool:
        """Is it a bare-metal node?"""
        return bool(self._columns.node[self.row])

    @property
    def projects(self) -> tuple[str, ...]:
        """The projects that the host is bound to."""
        return self._columns.project_sets.names[int(self._columns.projects[self.row])]

    @property
    def profile(self) -> HostProfile:
        return self._columns.profiles.names[int(self._columns.profile[self.row])]

    @property
    def aggregates(self) -> tuple[Aggregate, ...]:
        """The aggregates of the host that have metadata."""
        return self.hosts.metadata.of_set(int(self._columns.aggregates[self.row]))

    def is_in(self, aggregates: tuple[AggregateId, ...]) -> bool:
        """Is its root provider in one of these aggregates?"""
        return bool(self.hosts.in_any_aggregate(aggregates)[self.at])

    @property
    def registered(self) -> HostState | None:
        """The state of the host, as the host registry has it."""
        return self.hosts.picture.registered(self.row)

    def metric(self, name: str) -> float:
        """The value of this metric; NaN if the host does not report it."""
        return float(self.hosts.metric(name)[self.at])

    # Room

    @property
    def classes(self) -> list[str]:
        """The resource classes that the host has an inventory of."""
        stocks = self._columns.stocks.items()
        return sorted(resource for resource, stock in stocks if stock.step_size[self.row])

    def bounds(self, resource: str) -> tuple[int, int, int, int]:
        """Capacity, min_unit, max_unit and step_size; all 0 without an inventory of the class."""
        stock, row = self._columns.stocks.get(resource), self.row
        if stock is None or not stock.step_size[row]:
            return 0, 0, 0, 0
        columns = (stock.capacity, stock.min_unit, stock.max_unit, stock.step_size)
        capacity, min_unit, max_unit, step_size = [int(column[row]) for column in columns]
        return capacity, min_unit, max_unit, step_size

    def free(self, resource: str) -> int:
        return int(self.hosts.free(resource)[self.at])

    def busy(self, column: str) -> int:
        return int(self.hosts.busy(column)[self.at])

    def has_trait(self, trait: str) -> bool:
        return bool(self.hosts.with_any((trait,))[self.at])

    @property
    def is_compound(self) -> bool:
        return bool(self.hosts.picture.compound[self.row])

    @property
    def compounds(self) -> Compounds:
        return self.hosts.compounds

    @property
    def providers(self) -> list[ProviderState]:
        """All providers that instances on this host may take from."""
        return self.compounds.pools.providers_for(self.row)

    # Server groups

    def members_count(self, group: ServerGroup) -> int:
        """How many members of the group the host has, with those that this batch has chosen."""
        return int(self.hosts.members(group)[self.at])

    def members(self, group: ServerGroup) -> list[ConsumerId]:
        """The members on the host, without those that this batch has chosen."""
        host = self._columns.ids[self.row]
        return [each.consumer for each in self.hosts.members_before(group) if each.host == host]

    def first_member(self, group: ServerGroup) -> tuple[ConsumerId, str] | None:
        """A member that the group had before this batch, with the name of its host, or with the host's id if the
        picture does not have that host. None if there is no such member.
        """
        for each in self.hosts.members_before(group):
            row = self.hosts.picture.row_of(each.host)
            return each.consumer, str(each.host) if row < 0 else self._columns.names[row]
        return None
