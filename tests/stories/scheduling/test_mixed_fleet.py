"""One flavor on two kinds of hosts: some report all amounts at their root, others report NUMA trees. A third of the hosts
changes from the one kind to the other under the boots.
"""

import asyncio
from collections import Counter
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from itertools import cycle
from uuid import uuid5

import pytest

from bus.broker import Broker
from bus.message import Message
from bus.messages.administration import (
    AskHolders,
    ConsumerAllocations,
    ConsumerMoved,
    ConsumerState,
    CreateProvider,
    Done,
    GenerationMoved,
    HoldersFound,
    ProviderInventories,
    ProviderWritten,
    Reshape,
    WriteAnswered,
    WriteVerdict,
)
from bus.messages.build import BuildInstance, DeleteInstance
from bus.messages.hosts import HostsReported
from bus.messages.placement import ClaimResources, ReportInventory
from bus.settings import BusSettings
from bus.workers.station import Station
from engine.flavors import Flavor, InstanceId
from engine.hosts import HostFacts
from engine.inventories import (
    ConsumerId,
    ProviderId,
    ProviderState,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
)
from tests.stories.cloud import NAMES, Cloud, a_build, cloud, host_id, instance_of, wait_until
from tests.stories.layouts import ONE_BROKER

pytestmark = pytest.mark.asyncio


FLAVOR = Flavor(name="two", vcpus=2, ram_mb=1024, root_gb=1)
HELD = {"VCPU": 2, "MEMORY_MB": 1024, "DISK_GB": 1}
# Four instances fit on every host, two on each of its NUMA nodes.
PER_HOST = 4
DISK = {"DISK_GB": ReportedInventory(total=100)}
HALF = {"VCPU": ReportedInventory(total=4), "MEMORY_MB": ReportedInventory(total=8192)}
WHOLE = {"VCPU": ReportedInventory(total=8), "MEMORY_MB": ReportedInventory(total=16384)}
NODES = ("left", "right")
FLAT = ("flat-1", "flat-2", "flat-3")
NUMA = ("numa-1", "numa-2", "numa-3")
CHANGING = ("changing-1", "changing-2", "changing-3")
HOSTS = (*FLAT, *NUMA, *CHANGING)
# The first wave does not fit on the other hosts alone; then one host changes in each wave.
WAVES = (26, 2, 2, 2)
TRIES_MAX = 50


class ChangesUnderClaims:
    """Before a scheduler sends claims that it has just decided, one more host changes its shape, if it is time for one."""

    def __init__(self) -> None:
        self.setup: Cloud | None = None
        self.left = list(CHANGING)
        self.is_time = False
        # Held while a host changes.
        self.changing = asyncio.Lock()
        # How many instances each changed host had at that moment.
        self.changed: dict[str, int] = {}

    def station(self, broker: Broker, name: str, *, settings: BusSettings, asks: bool) -> Station:
        changes = self

        class ChangingStation(Station):
            async def ask_all(self, questions: Sequence[Message]) -> list[Message]:
                claims = any(isinstance(question, ClaimResources) for question in questions)
                if claims and changes.is_time:
                    changes.is_time = False
                    async with changes.changing:
                        await changes.change(changes.left.pop())
                return await super().ask_all(questions)

        return ChangingStation(broker, name, settings=settings, asks=asks)

    async def change(self, host: str) -> None:
        """Move all CPUs and memory of the host, and all that is held of them, into two NUMA nodes."""
        assert self.setup is not None, "the story sets it"
        for node in NODES:
            created = CreateProvider(id=node_id(host, node), name=f"{host}_{node}", parent=host_id(host))
            assert isinstance(await write(self.setup, created), ProviderWritten)
        for _ in range(TRIES_MAX):
            # The generations first: a claim that is granted after they are read moves one of them.
            states = await self.setup.providers()
            holders = await holders_of(self.setup, host_id(host))
            verdict = await write(self.setup, reshape_of(host, states, holders))
            if isinstance(verdict, Done):
                self.changed[host] = len(holders)
                return
            # Other claims were granted meanwhile.
            assert isinstance(verdict, GenerationMoved | ConsumerMoved), verdict
        raise AssertionError(f"{host} was changed by others during each of {TRIES_MAX} tries")


def node_id(host: str, node: str) -> ProviderId:
    return ProviderId(uuid5(NAMES, f"{host}_{node}"))


async def write(setup: Cloud, order: Message) -> WriteVerdict:
    answer = await setup.client.ask(order)
    assert isinstance(answer, WriteAnswered)
    return answer.verdict


async def holders_of(setup: Cloud, provider: ProviderId) -> Sequence[ConsumerState]:
    found = await setup.client.ask(AskHolders(provider=provider, limit=1000))
    assert isinstance(found, HoldersFound)
    assert found.next is None
    return found.holders


