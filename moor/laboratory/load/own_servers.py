"""A load run needs servers of its own: other data there would distort the figures."""

from bus.errors import Failure
from ironic_sync.store_sql import SqlIronicStore

OWN_SERVERS = "a load run needs its own servers, a new database and a new virtual host"


class ServersInUse(Failure):
    """These servers already hold other data, which would distort the figures."""


async def refuse_existing_nodes(database_url: str) -> None:
    store = SqlIronicStore(database_url)
    try:
        count = len(await store.owners()) if await store.has_tables() else 0
    finally:
        await store.close()
    if count:
        raise ServersInUse(f"the daemons' tables already have {count} nodes: {OWN_SERVERS}")
