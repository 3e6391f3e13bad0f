"""Reads all of a Nova: from its compute API, and the cells of its hosts from its API database, where alone they are."""

from uuid import UUID

from bus.errors import Unavailable
from scheduler_worker.nova.cloud.answers import CellsRead, ServicesRead, cloud_of
from scheduler_worker.nova.cloud.values import CloudCell, NovaCloud
from scheduler_worker.nova_cloud.databases import NovaDatabase, NovaDatabaseError
from scheduler_worker.nova_cloud.rest import NovaApi
from scheduler_worker.nova_cloud.versions import NovaDatabaseKind

# The cell of instances that found no host: it has none.
CELL0 = UUID(int=0)
_CELLS = "SELECT uuid, name FROM cell_mappings"
_HOSTS = (
    "SELECT host_mappings.host AS host, cell_mappings.uuid AS cell FROM host_mappings"
    " JOIN cell_mappings ON cell_mappings.id = host_mappings.cell_id"
)


class NovaCells:
    """Nova's API database, as far as it says which cells there are and which hosts they have."""

    def __init__(self, database: NovaDatabase) -> None:
        self._database = database
        self._is_checked = False

    async def read(self) -> CellsRead:
        """Raises Unavailable if the database cannot be used: an operator may mend it meanwhile."""
        try:
            if not self._is_checked:
                await self._database.check(NovaDatabaseKind.API)
                self._is_checked = True
            async with self._database.reading() as reading:
                cells = await reading.rows(_CELLS)
                hosts = await reading.rows(_HOSTS)
            named = [CloudCell(UUID(str(row["uuid"])), str(row["name"] or "")) for row in cells]
            of_hosts = {str(row["host"]).lower(): UUID(str(row["cell"])) for row in hosts}
        except (NovaDatabaseError, ValueError) as problem:
            raise Unavailable(str(problem)) from problem
        return CellsRead(tuple(each for each in named if each.id != CELL0), of_hosts)

    async def close(self) -> None:
        await self._database.close()


class CloudReader:
    """Reads all of a Nova anew. Each reading raises `Operational` if Nova does not answer, refuses, or answers what cannot be read."""

    def __init__(self, api: NovaApi, cells: NovaCells, *, default_zone: str) -> None:
        self._api = api
        self._cells = cells
        self._default_zone = default_zone

    async def cloud(self) -> NovaCloud:
        # The cells last: a host that Nova discovers meanwhile has its cell.
        services = await self._api.services()
        hypervisors = await self._api.hypervisors()
        aggregates = await self._api.aggregates()
        cells = await self._cells.read()
        return cloud_of(services, hypervisors, aggregates, cells, default_zone=self._default_zone or None)

    async def services(self) -> ServicesRead:
        return await self._api.services()

    async def close(self) -> None:
        await self._api.close()
        await self._cells.close()
