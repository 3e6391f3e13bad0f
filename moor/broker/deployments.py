"""Which parts of the topology are on which broker: the API level's, the cells' own, and Ironic's own."""

from collections.abc import Iterable
from urllib.parse import unquote, urlsplit

from msgspec import Struct, structs

from bus.addresses import Addresses, limits_at
from bus.broker import Connection
from bus.definitions import Rights, rights_by_user
from bus.topology import IRONIC as EXCHANGE
from bus.topology import IRONIC_INBOX, Limits, Objects, Queue, Site, objects_of
from ironic_sync.settings import IronicSettings
from kit.errors import NotFound

API = "api"
IRONIC = "ironic"


class BrokerDeployment(Struct, frozen=True):
    """One broker, the sites of the topology that it hosts, and the cells that it serves."""

    url: str
    sites: tuple[Site, ...]
    cells: tuple[str, ...]
    # Ironic's exchange and the queue of its notifications, as the operator calls them.
    ironic_exchange: str = EXCHANGE
    inbox: Queue = IRONIC_INBOX

    @property
    def names(self) -> tuple[str, ...]:
        """Names for `moor broker declare --only`: `api`, the cells, or `ironic` for a broker that only Ironic uses."""
        if self.sites == (Site.IRONIC,):
            return (IRONIC,)
        return (*((API,) if Site.API in self.sites else ()), *self.cells)

    @property
    def virtual_host(self) -> str:
        return unquote(urlsplit(self.url).path.removeprefix("/")) or "/"

    @property
    def limits(self) -> Limits:
        return limits_at(self.url)

    def objects(self, *, create_foreign: bool = False) -> Objects:
        usual = objects_of(self.cells, self.sites, create_foreign=create_foreign, limits=self.limits)
        return structs.replace(
            usual,
            exchanges=tuple(
                structs.replace(each, name=self.ironic_exchange) if each.name == EXCHANGE else each
                for each in usual.exchanges
            ),
            queues=tuple(self.inbox if each.name == IRONIC_INBOX.name else each for each in usual.queues),
        )

    def rights(self) -> dict[str, Rights]:
        return rights_by_user(self.objects().exchanges, self.cells, self.sites, inbox=self.inbox)


def deployments_of(
    addresses: Addresses, cells: Iterable[str], ironic: IronicSettings | None = None
) -> tuple[BrokerDeployment, ...]:
    """One deployment per broker. The API level's is first; it also serves the cells without a broker of their own. Ironic's
    own broker, if there is one, is last.
    """
    inbox = (ironic or IronicSettings()).inbox
    by_url: dict[str, list[str]] = {addresses.bus_url: []}
    for cell in cells:
        by_url.setdefault(addresses.bus_of(cell), []).append(cell)
    serve_cells = [url for url, here in by_url.items() if here] or [addresses.bus_url]
    by_url.setdefault(addresses.ironic_bus, [])
    return tuple(
        BrokerDeployment(
            url,
            tuple(
                site
                for site, is_there in (
                    (Site.API, url == addresses.bus_url),
                    (Site.CELL, url in serve_cells),
                    (Site.IRONIC, url == addresses.ironic_bus),
                )
                if is_there
            ),
            tuple(here),
            inbox.exchange,
            inbox.declared,
        )
        for url, here in by_url.items()
    )


async def depths_of(queues: Iterable[str], connection: Connection) -> dict[str, int | None]:
    """How many parcels wait in each of these queues; None if it is not declared."""
    return {queue: await _depth(connection, queue) for queue in queues}


async def _depth(connection: Connection, queue: str) -> int | None:
    try:
        return await connection.depth(queue)
    except NotFound:
        return None
