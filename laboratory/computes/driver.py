"""The driver of a simulated host, and a compute of such hosts. Instances exist only as attempts; the host's faults change what it does.

The compute itself reports a pool (a storage, or the addresses of a segment), and not one of the hosts: so it stays while hosts die.
`python -m compute_sim` runs a compute alone, `moor` beside other workers.
"""

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from uuid import UUID, uuid5

import msgspec

from bus.addresses import ADDRESSES
from bus.messages.cell import (
    AdoptGuest,
    DestroyInstance,
    LeaveGuest,
    RespawnInstance,
    SpawnInstance,
)
from bus.workers.connections import Station
from compute_sim.core.attempts import WELL, AttemptRecord, Condition, HostOrder, Work
from compute_sim.core.hosts import (
    Network,
    Pool,
    aggregate_of,
    pools_of,
    read_networks,
    read_pools,
    tree_of_pool,
)
from compute_sim.core.trees import Allocations, CannotReshape, ProviderTree, TreeProvider, first_fit
from compute_sim.drivers import ConsoleText, GuestStopped, NoConsole
from compute_sim.handlers import ComputeStore
from compute_sim.settings import ComputePace, ComputeSettings
from compute_sim.store_sql import kept_attempts
from compute_sim.wiring import OpensHosts, compute_parts
from engine.guests import memory_class
from engine.inventories import ProviderId, ReportedInventory
from kit.clock import now
from kit.database_settings import DATABASE
from kit.process import Part
from laboratory.computes.faults import (
    KINDS,
    Changes,
    FaultScript,
    WorkFault,
    condition_of,
    faults_of,
    load_script,
    next_turn_s,
    work_of,
)
from laboratory.computes.hosts import (
    HostSize,
    SimulatedHost,
    equal_hosts,
    metrics_at,
    read_host_size,
    read_places,
    size_at,
)

HOSTS_COUNT = 100


class SimulatedPool:
    """A simulated provider that shares an amount with hosts. It is reported like a host (`Reported`)."""

    def __init__(self, pool: Pool) -> None:
        self._tree = tree_of_pool(pool)
        self.root = self._tree.root

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:  # noqa: ARG002 - it never changes
        return self._tree

    def condition(self, at_s: float) -> Condition:  # noqa: ARG002 - it has no faults
        return WELL


# The root provider's id is derived from the host's name, and the NUMA nodes' ids from that: they survive a restart.
HOSTS = UUID("7f6a1f0e-6c3c-4b0e-8a64-5d3a0c1b9e02")

# Devices are on buses of their own, from this one on.
FIRST_BUS = 0x81

# The classes and the kind of ports of a network.
BANDWIDTHS = ("NET_BW_EGR_KILOBIT_PER_SEC", "NET_BW_IGR_KILOBIT_PER_SEC")
NORMAL_PORTS = "CUSTOM_VNIC_TYPE_NORMAL"

KIB_PER_MB = 1024

# How many images a host keeps on its disk.
IMAGES_MAX = 20


