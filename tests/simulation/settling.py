"""After the faults have stopped everything must settle: lists what has not, and why."""

from collections.abc import Iterator
from uuid import UUID

from bus.broker import Connection
from bus.topology import IRONIC_EVENTS
from bus.workers.dead_letters import DeadLetter, open_dead_letters
from cell_conductor.core.rows import Instance
from compute_sim.core.attempts import AttemptState
from engine.flavors import InstanceId, RequestId, instance_id_of
from engine.inventories import ProviderId
from engine.picture.picture import Picture
from ironic_sync.core.ring import names_alive
from tests.simulation.cloud import Cloud
from tests.simulation.host_history import short_id
from tests.simulation.moves_checker import without_outcome
from tests.simulation.nodes_checker import is_free, name_of
from tests.simulation.plan import CELLS, CONSUMERS, GROUPS_OF_NODES
from tests.simulation.view_oracle import compare_candidates, differences

WORK = (
    "scheduler.requests",
    "scheduler.events",
    "placement.work",
    *(f"{role}.{cell}.work" for role in ("conductor", "compute", "ironic") for cell in CELLS),
    IRONIC_EVENTS,
)
OF_KEEPERS = ("keeper.requests", "keeper.events")
ENDS = ("active", "stopped", "shelved", "offloaded", "error", "deleted")
# An instance in one of these states holds its share, and its host has it.
EXISTS = ("active", "stopped", "shelved")
# States that the API level calls by another name than the cell.
STATE_AT_API = {"broken": "error"}
DEAD_LETTERS_MAX = 1_000


async def unsettled(cloud: Cloud, connection: Connection) -> list[str]:
    """Every reason why the run is not over yet."""
    work = (*WORK, *OF_KEEPERS) if cloud.plan.keepers else WORK
    left = [
        *_unsettled_requests(cloud),
        *_unsettled_cells(cloud),
        *_unsettled_books(cloud),
        *_unsettled_hosts(cloud),
        *_unsettled_modes(cloud),
        *await _unsettled_nodes(cloud),
        *cloud.keeping.unsettled(),
        *[f"queue {queue} has {depth}" for queue in work if (depth := await connection.depth(queue))],
    ]
    # A message that its worker tries again after a pause is in no queue meanwhile.
    return left or [*cloud.intruders.unburied(await _dead_letters(connection))]


async def errors_at_the_end(cloud: Cloud, connection: Connection) -> list[str]:
    """Errors that waiting longer would not mend."""
    return [
        *await cloud.rows.books.audit(),
        *cloud.write_oracle.differences(),
        *await _view_differences(cloud),
        *_picture_differences(cloud),
        *cloud.keeping.left_behind(),
        *cloud.intruders.wrong_dead_letters(await _dead_letters(connection)),
    ]


async def _dead_letters(connection: Connection) -> list[DeadLetter]:
    """The dead letters, read as `moor dead` reads them."""
    async with open_dead_letters(connection, DEAD_LETTERS_MAX) as opened_letters:
        return list(opened_letters.letters.values())


def _unsettled_requests(cloud: Cloud) -> Iterator[str]:
    deleted = {instance_id_of(RequestId(each.request), each.index) for each in cloud.plan.deletes}
    deleted |= cloud.client.movers.deleted
    for boot in cloud.plan.boots:
        for index in range(boot.count):
            instance = instance_id_of(RequestId(boot.id), index)
            row = cloud.requests.rows.get(instance)
            if row is None:
                yield f"{boot.name} was never accepted"
                break
            state = row.told.state
            own = cloud.cells.rows.get(instance)
            if own is not None and instance not in deleted and _waits_for_dead_host(cloud, own):
                continue
            if state not in ENDS or (instance in deleted and state != "deleted"):
                yield f"{boot.name}: {short_id(instance)} is {state}: {own.reason if own else ''}"
            elif state == "deleted" and instance not in deleted and "released before" not in row.told.reason:
                yield f"{boot.name}: {short_id(instance)} is deleted, but no client deleted it: {row.told.reason}"


def _waits_for_dead_host(cloud: Cloud, own: Instance) -> bool:
    """Whether this offloaded instance waits for a dead host: it is offloaded when its host has destroyed it, or when
    an operator sets the host dead.
    """
    if own.moving is None or own.moving.step != "freeing":
        return False
    return any(cloud.hosts.is_dead(each.host) for each in own.cleanups)


def _unsettled_cells(cloud: Cloud) -> Iterator[str]:
    """The API level and the cell have the same state for an instance that the cell knows."""
    for row in cloud.requests.rows.values():
        own = cloud.cells.rows.get(row.id)
        if own is None:
            if row.is_in_cell and row.told.state != "deleted":
                yield f"{short_id(row.id)} is {row.told.state}, and its cell does not know it"
        elif row.told.state != STATE_AT_API.get(own.state, own.state):
            yield f"{short_id(row.id)} is {row.told.state}, and {own.state} in its cell"
        if why := without_outcome(row):
            yield why


