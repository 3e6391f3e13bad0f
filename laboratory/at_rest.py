"""Problems of a cloud of which every order has ended: asks all participants what they have, and says what is wrong.

The audit judges instances one by one, at any time. Here the caller knows more: what clients asked for and heard, and
that nothing is under way. So whatever is in use must be held by an active instance.
"""

import asyncio
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import chain

from msgspec import Struct

from bus.broker import Connection
from bus.messages.build import AskInstances, InstanceDetails, InstancesFound, InstanceState
from bus.topology import DEAD_QUEUE
from bus.workers.connections import Station
from engine.flavors import InstanceId
from engine.hosts import HostState
from engine.inventories import ProviderId, ProviderState
from ironic_sync.core.offers import class_of, is_available
from ironic_sync.core.rows import NodeRow
from kit.parts import Pauses, batches_of, what_remains
from moor.client.books.auditing import AuditOptions, audited, with_computes
from moor.client.books.books_reader import INSTANCES_PAGE, BooksReader
from moor.client.bus_client import hosts_of, items_of, providers_of
from moor.clouds.temporary_cloud import TemporaryCloud

ENDS = ("active", "error", "deleted")
# Longer than hosts take to report their number of instances.
PATIENCE_S = 15.0
LOOKING = Pauses(first_s=0.1, max_s=2.0)
# A question waits longer than it is worked on.
PAGES_AT_ONCE = 10


class Asked(Struct, frozen=True):
    """A client's view of one instance. `heard` is the last state that the client heard, empty if it heard none.

    `amounts` are those of its flavor, by resource class. `on_node`: the flavor is one for bare metal.
    """

    heard: str
    amounts: Mapping[str, int]
    on_node: bool = False


class NodeEntry(Struct, frozen=True, kw_only=True):
    """A bare-metal node as Ironic has it, with the instance on it, and placement's name of its class.

    `owner` is the daemon that must report it; empty if that is not alive.
    """

    id: ProviderId
    name: str
    provision_state: str
    is_available: bool
    resource: str
    instance: InstanceId | None
    owner: str
    is_reported: bool


class CloudAtRest(Struct, frozen=True, kw_only=True):
    """The state of a cloud, as all its participants report it.

    `asked` has each instance that a client asked for, and `rows` and `details` are those of the API level.
    """

    asked: Mapping[InstanceId, Asked]
    rows: Mapping[InstanceId, InstanceState]
    details: Mapping[InstanceId, InstanceDetails]
    hosts: Sequence[HostState]
    providers: Mapping[ProviderId, ProviderState]
    nodes: Sequence[NodeEntry] = ()
    dead_letters: int = 0


# The active instances, with what their clients asked for.
Active = Sequence[tuple[InstanceState, Asked]]


def problems_at_rest(cloud: CloudAtRest) -> Iterator[str]:
    active = [(row, cloud.asked[row.id]) for row in cloud.rows.values() if row.state == "active"]
    yield from _of_ends(cloud)
    for rule in (_of_sizes, _of_usage, _of_hosts, _of_kinds, _of_nodes):
        yield from rule(cloud, active)
    if cloud.dead_letters:
        yield f"{cloud.dead_letters} parcels are among the dead letters"


def _of_ends(cloud: CloudAtRest) -> Iterator[str]:
    """Each request must have ended, and its client must have heard the state that the API level has."""
    for id_, asked in cloud.asked.items():
        row = cloud.rows.get(id_)
        if row is None or row.state != asked.heard or asked.heard not in ENDS:
            heard, has = asked.heard or "nothing", row.state if row else "nothing"
            yield f"instance {id_}: the client heard {heard}, the API level has {has}"


def _of_sizes(cloud: CloudAtRest, active: Active) -> Iterator[str]:
    """The API level must have the size that the client asked for. The other rules compare it with the claim."""
    for row, asked in active:
        details = cloud.details.get(row.id)
        size = details.size.amounts if details and details.size else {}
        # An amount of 0 is as good as none.
        if size != asked.amounts and Counter(size) != Counter(asked.amounts):
            yield (
                f"instance {row.id}: the client asked for {dict(asked.amounts)}, the API level has {dict(size)}"
            )


