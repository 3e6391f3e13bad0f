"""The audit after a load run: `moor audit` finds nothing, and the books say what the client asked for and heard.

- The client heard one end state of each boot.
- The API level's rows say on which host each instance runs.
- Placement says what each instance holds, and how much of each host and pool is in use: exactly the sum of what instances
  hold, and never more than the capacity.
- Each host says how many instances it has.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence

from bus.broker import Connection
from bus.message import ProviderId
from bus.messages.books import AskBooks, BooksFound
from bus.messages.build import AskInstances, InstanceId, InstancesFound, InstanceState
from bus.messages.hosts import HostState
from bus.messages.placement import ProviderState, Share
from bus.topology import CELL0, DEAD_QUEUE, QueueKind, objects_of
from bus.workers.station import Station
from moor.books.auditing import problems_in_books
from moor.client import batches_of, hosts_of, pages_of, providers_of
from moor.clouds.temporary_cloud import TemporaryCloud
from moor.load.orders import Boot, amounts_of

ENDS = ("active", "error", "deleted")
# Longer than hosts take to report their number of instances.
PATIENCE_S = 15.0
PAUSE_S = 0.1
QUIET_LOOKS = 3
AT_ONCE = 200


async def until_quiet(connection: Connection, cells: Sequence[str]) -> None:
    """Wait until all queues of orders and questions have been empty in several polls in a row."""
    work = [
        queue.name
        for queue in objects_of(cells).queues
        if queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS)
    ]
    quiet = 0
    async with asyncio.timeout(PATIENCE_S):
        while quiet < QUIET_LOOKS:
            quiet = 0 if any([await connection.depth(queue) for queue in work]) else quiet + 1
            await asyncio.sleep(PAUSE_S)


async def problems_left(find: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """Call `find` until it returns no problem, or PATIENCE_S is over: late updates end some problems.

    Returns the problems that the last call has found.
    """
    problems = await find()
    by_s = asyncio.get_running_loop().time() + PATIENCE_S
    while problems and asyncio.get_running_loop().time() < by_s:
        await asyncio.sleep(PAUSE_S)
        problems = await find()
    return problems


async def problems_of(cloud: TemporaryCloud, boots: Mapping[InstanceId, Boot]) -> list[str]:
    rows = await instances_of(cloud.client, list(boots))
    shares = await _held(cloud.client, list(boots))
    providers = {provider.id: provider for provider in await providers_of(cloud.client)}
    problems = [
        *await problems_in_books(cloud.client),
        *problems_of_ends(boots, rows),
        *problems_of_shares(boots, rows, shares, providers),
        *problems_of_usage(shares, providers),
        *problems_of_hosts(await hosts_of(cloud.client), rows),
    ]
    if dead := await cloud.connection.depth(DEAD_QUEUE):
        problems.append(f"{dead} parcels are among the dead letters")
    return problems


def capacity_problems(providers: Sequence[ProviderState]) -> list[str]:
    return [
        f"{provider.name}: {stock.used} {resource} are in use, and there are {capacity}"
        for provider in providers
        for resource, stock in provider.inventories.items()
        if stock.used > (capacity := int((stock.total - stock.reserved) * stock.allocation_ratio))
    ]


def claims_of(rows: Iterable[InstanceState]) -> tuple[int, int]:
    """How many claims the schedulers made for these instances, and how many of them placement refused.

    Each instance outside of cell0 was granted one claim.
    """
    rows = tuple(rows)
    refused = sum(len(row.refusals) for row in rows)
    return refused + sum(row.cell != CELL0 for row in rows), refused


async def instances_of(client: Station, ids: Sequence[InstanceId]) -> dict[InstanceId, InstanceState]:
    """The instances as the API level has them."""
    found: dict[InstanceId, InstanceState] = {}
    for some in batches_of(ids, AT_ONCE):
        question = AskInstances(instances=tuple(some), limit=AT_ONCE)
        async for page in pages_of(client, question, InstancesFound):
            found |= {state.id: state for state in page.instances}
    return found


async def _held(client: Station, ids: Sequence[InstanceId]) -> dict[InstanceId, Share]:
    """The share that each instance holds in placement; instances that hold nothing are left out."""
    held: dict[InstanceId, Share] = {}
    for some in batches_of(ids, AT_ONCE):
        async for page in pages_of(client, AskBooks(consumers=tuple(some)), BooksFound):
            held |= {
                each.id: Share(host=each.host, amounts=each.held)
                for each in page.consumers
                if each.held and each.host is not None
            }
    return held


def problems_of_ends(boots: Mapping[InstanceId, Boot], rows: Mapping[InstanceId, InstanceState]) -> list[str]:
    problems = []
    for id_, boot in boots.items():
        row = rows.get(id_)
        heard = boot.state.state if boot.state else "nothing"
        if row is None or row.state != heard or heard not in ENDS:
            problems.append(
                f"instance {id_}: the client heard {heard}, the API level has {row.state if row else 'nothing'}"
            )
    return problems


def problems_of_shares(
    boots: Mapping[InstanceId, Boot],
    rows: Mapping[InstanceId, InstanceState],
    shares: Mapping[InstanceId, Share],
    providers: Mapping[ProviderId, ProviderState],
) -> list[str]:
    problems = []
    for id_, row in rows.items():
        share = shares.get(id_)
        if row.state != "active":
            if share is not None:
                problems.append(f"instance {id_} is {row.state}, but holds a share of {share.host}")
            continue
        host = providers.get(share.host) if share else None
        if share is None or host is None:
            problems.append(f"instance {id_} is active on {row.host}, but holds nothing")
        elif host.name != row.host:
            problems.append(f"instance {id_} is active on {row.host}, but holds a share of {host.name}")
        elif (amounts := {each.resource: each.amount for each in share.amounts}) != (
            wanted := amounts_of(boots[id_].flavor)
        ):
            problems.append(f"instance {id_} holds {amounts}, but should hold {wanted}")
    return problems


def problems_of_usage(
    shares: Mapping[InstanceId, Share], providers: Mapping[ProviderId, ProviderState]
) -> list[str]:
    """The usage of each host and pool must equal what this run's instances hold there. Any other usage has leaked."""
    held: Counter[tuple[ProviderId, str]] = Counter()
    for share in shares.values():
        for each in share.amounts:
            held[each.provider, each.resource] += each.amount
    leaks = [
        f"{provider.name}: {stock.used} {resource} are in use, and the instances hold {held[provider.id, resource]}"
        for provider in providers.values()
        for resource, stock in provider.inventories.items()
        if stock.used != held[provider.id, resource]
    ]
    return leaks + capacity_problems(list(providers.values()))


def problems_of_hosts(hosts: Sequence[HostState], rows: Mapping[InstanceId, InstanceState]) -> list[str]:
    """Each host must report as many instances as are active there; an instance that was built twice counts as one more."""
    active = Counter(row.host for row in rows.values() if row.state == "active")
    return [
        f"{host.name} has {host.instances} instances, of which {active[host.name]} are active"
        for host in hosts
        if host.instances != active[host.name]
    ]