class SimulatedDriver:
    """A simulated hypervisor (a `Driver`), with the faults that the fault script gives it."""

    def __init__(
        self,
        host: SimulatedHost,
        script: FaultScript | None = None,
        pools: Sequence[Pool] = (),
        networks: Sequence[Network] = (),
    ) -> None:
        """`pools` share their resources with this host, which has no inventories of their classes itself. It reaches the
        `networks`.
        """
        self.host = host
        self.root = root_of(host.name)
        self._script = script or FaultScript()
        faults = faults_of(self._script, host.name)
        # Checked at every order; most hosts have none of these faults.
        self._work_faults = {
            order: [fault for fault in faults if isinstance(fault, kind.fails | kind.slows)]
            for order, kind in KINDS.items()
        }
        self._other_faults = [each for each in faults if not isinstance(each, WorkFault)]
        self._silencing = [each for each in self._other_faults if not isinstance(each, Changes)]
        self._usual_work = {order: Work(getattr(self._script, kind.time)) for order, kind in KINDS.items()}
        self._images: dict[str, None] = {}
        self._networks = networks
        self._pooled = frozenset(pool.resource for pool in pools)
        self._joins = frozenset(aggregate_of(pool) for pool in pools)

    def update_provider_tree(self, tree: ProviderTree, at_s: float) -> ProviderTree:  # noqa: ARG002 - it is made anew
        size = size_at(self.host.size, self._other_faults, at_s)
        providers = (
            self._root(size),
            *self._numa_nodes(size),
            *self._devices(size),
            *map(self._port_provider, self._networks),
        )
        return ProviderTree(self.root, {each.id: each for each in providers})

    def reshape(
        self, known: ProviderTree, new: ProviderTree, allocations: Allocations
    ) -> Allocations | CannotReshape:
        return first_fit(known, new, allocations)

    def reshaped(self, allocations: Allocations) -> None:
        """Simulated instances have no places."""

    def next_change_s(self, at_s: float) -> float | None:
        turns = [turn for fault in self._other_faults if (turn := next_turn_s(fault, at_s)) is not None]
        return min(turns, default=None)

    def metrics(self, at_s: float) -> Mapping[str, float]:
        return metrics_at(self.host.metrics, self._other_faults, at_s)

    def condition(self, at_s: float) -> Condition:
        return condition_of(self._silencing, at_s) if self._silencing else WELL

    def images(self) -> Sequence[str]:
        return tuple(self._images)

    def wake_with(self, wake: Callable[[ProviderId], None]) -> None:
        """Its work ends at the times that it names."""

    def stopped(self, running: Iterable[AttemptRecord]) -> Sequence[GuestStopped]:  # noqa: ARG002 - none ever does
        return ()

    def why_broken(self, attempt: AttemptRecord) -> str:  # noqa: ARG002 - none ever is
        return ""

    async def console(self, attempt: AttemptRecord, start: int, limit: int) -> ConsoleText:
        if attempt.state.takes_slot:
            raise NoConsole("its guest has written nothing yet: it has not run here")
        text = f"{self.host.name}: the simulated guest of attempt {attempt.attempt} has started\n".encode()
        begin = max(0, len(text) + start) if start < 0 else min(start, len(text))
        return ConsoleText(text[begin : begin + limit], begin, len(text))

    def begin(self, order: HostOrder, at_s: float) -> Work:
        if isinstance(order, DestroyInstance | LeaveGuest | AdoptGuest):
            # There is nothing to remove, and each guest that is to be adopted counts as being there.
            return Work()
        # The disk of an instance that is received comes from its source.
        if isinstance(order, SpawnInstance | RespawnInstance) and order.image is not None:
            self._download(order.image.source)
        kind = type(order)
        if faults := self._work_faults[kind]:
            return work_of(self._script, KINDS[kind], faults, order, at_s)
        return self._usual_work[kind]

    def look_at(self, attempt: AttemptRecord, at_s: float) -> Work:  # noqa: ARG002 - it was decided when the work began
        return Work(failure=attempt.failure)

    def _download(self, image: str) -> None:
        """Put an image into the host's cache. The image that was not used for the longest time makes room."""
        self._images.pop(image, None)
        self._images[image] = None
        if len(self._images) > IMAGES_MAX:
            del self._images[next(iter(self._images))]

    def _root(self, size: HostSize) -> TreeProvider:
        inventories = {"DISK_GB": _inventory(size.disk_gb, size.disk_gb_reserved, size.disk_ratio)}
        if not size.numa_nodes:
            inventories |= _cpus_and_memory(size)
        return TreeProvider(
            id=self.root,
            name=self.host.name,
            inventories=self._its_own(inventories),
            traits=size.traits,
            joins=self._joins,
            place=self.host.place,
        )

    def _numa_nodes(self, size: HostSize) -> list[TreeProvider]:
        return [
            TreeProvider(
                id=self._numa_node(number),
                name=f"{self.host.name}_NUMA{number}",
                parent=self.root,
                inventories=self._its_own(_cpus_and_memory(size, number, size.numa_nodes)),
                traits=frozenset({"HW_NUMA_ROOT"}),
            )
            for number in range(size.numa_nodes)
        ]

    def _its_own(self, inventories: dict[str, ReportedInventory]) -> dict[str, ReportedInventory]:
        """The inventories that the host reports itself: those that are not empty, and whose class no pool shares."""
        return {
            resource: each
            for resource, each in inventories.items()
            if each.total and resource not in self._pooled
        }

    def _devices(self, size: HostSize) -> list[TreeProvider]:
        """The devices by addresses of their own, as those of a real host are named."""
        return [
            TreeProvider(
                id=ProviderId(uuid5(self.root, f"device-{number}")),
                name=f"{self.host.name}_0000:{FIRST_BUS + number:02x}:00.0",
                parent=self._numa_node(number % size.numa_nodes) if size.numa_nodes else self.root,
                inventories={
                    resource: ReportedInventory(total=amount, max_unit=amount)
                    for resource, amount in device.gives.items()
                },
                traits=device.traits,
            )
            for number, device in enumerate(size.devices)
        ]

    def _port_provider(self, network: Network) -> TreeProvider:
        """The provider of the host's ports on this network, as Neutron's agents report it."""
        bandwidth = ReportedInventory(total=network.kilobits)
        return TreeProvider(
            id=ProviderId(uuid5(self.root, f"network-{network.name}")),
            name=f"{self.host.name}:{network.name}",
            parent=self.root,
            inventories=dict.fromkeys(BANDWIDTHS, bandwidth),
            traits=frozenset({network.trait, NORMAL_PORTS}),
        )

    def _numa_node(self, number: int) -> ProviderId:
        return ProviderId(uuid5(self.root, f"numa-{number}"))