def _unsettled_books(cloud: Cloud) -> Iterator[str]:
    """Claims of consumers that should hold nothing any more. Instances that exist hold claims; so do instances whose
    cleanup waits for a dead or silent host, and what is left of their moves. The audit compares what instances hold.
    """
    for consumer in cloud.books.held.keys() - CONSUMERS:
        cleanup = cloud.books.cleanup_consumers.get(consumer)
        instance = InstanceId(consumer) if cleanup is None else cleanup.instance
        own = cloud.cells.rows.get(instance)
        row = cloud.requests.rows.get(instance)
        if cleanup is None and row is not None and row.told.state in EXISTS:
            continue
        if cleanup is None and own is not None and own.state == "broken":
            continue
        waits = [] if own is None else [each for each in own.cleanups if _releases(each.release, consumer)]
        if not waits:
            name = row.told.name if row else "unknown"
            yield f"{short_id(consumer)} ({name}) holds {cloud.books.held[consumer]}, and no cleanup will release it"
        elif dead := [each.host for each in waits if cloud.hosts.is_set(each.host, "dead")]:
            yield f"{short_id(consumer)} waits for {[cloud.hosts.name(each) for each in dead]}, which is set dead"
        elif not any(cloud.hosts.is_dead(each.host) for each in waits):
            yield f"{short_id(consumer)} waits for {[cloud.hosts.name(each.host) for each in waits]}, which answer"
    yield from filter(None, map(cloud.cells.wrong_image, _active(cloud)))


def _active(cloud: Cloud) -> Iterator[Instance]:
    return (row for row in cloud.cells.rows.values() if row.state == "active")


def _releases(release: tuple[object, ...], consumer: object) -> bool:
    return any(getattr(held, "consumer", None) == consumer for held in release)


def _unsettled_hosts(cloud: Cloud) -> Iterator[str]:
    """A host that answers runs exactly the instances that are active on it, and has those that are stopped or shelved there, or that it
    could not rebuild.
    """
    for instance, there in cloud.real_instances.running.items():
        own = cloud.cells.rows.get(instance)
        for (host, attempt), state in there.items():
            if cloud.hosts.is_dead(host):
                continue
            is_wanted = (
                own is not None
                and own.state in (*EXISTS, "broken")
                and (state is AttemptState.STOPPED) is (own.state in ("stopped", "shelved"))
                and (
                    (state is AttemptState.BROKEN) is (own.state == "broken")
                    # A late copy of the first order built it again on a host that had forgotten it.
                    or (
                        state is AttemptState.BUILT and cloud.real_instances.was_lost(instance, host, attempt)
                    )
                )
                and own.host_attempt == attempt
                and own.host is not None
                and own.host.share.host == host
            )
            if not is_wanted:
                said = "unknown" if own is None else own.state
                yield (
                    f"attempt {attempt} of {short_id(instance)} is {state.value} on {cloud.hosts.name(host)}, and the instance is "
                    f"{said}"
                )


def _unsettled_modes(cloud: Cloud) -> Iterator[str]:
    """Each cell knows how its hosts are set, and a host that was dead has cleaned up when it is set up and answers."""
    for host in cloud.hosts.rows.values():
        known = cloud.hosts.in_cells.get(host.id)
        if host.setting.at is not None and (known is None or known.word.setting != host.setting):
            yield f"{host.name} is set {host.setting.mode}, and its cell has {known.mode if known else 'no word of it'}"
        if host.told != host.setting.number:
            yield f"the setting of {host.name} has number {host.setting.number}, and its row says that its cell knows {host.told}"
        if host.must_clean and host.setting.mode != "dead" and not cloud.hosts.is_dead(host.id):
            yield f"{host.name} was dead, answers, and is not known to be clean"


async def _unsettled_nodes(cloud: Cloud) -> list[str]:
    """Placement offers exactly the nodes that are available at Ironic, each node has an owner that has read it, and
    each instance on a node has a row.
    """
    real_nodes = cloud.nodes.real_nodes
    rows = await cloud.rows.nodes.read(real_nodes.keys())
    alive = names_alive(await cloud.rows.nodes.members())
    in_use = {each.provider for held in cloud.books.held.values() for each in held}
    wrong: list[str] = []
    if cloud.ironic is not None and not (cloud.ironic.has_played and cloud.ironic.ironic.next_due_s is None):
        wrong.append("Ironic still has work to do")
    for node, real_node in real_nodes.items():
        offered, row = cloud.books.offered(node), rows.get(node)
        if real_node.node is None:
            # An instance that was on it keeps its share, and with it the provider, until a client deletes it.
            if offered is not None and node not in in_use:
                wrong.append(f"{short_id(node)} is deleted, and has a provider: {row!r}")
            continue
        if (
            row is None
            or row.owner not in alive
            or row.read_epoch != row.epoch
            or row.needs_read
            or row.deploy
        ):
            wrong.append(f"{short_id(node)} has the row {row!r}")
        wanted = (
            name_of(real_node.node.resource_class)
            if is_free(real_node.node) and real_node.node.resource_class
            else ""
        )
        if {name for name, count in (offered or {}).items() if count} != ({wanted} if wanted else set()):
            wrong.append(f"{short_id(node)} offers {offered}, and should offer {wanted or 'nothing'}")
        # A node with an instance stays in its cell.
        is_moved = cloud.hosts.cell(node) == GROUPS_OF_NODES[real_node.node.conductor_group]
        if not is_moved and real_node.node.instance_uuid is None:
            wrong.append(
                f"{short_id(node)} of {real_node.node.conductor_group} is in {cloud.hosts.cell(node)}"
            )
        if real_node.node.instance_uuid in cloud.instance_ids:
            wrong += _misplaced_instance(cloud, node, InstanceId(UUID(real_node.node.instance_uuid)))
    return [*wrong, *_missing_instances(cloud)]


