"""Asks all participants of a cloud at rest what they have, and says what is wrong: by the audit, and by the rules for rest."""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from datetime import timedelta
from itertools import chain

from bus.broker import Connection
from bus.messages.build import AskInstances, InstancesFound
from bus.topology import DEAD_QUEUE
from bus.workers.station import Station
from engine.flavors import InstanceId
from engine.hosts import HostState
from engine.inventories import ProviderState
from ironic_sync.core.node import Node
from ironic_sync.core.offers import class_of, is_available
from ironic_sync.core.rows import NodeRow
from kit.parts import grown
from laboratory.temporary_cloud import TemporaryCloud
from moor.asking import batches_of, hosts_of, items_of, providers_of
from moor.books.at_rest import Asked, CloudAtRest, NodeEntry, problems_at_rest
from moor.books.auditing import AuditOptions, audited, with_computes
from moor.books.books_reader import INSTANCES_PAGE, BooksReader

# Longer than hosts take to report their number of instances.
PATIENCE_S = 15.0
PAUSE_S_FIRST, PAUSE_S_MAX = 0.1, 2.0
# A question waits longer than it is worked on.
PAGES_AT_ONCE = 10


async def problems_left(cloud: TemporaryCloud, asked: Mapping[InstanceId, Asked]) -> Sequence[str]:
    """The problems of the cloud, as `lasting` finds them."""

    async def unrest() -> list[str]:
        hosts = await hosts_of(cloud.client)
        return await _unrest(cloud.client, cloud.connection, hosts, asked, await _nodes(cloud))

    async def look() -> list[str]:
        return await problems_of(cloud.client, cloud.connection, asked, await _nodes(cloud))

    # The audit of a large cloud takes long, and what came late to it would have it made again.
    await lasting(unrest)
    return await lasting(look)


async def lasting(look: Callable[[], Awaitable[Sequence[str]]]) -> Sequence[str]:
    """The problems that are found. If there are any, look again until PATIENCE_S is over: late updates end some of them."""
    problems = await look()
    by_s, failures = asyncio.get_running_loop().time() + PATIENCE_S, 0
    while problems and asyncio.get_running_loop().time() < by_s:
        failures += 1
        await asyncio.sleep(grown(PAUSE_S_FIRST, PAUSE_S_MAX, failures))
        problems = await look()
    return problems


async def problems_of(
    client: Station,
    connection: Connection,
    asked: Mapping[InstanceId, Asked],
    nodes: Sequence[NodeEntry] = (),
) -> list[str]:
    hosts = await hosts_of(client)
    # All cells are on this broker, and no claim is so new that its row may still come.
    cells = dict.fromkeys(sorted({each.cell for each in hosts}), client)
    reader = BooksReader(client, cells, with_computes(hosts), new_s=0)
    audit = await audited(reader, AuditOptions(settle=timedelta()), hosts=hosts)
    return [*audit.problems(), *await _unrest(client, connection, hosts, asked, nodes)]


async def _unrest(
    client: Station,
    connection: Connection,
    hosts: Sequence[HostState],
    asked: Mapping[InstanceId, Asked],
    nodes: Sequence[NodeEntry],
) -> list[str]:
    """What breaks the rules for rest: for a while after the last order this may be what is still on its way."""
    found = await found_instances(client, list(asked))
    at_rest = CloudAtRest(
        asked=asked,
        rows={each.id: each for page in found for each in page.instances},
        details={each.id: each for page in found for each in page.details},
        hosts=hosts,
        providers={each.id: each for each in await providers_of(client)},
        nodes=nodes,
        dead_letters=await connection.depth(DEAD_QUEUE),
    )
    # In a thread: of a million instances it takes so long that the broker would close this process's connection.
    return await asyncio.to_thread(lambda: [*problems_at_rest(at_rest)])


async def found_instances(client: Station, ids: Sequence[InstanceId]) -> list[InstancesFound]:
    """The instances as the API level has them."""

    async def asked(some: Sequence[InstanceId]) -> list[InstancesFound]:
        question = AskInstances(instances=tuple(some), limit=INSTANCES_PAGE)
        return await items_of(client, question, InstancesFound, lambda page: (page,))

    pages: list[InstancesFound] = []
    for together in batches_of(ids, INSTANCES_PAGE * PAGES_AT_ONCE):
        answers = await asyncio.gather(*map(asked, batches_of(together, INSTANCES_PAGE)))
        pages += chain.from_iterable(answers)
    return pages


def is_in_use(providers: Iterable[ProviderState]) -> bool:
    """True if a claim holds anything of these providers: then the usage after a run is not only that of its instances."""
    return any(stock.used for provider in providers for stock in provider.inventories.values())


async def _nodes(cloud: TemporaryCloud) -> list[NodeEntry]:
    if cloud.simulated_ironic is None:
        return []
    nodes = await cloud.nodes()
    rows = await cloud.rows.read([each.id for each in nodes])
    alive = {each.name for each in await cloud.rows.members() if each.is_alive}
    return [_entry_of(node, rows.get(node.id, NodeRow(id=node.id)), alive) for node in nodes]


def _entry_of(node: Node, row: NodeRow, alive: Collection[str]) -> NodeEntry:
    return NodeEntry(
        id=node.id,
        name=node.name or "",
        provision_state=node.provision_state or "",
        is_available=is_available(node),
        resource=class_of(node.resource_class),
        instance=InstanceId(node.instance_uuid) if node.instance_uuid else None,
        owner=row.owner if row.owner in alive else "",
        is_reported=row.read_epoch == row.epoch,
    )
