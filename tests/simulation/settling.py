"""When nothing goes wrong any more, everything settles: what is left of a seed, and why it is not what it should be."""

from collections.abc import Iterator
from uuid import UUID

from bus.broker import Connection
from bus.dead_letters import DeadLetter, opened
from bus.message import ProviderId
from bus.messages.build import InstanceId, RequestId
from bus.topology import IRONIC_EVENTS
from ironic_sync.core.ring import names_alive
from scheduler_worker.instances import instance_id_of
from tests.simulation.cloud import Cloud
from tests.simulation.estate import TENANTS
from tests.simulation.hosts_seen import short
from tests.simulation.nodes import is_free, name_of
from tests.simulation.plan import CELLS, GROUPS_OF_NODES
from tests.simulation.viewing import as_the_books, differences

WORK = (
    "scheduler.requests",
    "scheduler.events",
    "placement.work",
    *(f"{role}.{cell}.work" for role in ("conductor", "compute", "ironic") for cell in CELLS),
    IRONIC_EVENTS,
)
ENDS = ("active", "error", "deleted")
# What a cell tells by another name.
TOLD_AS = {"broken": "error"}
LETTERS_MAX = 1_000


async def unsettled(cloud: Cloud, connection: Connection) -> list[str]:
    """Every reason why it is not over yet; none if it is."""
    return [
        *_of_requests(cloud),
        *_of_cells(cloud),
        *_of_books(cloud),
        *_of_hosts(cloud),
        *await _of_nodes(cloud),
        *[f"queue {queue} has {depth}" for queue in WORK if (depth := await connection.depth(queue))],
    ]


async def wrong_at_the_end(cloud: Cloud, connection: Connection) -> list[str]:
    """What no more waiting would heal."""
    return [
        *await cloud.rows.books.audit(),
        *cloud.register.differences(),
        *await _of_view(cloud),
        *_of_pictures(cloud),
        *cloud.intruders.wrong_letters(await _letters(connection)),
    ]


async def _letters(connection: Connection) -> list[DeadLetter]:
    """As a person reads them."""
    async with opened(connection, LETTERS_MAX) as grave:
        return list(grave.letters.values())


def _of_requests(cloud: Cloud) -> Iterator[str]:
    deleted = {instance_id_of(RequestId(each.request), each.index) for each in cloud.plan.deletes}
    for boot in cloud.plan.boots:
        for index in range(boot.count):
            instance = instance_id_of(RequestId(boot.id), index)
            row = cloud.requests.rows.get(instance)
            if row is None:
                yield f"{boot.name} was never accepted"
                break
            state = row.told.state
            if state not in ENDS or (instance in deleted and state != "deleted"):
                yield f"{boot.name}: {short(instance)} is {state}"
            elif state == "deleted" and instance not in deleted and "released before" not in row.told.reason:
                yield f"{boot.name}: {short(instance)} is deleted, which nobody asked: {row.told.reason}"


def _of_cells(cloud: Cloud) -> Iterator[str]:
    """The API level and the cells say the same, as far as a cell knows the instance."""
    for row in cloud.requests.rows.values():
        own = cloud.cells.rows.get(row.id)
        if own is None:
            if row.is_in_cell and row.told.state != "deleted":
                yield f"{short(row.id)} is {row.told.state}, and its cell does not know it"
        elif row.told.state != TOLD_AS.get(own.state, own.state):
            yield f"{short(row.id)} is {row.told.state}, and {own.state} in its cell"


def _of_books(cloud: Cloud) -> Iterator[str]:
    """Held is what active instances hold, and what hosts may have that nobody hears."""
    for consumer in cloud.books.held.keys() - TENANTS:
        heir = cloud.books.heirs.get(consumer)
        instance = InstanceId(consumer) if heir is None else heir.instance
        own = cloud.cells.rows.get(instance)
        row = cloud.requests.rows.get(instance)
        if heir is None and row is not None and row.told.state == "active":
            continue
        if heir is None and own is not None and own.state == "broken":
            continue
        waits = [] if own is None else [each for each in own.cleanups if _releases(each.release, consumer)]
        if not waits:
            name = row.told.name if row else "nobody knows"
            yield f"{short(consumer)} ({name}) holds {cloud.books.held[consumer]}, and nobody will release it"
        elif not any(cloud.hosts.is_dead(each.host) for each in waits):
            yield f"{short(consumer)} waits for {[cloud.hosts.name(each.host) for each in waits]}, which can be heard"
    for row in cloud.requests.rows.values():
        if row.told.state == "active" and row.id not in cloud.books.held:
            yield f"{short(row.id)} is active, and holds nothing"


def _releases(release: tuple[object, ...], consumer: object) -> bool:
    return any(getattr(held, "consumer", None) == consumer for held in release)


