"""The audit after a load run: all participants must report the same about the boots.

- The client heard one end state of each boot.
- The API level's rows say on which host each instance runs.
- Placement says what each instance holds, and how much of each host is in use: exactly the sum of what instances hold, and
  never more than the capacity.
- Each host says how many instances it has.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC, datetime
from uuid import UUID

from bus.broker import Connection
from bus.message import ProviderId
from bus.messages.build import AskInstances, InstanceId, InstancesFound, InstanceState
from bus.messages.hosts import AskHosts, HostsFound, HostState
from bus.messages.placement import (
    AlreadyClaimed,
    AskSnapshot,
    ClaimAnswered,
    ClaimResources,
    ProviderState,
    ResourceAmount,
    Share,
    SnapshotPage,
)
from bus.station import Station
from bus.topology import CELL0, DEAD_QUEUE, QueueKind, objects_of
from moor.load.firing import FLAVOR, Boot

HELD = {"VCPU": FLAVOR.vcpus, "MEMORY_MB": FLAVOR.ram_mb, "DISK_GB": FLAVOR.root_gb}
ENDS = ("active", "error")
SHOWN_MAX = 20
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


async def audit(
    client: Station, connection: Connection, boots: Mapping[InstanceId, Boot], books: Sequence[str]
) -> list[str]:
    """List all problems as sentences; `books` are the problems that placement's own audit found."""
    rows = await _instances(client, list(boots))
    shares = await _held(client, list(boots))
    providers = {provider.id: provider async for provider in all_providers(client)}
    problems = [
        *books,
        *problems_of_ends(boots, rows),
        *problems_of_shares(rows, shares, providers),
        *problems_of_usage(shares, providers),
        *await _of_hosts(client, rows),
    ]
    if dead := await connection.depth(DEAD_QUEUE):
        problems.append(f"{dead} parcels are among the dead letters")
    if len(problems) > SHOWN_MAX:
        return [*problems[:SHOWN_MAX], f"and {len(problems) - SHOWN_MAX} more"]
    return problems


async def all_hosts(client: Station) -> AsyncIterator[HostState]:
    after: str | None = ""
    while after is not None:
        page = await client.ask(AskHosts(after=after, limit=500))
        assert isinstance(page, HostsFound)
        for host in page.hosts:
            yield host
        after = page.next or None


async def all_providers(client: Station) -> AsyncIterator[ProviderState]:
    after: int | None = 0
    while after is not None:
        page = await client.ask(AskSnapshot(after=after, limit=500))
        assert isinstance(page, SnapshotPage)
        for provider in page.providers:
            yield provider
        after = page.next


def capacity_problems(providers: Sequence[ProviderState]) -> list[str]:
    return [
        f"{provider.name}: {stock.used} {resource} are in use, and there are {capacity}"
        for provider in providers
        for resource, stock in provider.inventories.items()
        if stock.used > (capacity := int((stock.total - stock.reserved) * stock.allocation_ratio))
    ]


async def _instances(client: Station, ids: Sequence[InstanceId]) -> dict[InstanceId, InstanceState]:
    """The instances as the API level has them. Wait up to PATIENCE_S until all have ended there."""
    found: dict[InstanceId, InstanceState] = {}
    waited_s = 0.0
    while open_ := [id_ for id_ in ids if id_ not in found or found[id_].state not in ENDS]:
        if waited_s > PATIENCE_S:
            break
        if found:
            await asyncio.sleep(PAUSE_S)
            waited_s += PAUSE_S
        questions = [
            AskInstances(instances=tuple(open_[at : at + AT_ONCE])) for at in range(0, len(open_), AT_ONCE)
        ]
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


async def _of_hosts(client: Station, rows: Mapping[InstanceId, InstanceState]) -> list[str]:
    """Each host must report as many instances as are active there; an instance that was built twice counts as one more.
    Wait up to PATIENCE_S for late reports.
    """
    active = Counter(row.host for row in rows.values() if row.state == "active")
    problems: list[str] = []
    waited_s = 0.0
    while waited_s < PATIENCE_S:
        problems = [
            f"{host.name} has {host.instances} instances, of which {active[host.name]} are active"
            async for host in all_hosts(client)
            if host.instances != active[host.name]
        ]
        if not problems:
            break
        await asyncio.sleep(PAUSE_S)
        waited_s += PAUSE_S
    return problems