def _misplaced_instance(cloud: Cloud, node: ProviderId, instance: InstanceId) -> Iterator[str]:
    own = cloud.cells.rows.get(instance)
    if (
        own is None
        or own.state not in ("active", "broken")
        or own.host is None
        or own.host.share.host != node
    ):
        yield f"{short_id(node)} has {short_id(instance)}, which is {own.state if own else 'unknown'}"


def _missing_instances(cloud: Cloud) -> Iterator[str]:
    for row in cloud.cells.rows.values():
        if (
            row.state == "active"
            and row.host is not None
            and (there := cloud.nodes.real_nodes.get(row.host.share.host))
        ):
            is_there = there.node is not None and there.node.instance_uuid == str(row.id)
            if not is_there or there.node is None or there.node.provision_state != "active":
                yield f"{short_id(row.id)} is active, and not on {short_id(row.host.share.host)}"


def _picture_differences(cloud: Cloud) -> Iterator[str]:
    """Each scheduler's picture equals the books."""
    for name, picture in cloud.workers.pictures.items():
        columns, provider_index = picture.columns, picture.index
        provider_index.attach_trees()
        for row, host in enumerate(columns.names):
            if not columns.present[row] or not columns.provided[row]:
                continue
            yield from _host_differences(cloud, name, picture, columns.ids[row])
            providers = [
                provider_index.state(each)
                for each in provider_index.in_trees_of(columns.root[[row]]).tolist()
            ]
            for resource, stock in columns.stocks.items():
                told = [cloud.books.free(each.id, resource) for each in providers]
                said = [free for free in told if free is not None]
                seen = int(stock.capacity[row] - stock.used[row])
                # A provider of a tree that is used beyond its size counts as full.
                wanted = sum(max(free, 0) for free in said) if len(providers) > 1 else sum(said)
                if said and wanted != seen:
                    yield f"{name} sees {seen} {resource} free on {host}: it is {said}"
        for row, state in enumerate(provider_index.states):
            for resource in state.inventories if state else ():
                assert state is not None, "it has inventories"
                said_of_it = cloud.books.free(state.id, resource)
                free = int(provider_index.stocks[resource].free[row])
                if said_of_it is not None and said_of_it != free:
                    yield f"{name} sees {free} {resource} free on {state.name}: it is {said_of_it}"


def _host_differences(cloud: Cloud, name: str, picture: Picture, host: ProviderId) -> Iterator[str]:
    """Differences between a scheduler's picture of a host and the rows."""
    if not cloud.demands.knows(host):
        return
    # A host that has not cleaned up yet counts as down, and not as disabled.
    zone, is_enabled = cloud.demands.zone_of(host), cloud.hosts.rows[host].setting.mode == "up"
    seen = (
        frozenset(picture.aggregates_of(host)),
        picture.zone_of(host),
        bool(picture.columns.enabled[picture.row_of(host)]),
    )
    said = (cloud.books.aggregates_of(host), zone, is_enabled)
    if seen != said:
        yield f"{name} sees {cloud.hosts.name(host)} with aggregates, zone, enabled {seen}: they are {said}"


async def _view_differences(cloud: Cloud) -> list[str]:
    """The view of the HTTP server equals the books."""
    if cloud.admins.view is None:
        return []
    logged = -1
    while True:
        replica = await cloud.admins.view.caught_up()
        async with cloud.rows.books.committed() as rows:
            # A host that changes by itself may be written between the two: then the view is read once more.
            if rows.writes == logged:
                compare_candidates(replica, cloud.rows.books, cloud.findings)
                return list(differences(replica, cloud.rows.books))
            logged = rows.writes


def choices_left(cloud: Cloud) -> list[str]:
    """Choices that schedulers still count beside the books. None may be left once they have read everything anew."""
    return [
        f"{name} still counts {int(holding)} choices of its own on {picture.columns.names[row]}"
        for name, picture in cloud.workers.pictures.items()
        for row, holding in enumerate(picture.columns.holding[: len(picture.columns.ids)])
        if holding
    ]