def _of_hosts(cloud: Cloud) -> Iterator[str]:
    """On a host that can be heard runs what is active there, and nothing else."""
    for instance, there in cloud.physical.running.items():
        own = cloud.cells.rows.get(instance)
        for host, attempt in there:
            if cloud.hosts.is_dead(host):
                continue
            is_wanted = (
                own is not None
                and own.state == "active"
                and own.attempt == attempt
                and own.host is not None
                and own.host.share.host == host
            )
            if not is_wanted:
                state = "unknown" if own is None else own.state
                yield f"attempt {attempt} of {short(instance)} is on {cloud.hosts.name(host)}, and it is {state}"


async def _of_nodes(cloud: Cloud) -> list[str]:
    """Placement offers what Ironic has free, each node has an owner that has read it, and an instance on it is a row's."""
    truths = cloud.nodes.truths
    rows = await cloud.rows.nodes.read(truths.keys())
    alive = names_alive(await cloud.rows.nodes.members())
    wrong: list[str] = []
    if cloud.ironic is not None and cloud.ironic.ironic.next_due_s is not None:
        wrong.append("Ironic is at work")
    for node, truth in truths.items():
        offered, row = cloud.books.offered(node), rows.get(node)
        if truth.node is None:
            wrong += [f"{short(node)} is deleted, and has a provider: {row!r}"] if offered is not None else []
            continue
        if (
            row is None
            or row.owner not in alive
            or row.read_epoch != row.epoch
            or row.needs_read
            or row.deploy
        ):
            wrong.append(f"{short(node)} has the row {row!r}")
        wanted = (
            name_of(truth.node.resource_class) if is_free(truth.node) and truth.node.resource_class else ""
        )
        if {name for name, count in (offered or {}).items() if count} != ({wanted} if wanted else set()):
            wrong.append(f"{short(node)} offers {offered}, and should offer {wanted or 'nothing'}")
        # While an instance is on it, it stays in its cell.
        is_moved = cloud.hosts.cell(node) == GROUPS_OF_NODES[truth.node.conductor_group]
        if not is_moved and truth.node.instance_uuid is None:
            wrong.append(f"{short(node)} of {truth.node.conductor_group} is in {cloud.hosts.cell(node)}")
        if truth.node.instance_uuid in cloud.instance_ids:
            wrong += _of_instance(cloud, node, InstanceId(UUID(truth.node.instance_uuid)))
    return [*wrong, *_of_active(cloud)]


def _of_instance(cloud: Cloud, node: ProviderId, instance: InstanceId) -> Iterator[str]:
    own = cloud.cells.rows.get(instance)
    if (
        own is None
        or own.state not in ("active", "broken")
        or own.host is None
        or own.host.share.host != node
    ):
        yield f"{short(node)} has {short(instance)}, which is {own.state if own else 'unknown'}"


def _of_active(cloud: Cloud) -> Iterator[str]:
    for row in cloud.cells.rows.values():
        if (
            row.state == "active"
            and row.host is not None
            and (there := cloud.nodes.truths.get(row.host.share.host))
        ):
            is_there = there.node is not None and there.node.instance_uuid == str(row.id)
            if not is_there or there.node is None or there.node.provision_state != "active":
                yield f"{short(row.id)} is active, and not on {short(row.host.share.host)}"


def _of_pictures(cloud: Cloud) -> Iterator[str]:
    """Each scheduler sees what the books say."""
    for name, picture in cloud.workers.pictures.items():
        columns, woods = picture.columns, picture.woods
        woods.plant()
        for row, host in enumerate(columns.names):
            if not columns.present[row] or not columns.provided[row]:
                continue
            providers = [woods.state(each) for each in woods.in_trees_of(columns.root[[row]]).tolist()]
            for resource, stock in columns.stocks.items():
                told = [cloud.books.free(each.id, resource) for each in providers]
                said = [free for free in told if free is not None]
                seen = int(stock.capacity[row] - stock.used[row])
                if said and sum(said) != seen:
                    yield f"{name} sees {seen} {resource} free on {host}: it is {said}"
        for row, state in enumerate(woods.states):
            for resource in state.inventories if state else ():
                assert state is not None, "it has inventories"
                said_of_it = cloud.books.free(state.id, resource)
                free = int(woods.stocks[resource].free[row])
                if said_of_it is not None and said_of_it != free:
                    yield f"{name} sees {free} {resource} free on {state.name}: it is {said_of_it}"


async def _of_view(cloud: Cloud) -> list[str]:
    """So does whoever answers reads."""
    if cloud.clerks.view is None:
        return []
    replica = await cloud.clerks.view.caught_up()
    async with cloud.rows.books.committed():
        as_the_books(replica, cloud.rows.books, cloud.findings)
        return list(differences(replica, cloud.rows.books))


def choices_left(cloud: Cloud) -> list[str]:
    """What schedulers count beside the books: nothing, since they have verified what they see."""
    return [
        f"{name} still counts {int(holding)} choices of its own on {picture.columns.names[row]}"
        for name, picture in cloud.workers.pictures.items()
        for row, holding in enumerate(picture.columns.holding[: len(picture.columns.ids)])
        if holding
    ]