def root_of(host: str) -> ProviderId:
    return ProviderId(uuid5(HOSTS, host))


def _cpus_and_memory(size: HostSize, number: int = 0, parts: int = 1) -> dict[str, ReportedInventory]:
    pcpus = _part(size.pcpus, number, parts)
    return {
        **({"PCPU": ReportedInventory(total=pcpus, max_unit=pcpus)} if pcpus else {}),
        **{memory_class(kib): _in_pages(kib, mb, number, parts) for kib, mb in size.pages},
        "VCPU": _inventory(
            _part(size.vcpus, number, parts), _part(size.vcpus_reserved, number, parts), size.vcpu_ratio
        ),
        "MEMORY_MB": _inventory(
            _part(size.ram_mb, number, parts), _part(size.ram_mb_reserved, number, parts), size.ram_ratio
        ),
    }


def _in_pages(kib: int, mb: int, number: int, parts: int) -> ReportedInventory:
    """The part of `mb` of memory that this NUMA node has in whole pages. An amount of it is in whole pages, too."""
    pages = _part(mb * KIB_PER_MB // kib, number, parts)
    step = max(1, kib // KIB_PER_MB)
    return ReportedInventory(total=pages * kib // KIB_PER_MB, min_unit=step, step_size=step)


def _part(whole: int, number: int, parts: int) -> int:
    """The size of part `number` when `whole` is divided into `parts`. The first parts take the remainder."""
    return whole // parts + (number < whole % parts)


def _inventory(total: int, reserved: int, ratio: float) -> ReportedInventory:
    # The reserve cannot be more than the total, which matters when a host shrinks.
    return ReportedInventory(total=total, reserved=min(reserved, total), allocation_ratio=ratio)


def simulated_parts(
    station: Station,
    hosts: Sequence[SimulatedHost],
    settings: ComputeSettings,
    faults: FaultScript | None = None,
    clock: Callable[[], datetime] = now,
    *,
    store: ComputeStore | None = None,
    pace: ComputePace | None = None,
) -> tuple[Part, ...]:
    """A compute of simulated hosts, and of the pools and networks that the settings name."""
    pools = read_pools(settings.pools, settings.cell)
    networks = read_networks(settings.networks)
    drivers = [SimulatedDriver(host, faults, pools_of(pools, host.name), networks) for host in hosts]
    return compute_parts(
        station,
        drivers,
        settings,
        clock,
        store=store,
        pools=[*map(SimulatedPool, pools)],
        pace=pace,
    )


def from_environment(environment: Mapping[str, str]) -> OpensHosts:
    """The driver `simulated`. MOOR_COMPUTE_HOSTS is the number of hosts, MOOR_COMPUTE_HOST_SIZE what differs from their usual size, and
    MOOR_COMPUTE_PLACE where they are.
    LABORATORY_FAULTS is the laboratory's own, and no setting: the path of a fault script, or the script itself as JSON. With a
    database of the cell, guests outlive the process.
    """
    count = environment.get("MOOR_COMPUTE_HOSTS", str(HOSTS_COUNT))
    if not count.isdecimal():
        raise ValueError(f"MOOR_COMPUTE_HOSTS is {count!r}, must be a whole number, 0 or more")
    size = read_host_size(environment.get("MOOR_COMPUTE_HOST_SIZE", ""))
    place = read_places(environment.get("MOOR_COMPUTE_PLACE", ""))
    script = environment.get("LABORATORY_FAULTS", "")
    if script.startswith("{"):
        faults = msgspec.json.decode(script, type=FaultScript)
    else:
        faults = load_script(Path(script), FaultScript) if script else FaultScript()
    database_url = ADDRESSES.read(environment).db_of(environment["MOOR_CELL"])
    database = DATABASE.read(environment)

    @asynccontextmanager
    async def opened(
        station: Station, settings: ComputeSettings, **_: object
    ) -> AsyncIterator[Sequence[Part]]:
        hosts = equal_hosts(settings.cell, int(count), size, place)
        kept = kept_attempts(database_url, settings.cell, database) if database_url else nullcontext()
        async with kept as store:
            yield simulated_parts(station, hosts, settings, faults, store=store)

    return opened
