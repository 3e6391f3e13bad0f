"""The audit after a load run: all participants must report the same about the boots.

- The client heard one end state of each boot.
- The API level's rows say on which host each instance runs.
- Placement says what each instance holds, and how much of each host is in use: exactly the sum of what instances hold, and
  never more than the capacity.
- Each host says how many instances it has.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

from bus.broker import Connection
from bus.message import ProviderId
from bus.messages.build import AskInstances, InstanceId, InstancesFound, InstanceState
from bus.messages.hosts import HostState
from bus.messages.placement import (
    AlreadyClaimed,
    ClaimAnswered,
    ClaimResources,
    ProviderState,
    ResourceAmount,
    Share,
)
from bus.topology import CELL0, DEAD_QUEUE, QueueKind, objects_of
from bus.workers.station import Station
from moor.client import hosts_of, providers_of
from moor.clouds.temporary_cloud import TemporaryCloud
from moor.load.firing import FLAVOR, Boot

HELD = {"VCPU": FLAVOR.vcpus, "MEMORY_MB": FLAVOR.ram_mb, "DISK_GB": FLAVOR.root_gb}
ENDS = ("active", "error")
# Longer than hosts take to report their number of instances.
PATIENCE_S = 15.0
PAUSE_S = 0.1
QUIET_LOOKS = 3
AT_ONCE = 200
# A claim on a provider that does not exist, with an attempt number that no worker reaches: placement never grants it, and
# its answer says what the consumer holds.
_NOWHERE = ProviderId(UUID(int=0))
_NOTHING = Share(host=_NOWHERE, amounts=(ResourceAmount(provider=_NOWHERE, resource="VCPU", amount=1),))
_ATTEMPT = 1_000_000


async def until_quiet(connection: Connection, cells: Sequence[str]) -> None:
    """Wait until all queues are empty, several polls in a row."""
    work = [
        queue.name
        for queue in objects_of(cells).queues
        if queue.kind in (QueueKind.WORK, QueueKind.QUESTIONS)
    ]
    quiet = 0
    async with asyncio.timeout(PATIENCE_S):
        while quiet < QUIET_LOOKS:
            waiting = [await connection.depth(queue) for queue in work]
            quiet = 0 if any(waiting) else quiet + 1
            await asyncio.sleep(PAUSE_S)


async def problems_left(find: Callable[[], Awaitable[list[str]]]) -> list[str]:
    """The problems that are left after some time for late updates."""
    problems = await find()
    by_s = asyncio.get_running_loop().time() + PATIENCE_S
    while problems and asyncio.get_running_loop().time() < by_s:
        await asyncio.sleep(PAUSE_S)
        problems = await find()
    return problems


async def problems_of(cloud: TemporaryCloud, boots: Mapping[InstanceId, Boot]) -> list[str]:
    """List all problems as sentences."""
    rows = await _instances(cloud.client, list(boots))
    shares = await _held(cloud.client, list(boots))
    providers = {provider.id: provider for provider in await providers_of(cloud.client)}
    problems = [
        *await cloud.placement.audit(),
        *problems_of_ends(boots, rows),
        *problems_of_shares(rows, shares, providers),
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


async def _instances(client: Station, ids: Sequence[InstanceId]) -> dict[InstanceId, InstanceState]:
    """The instances as the API level has them."""
    questions = [
        AskInstances(instances=tuple(ids[at : at + AT_ONCE]), limit=AT_ONCE)
        for at in range(0, len(ids), AT_ONCE)
    ]
    found: dict[InstanceId, InstanceState] = {}
    for answer in await client.ask_all(questions):
        assert isinstance(answer, InstancesFound)
        found |= {state.id: state for state in answer.instances}
    return found


async def _held(client: Station, ids: Sequence[InstanceId]) -> dict[InstanceId, Share]:
    """The share that each instance holds in placement; instances that hold nothing are left out."""
    now = datetime.now(UTC)
    held: dict[InstanceId, Share] = {}
    for at in range(0, len(ids), AT_ONCE):
        some = ids[at : at + AT_ONCE]
        answers = await client.ask_all(
            [
                ClaimResources(cell=CELL0, consumer=id_, attempt=_ATTEMPT, issued_at=now, share=_NOTHING)
                for id_ in some
            ]
        )
        for id_, answer in zip(some, answers, strict=True):
            assert isinstance(answer, ClaimAnswered)
            if isinstance(answer.verdict, AlreadyClaimed):
                held[id_] = answer.verdict.share
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
        elif (amounts := {each.resource: each.amount for each in share.amounts}) != HELD:
            problems.append(f"instance {id_} holds {amounts}, but should hold {HELD}")
    return problems


def problems_of_usage(
    shares: Mapping[InstanceId, Share], providers: Mapping[ProviderId, ProviderState]
) -> list[str]:
    """The usage of each host must equal what this run's instances hold there. Any other usage has leaked."""
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