def reshape_of(host: str, states: dict[str, ProviderState], holders: Sequence[ConsumerState]) -> Reshape:
    stocks = [
        (host_id(host), states[host].generation, DISK),
        *[(node_id(host, node), states[f"{host}_{node}"].generation, HALF) for node in NODES],
    ]
    return Reshape(
        inventories=tuple(
            ProviderInventories(provider=provider, generation=generation, inventories=inventories)
            for provider, generation, inventories in stocks
        ),
        allocations=tuple(
            moved(holder, node_id(host, node)) for holder, node in zip(holders, cycle(NODES), strict=False)
        ),
    )


def moved(holder: ConsumerState, to: ProviderId) -> ConsumerAllocations:
    amounts = [
        each
        if each.resource in DISK
        else ResourceAmount(provider=to, resource=each.resource, amount=each.amount)
        for each in holder.held
    ]
    return ConsumerAllocations(
        consumer=holder.id,
        amounts=tuple(amounts),
        project=holder.project,
        user=holder.user,
        type=holder.type,
        generation=holder.generation,
    )


async def add_hosts(setup: Cloud) -> None:
    for name in HOSTS:
        cell = "c2" if name.endswith("2") else "c1"
        root = ReportedProvider(
            id=host_id(name), name=name, inventories=DISK if name in NUMA else {**WHOLE, **DISK}
        )
        nodes = [
            ReportedProvider(
                id=node_id(name, node), name=f"{name}_{node}", parent=host_id(name), inventories=HALF
            )
            for node in (NODES if name in NUMA else ())
        ]
        await setup.report(ReportInventory(cell=cell, root=host_id(name), providers=(root, *nodes)))
        facts = HostFacts(id=host_id(name), name=name)
        await setup.stations_in[cell].publisher.send(HostsReported(cell=cell, hosts=(facts,)))
    await setup.until_reported(*HOSTS)


async def held_by(setup: Cloud) -> dict[ConsumerId, tuple[ResourceAmount, ...]]:
    """What each consumer holds, as the roots tell it: every instance has its disk there."""
    return {holder.id: holder.held for name in HOSTS for holder in await holders_of(setup, host_id(name))}


async def each_holds_its_share_on_its_host(
    setup: Cloud, hosts: dict[InstanceId, str], numa: Collection[str]
) -> None:
    held = await held_by(setup)
    assert held.keys() == hosts.keys()
    for instance, host in hosts.items():
        amounts: Counter[str] = Counter()
        for each in held[instance]:
            amounts[each.resource] += each.amount
        assert amounts == HELD, host
        roots = {each.provider for each in held[instance] if each.resource in DISK}
        others = {each.provider for each in held[instance] if each.resource not in DISK}
        assert roots == {host_id(host)}
        nodes = {node_id(host, node) for node in NODES}
        assert others <= (nodes if host in numa else {host_id(host)}), host


@ONE_BROKER
async def test_one_flavor_is_booted_on_flat_hosts_and_numa_trees_while_a_third_is_reshaped(
    bus: str, books: str
) -> None:
    changes = ChangesUnderClaims()
    async with cloud(bus, books) as setup, setup.placement(), AsyncExitStack() as stack:
        changes.setup = setup
        for number in range(2):
            await stack.enter_async_context(setup.scheduler(f"scheduler-{number}", station=changes.station))
        await add_hosts(setup)
        hosts: dict[InstanceId, str] = {}

        async def each_holds_its_share() -> None:
            # A request that was asked again may be claimed, and refused, at any time.
            async with changes.changing:
                await each_holds_its_share_on_its_host(setup, hosts, {*NUMA, *changes.changed})

        async def boot(builds: Sequence[BuildInstance]) -> None:
            await setup.client.ask_all(builds)
            for build in builds:
                state = await setup.until_state(instance_of(build), "active", "error")
                assert state.state == "active", state
                hosts[state.id] = state.host

        numbers = iter(range(1, 100))
        for size in WAVES:
            await boot([a_build(next(numbers), flavor=FLAVOR) for _ in range(size)])
            await each_holds_its_share()
            changes.is_time = bool(changes.left)
        assert changes.changed.keys() == {*CHANGING}
        assert sum(changes.changed.values()) >= WAVES[0] - len(FLAT + NUMA) * PER_HOST

        # The rest fits exactly, wherever it is.
        await boot([a_build(next(numbers), flavor=FLAVOR) for _ in range(len(HOSTS) * PER_HOST - len(hosts))])
        await each_holds_its_share()
        assert Counter(hosts.values()) == dict.fromkeys(HOSTS, PER_HOST)
        one_more = a_build(99, flavor=FLAVOR)
        await setup.send(one_more)
        refused = await setup.until_state(instance_of(one_more), "active", "error")
        assert refused.no_valid_host is not None
        assert [(step.step, step.removed) for step in refused.no_valid_host.steps] == [
            ("capacity", len(HOSTS))
        ]

        await setup.client.ask_all([DeleteInstance(instance=instance) for instance in hosts])
        for instance in hosts:
            await setup.until_state(instance, "deleted")

        async def is_free() -> bool:
            return not await held_by(setup)

        # Placement hears of a release by a message of its own.
        await wait_until(is_free, "nothing is held")
        assert all(
            inventory.used == 0
            for state in (await setup.providers()).values()
            for inventory in state.inventories.values()
        )
