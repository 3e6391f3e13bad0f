"""The hosts of a Nova in the scheduler's picture: its compute nodes, with the state of their services, their load and their cells."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import UUID

from msgspec import structs

from engine.hosts import Aggregate, HostSetting, HostState, Supported
from engine.inventories import AggregateId, ConsumerId, ProviderId, ResourceAmount
from engine.picture.picture import Picture
from nova_bridge.cloud import (
    ComputeService,
    NovaCloud,
    cell_names,
    names_of,
    services_by_host,
)
from nova_bridge.cloud_reading import NovaCloudKeeper
from nova_bridge.request_spec import NovaNames
from nova_bridge.selection import ComputeNode, InstancesByService, ServiceInstances

# Which kinds of guests a node runs is told by neither the API nor a notification: any, as far as is known.
_ANY_GUEST = (Supported(),)
KEY_MAX, KEYS_MAX = 255, 200


class NovaHosts:
    """Writes what Nova knows into the picture, and finds hosts by their ids. `cloud` is what was written last."""

    def __init__(self, picture: Picture) -> None:
        self._picture = picture
        self._rows: dict[ProviderId, HostState] = {}
        self._aggregates: dict[AggregateId, Aggregate] = {}
        self._writes = 0
        self.cloud = NovaCloud()
        self.names = NovaNames()
        self.instances = InstancesByService()

    def get(self, host: ProviderId) -> HostState | None:
        return self._rows.get(host)

    def host_of(self, provider: ProviderId) -> HostState | None:
        """The host of whose tree this provider is. None if it is of none, such as a pool that several hosts share."""
        row = self._picture.index.row_of(provider)
        return None if row is None else self.get(self._picture.index.state(row).root)

    def holding(self, held: Iterable[tuple[ConsumerId, Sequence[ResourceAmount]]]) -> dict[UUID, ProviderId]:
        """The host of each consumer that holds something of one. An evacuated instance holds something of its old host, too, which is down."""
        found: dict[UUID, ProviderId] = {}
        for consumer, amounts in held:
            hosts = [host for each in amounts if (host := self.host_of(each.provider)) is not None]
            if hosts:
                found[consumer] = next((each.id for each in hosts if each.up), hosts[0].id)
        return found

    def name_of(self, host: ProviderId) -> str:
        row = self._rows.get(host)
        return str(host) if row is None else row.name

    def take(self, cloud: NovaCloud) -> None:
        """Write this state of the whole Nova; what it has no more goes."""
        if cloud is self.cloud:
            return
        self.cloud, self.names = cloud, names_of(cloud)
        rows = _host_states(cloud, self.instances)
        gone = [host for host in self._rows if host not in rows]
        changed = [row for host, row in rows.items() if self._rows.get(host) != row]
        self._rows = rows
        self._picture.remove_hosts(gone)
        self._picture.put_hosts(changed)
        silent = {str(each.id) for each in cloud.silent_cells}
        names = {str(id_): name for id_, name in cell_names(cloud.cells.values()).items()}
        self._picture.put_cells_down({names[id_]: "Nova says that it does not answer" for id_ in silent})
        self._take_aggregates(cloud)

    def tell_instances(self, service: str) -> None:
        """Write what a compute told of its instances."""
        of_service = self.instances.of(service)
        changed: list[HostState] = []
        names = self.names.by_service.get(service, ())
        if len(names) > 1:
            # A service of bare metal: what it does says nothing about one of its nodes.
            return
        for name in names:
            for id_ in self._ids_named(name):
                row = self._rows[id_]
                now = _loaded(row, of_service.count, of_service.io_ops)
                if now != row:
                    self._rows[id_] = now
                    changed.append(now)
        self._picture.put_hosts(changed)

    def _ids_named(self, name: str) -> list[ProviderId]:
        picture = self._picture
        ids = [picture.columns.ids[row] for row in picture.rows_named(name.lower())]
        return [id_ for id_ in ids if id_ in self._rows]

    def _take_aggregates(self, cloud: NovaCloud) -> None:
        self._writes += 1
        now = {
            each.id: Aggregate(
                id=each.id,
                name=each.name[:KEY_MAX],
                metadata=_fitting(each.metadata),
                sequence=self._writes,
            )
            for each in cloud.aggregates.values()
        }
        for id_, known in self._aggregates.items():
            if id_ not in now:
                self._picture.remove_aggregate(known)
        news = [each for id_, each in now.items() if not _is_same(self._aggregates.get(id_), each)]
        self._picture.put_aggregates(news)
        self._aggregates = {id_: each for id_, each in self._aggregates.items() if id_ in now} | {
            each.id: each for each in news
        }


def _is_same(known: Aggregate | None, now: Aggregate) -> bool:
    return known is not None and (known.name, known.metadata) == (now.name, now.metadata)


def _fitting(metadata: Mapping[str, str]) -> dict[str, str]:
    return {key: value[:KEY_MAX] for key, value in list(metadata.items())[:KEYS_MAX] if key}


def _host_states(cloud: NovaCloud, instances: InstancesByService) -> dict[ProviderId, HostState]:
    services, cells = services_by_host(cloud), cell_names(cloud.cells.values())
    nodes = Counter(node.service.lower() for node in cloud.nodes.values())
    found: dict[ProviderId, HostState] = {}
    for id_, node in cloud.nodes.items():
        name = node.service.lower()
        of_service = instances.of(name) if nodes[name] == 1 else ServiceInstances()
        found[id_] = _host_state(node, services.get(name), cells.get(node.cell, ""), of_service)
    return found


def _host_state(
    node: ComputeNode, service: ComputeService | None, cell: str, of_service: ServiceInstances
) -> HostState:
    row = HostState(
        id=node.id,
        name=node.name,
        cell=cell,
        up=service is not None and service.is_up and not service.is_forced_down,
        setting=_setting(service),
        availability_zone=node.zone or "",
        supports=_ANY_GUEST,
    )
    return _loaded(row, of_service.count, of_service.io_ops)


def _setting(service: ComputeService | None) -> HostSetting:
    if service is None:
        return HostSetting(mode="down", reason="Nova has no service of it")
    if service.is_forced_down:
        return HostSetting(mode="down", reason="its service is forced down")
    if service.is_disabled:
        return HostSetting(mode="draining", reason=service.unusable_because[:KEY_MAX])
    return HostSetting()


def _loaded(row: HostState, instances: int, io_ops: int) -> HostState:
    if (row.instances, row.io_ops) == (instances, io_ops):
        return row
    return structs.replace(row, instances=instances, io_ops=io_ops)


# Has Nova read again when placement has hosts that Nova was not known to have.
#
# No notification tells that Nova has discovered the cell of a new compute. Until all of Nova is read again, its hosts are not chosen. So
# it is read soon, again after growing pauses while some are still missing, and at once before a request is refused.


PAUSE_FIRST, PAUSE_MAX = timedelta(seconds=5), timedelta(seconds=300)
# Requests that are refused because of the same missing hosts have Nova read no more often than this.
BEFORE_REFUSALS = timedelta(seconds=10)
READ_WITHIN_S, LOOK_S = 5.0, 0.05


class NovaNews:
    """`read_soon` has all of Nova read; then `knows` has another value."""

    def __init__(
        self,
        picture: Picture,
        knows: NovaCloudKeeper,
        read_soon: Callable[[], None],
        clock: Callable[[], datetime],
    ) -> None:
        self._picture = picture
        self._knows = knows
        self._read_soon = read_soon
        self._clock = clock
        self._missing: frozenset[ProviderId | str] = frozenset()
        self._next_at = self._refusals_at = clock()
        self._pause = PAUSE_FIRST
        self._refusing = asyncio.Lock()

    def look(self) -> None:
        """Have Nova read if hosts are missing, and it is time."""
        if self._is_any_missing() and self._clock() >= self._next_at:
            self._ask()

    async def before_refusal(self, *, is_unknown: bool = False) -> None:
        """If hosts are missing, or the request names one that `is_unknown`, wait until Nova was read, but not for long: the caller
        waits for its refusal. Requests that are refused meanwhile wait for the same reading.
        """
        async with self._refusing:
            # This may change the time from which Nova may be read.
            wants = self._is_any_missing() or is_unknown
            if not wants or (now := self._clock()) < self._refusals_at:
                return
            before = self._knows.cloud
            self._refusals_at = now + BEFORE_REFUSALS
            self._ask()
            for _ in range(int(READ_WITHIN_S / LOOK_S)):
                if self._knows.cloud is not before:
                    return
                await asyncio.sleep(LOOK_S)

    def _is_any_missing(self) -> bool:
        cloud = self._knows.cloud
        unplaced = () if cloud is None else cloud.unplaced
        missing = frozenset[ProviderId | str]((*self._picture.unregistered(), *unplaced))
        if missing != self._missing:
            self._missing, self._pause = missing, PAUSE_FIRST
            self._next_at = self._refusals_at = self._clock()
        return bool(missing)

    def _ask(self) -> None:
        self._next_at = self._clock() + self._pause
        self._pause = min(self._pause * 2, PAUSE_MAX)
        self._read_soon()