def _of_usage(cloud: CloudAtRest, active: Active) -> Iterator[str]:
    """No more may be in use than active instances need, and no provider may be used beyond its capacity.

    A node with an instance is reserved, so it has no capacity.
    """
    nodes = {each.id for each in cloud.nodes}
    in_use: Counter[str] = Counter()
    for provider in cloud.providers.values():
        for resource, stock in provider.inventories.items():
            in_use[resource] += stock.used
            capacity = int((stock.total - stock.reserved) * stock.allocation_ratio)
            if provider.id not in nodes and stock.used > capacity:
                yield f"{provider.name}: {stock.used} {resource} are in use, and there are {capacity}"
    needed: Counter[str] = Counter()
    for amounts, count in Counter(tuple(asked.amounts.items()) for _, asked in active).items():
        needed.update({resource: amount * count for resource, amount in amounts})
    for resource in sorted({*in_use, *needed}):
        if in_use[resource] != needed[resource]:
            yield f"{in_use[resource]} {resource} are in use, and the active instances need {needed[resource]}"


def _of_hosts(cloud: CloudAtRest, active: Active) -> Iterator[str]:
    """Each host must report as many instances as are active there: an instance that was built twice counts as one more."""
    there = Counter(row.host for row, _ in active)
    for host in cloud.hosts:
        if host.instances != there[host.name]:
            yield f"{host.name} has {host.instances} instances, of which {there[host.name]} are active"


def _of_kinds(cloud: CloudAtRest, active: Active) -> Iterator[str]:
    """An active instance must be on the kind of host that its client asked for."""
    nodes = {str(each.id) for each in cloud.nodes}
    for row, asked in active:
        if asked.on_node != (row.host in nodes):
            kind = "a bare-metal node" if row.host in nodes else "a hypervisor"
            yield f"instance {row.name} is on {row.host}, which is {kind}"


def _of_nodes(cloud: CloudAtRest, active: Active) -> Iterator[str]:
    """Ironic must have exactly the active instances, placement must offer exactly the nodes that are available, and a daemon
    that is alive must have reported each node. The audit says whether the right nodes are in use.
    """
    on_hosts = {row.host: row.id for row, _ in active}
    for node in cloud.nodes:
        wanted = on_hosts.get(str(node.id))
        if node.instance != wanted or (wanted and node.provision_state != "active"):
            yield (
                f"node {node.name} has instance {node.instance} in Ironic, in state {node.provision_state!r}, and the API level "
                f"has {wanted} there"
            )
        provider = cloud.providers.get(node.id)
        stock = provider.inventories.get(node.resource) if provider else None
        if stock is None:
            yield f"node {node.name} has no inventory in placement"
        elif (stock.reserved == 0) != node.is_available:
            yield (
                f"node {node.name} is {node.provision_state!r} in Ironic, but placement has {stock.reserved} of "
                f"{stock.total} reserved"
            )
        if not node.owner:
            yield f"node {node.name} is owned by no daemon that is alive"
        elif not node.is_reported:
            yield f"node {node.name} was not reported by its owner {node.owner}"


async def problems_left(cloud: TemporaryCloud, asked: Mapping[InstanceId, Asked]) -> Sequence[str]:
    """The problems of the cloud, as `what_remains` finds them."""

    async def unrest() -> list[str]:
        hosts = await hosts_of(cloud.client)
        return await _unrest(cloud.client, cloud.connection, hosts, asked, await _nodes(cloud))

    async def look() -> list[str]:
        return await problems_of(cloud.client, cloud.connection, asked, await _nodes(cloud))

    # The audit of a large cloud takes long, and what came late to it would have it made again.
    await what_remains(unrest, LOOKING, PATIENCE_S)
    return await what_remains(look, LOOKING, PATIENCE_S)


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
    if cloud.simulation is None:
        return []
    nodes = await cloud.nodes()
    rows = await cloud.rows.read([each.id for each in nodes])
    alive = {each.name for each in await cloud.rows.members() if each.is_alive}
    of_nodes = [(node, rows.get(node.id, NodeRow(id=node.id))) for node in nodes]
    return [
        NodeEntry(
            id=node.id,
            name=node.name or "",
            provision_state=node.provision_state or "",
            is_available=is_available(node),
            resource=class_of(node.resource_class),
            instance=InstanceId(node.instance_uuid) if node.instance_uuid else None,
            owner=row.owner if row.owner in alive else "",
            is_reported=row.read_epoch == row.epoch,
        )
        for node, row in of_nodes
    ]
