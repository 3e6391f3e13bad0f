"""Draws the demanding part of one seed in twenty. Its requests have groups of resources, ports, volumes and zones. Its hosts
are flat, have NUMA nodes, or PCI devices. Aggregates change their hosts and metadata, and schedulers have other settings.
"""

import random
from collections.abc import Iterator
from uuid import UUID

from msgspec import structs

from engine.choosing.plugin_settings import FILTERS, WEIGHERS
from engine.inventories import AggregateId
from laboratory.computes.faults import FailsToBuild
from laboratory.computes.hosts import Device, SimulatedHost
from tests.simulation.demands import PHYSNET, Demand, Part
from tests.simulation.plan import GOLD, AggregateOrder, Boot, Delete, DisabledHost, Plan

# Plain boots that are left out, since these seeds have others; and how many of those that stay become demanding.
SHARE_LEFT_OUT, SHARE_DEMANDING = 0.4, 0.8
BUSY_S = (2.5, 34.0)
FAST = "CUSTOM_FAST"
BLUE = "blue"
DEVICE = "PCI_DEVICE"
CELL_OF_NUMA = "HW_NUMA_ROOT"
FEATURES = "cpu_info:features"
WATTS = "rack.watts_left"
ZONES = ("north", "south")
ZONE_AGGREGATES = tuple(AggregateId(UUID(int=0x20E0 + n)) for n in range(len(ZONES)))
# Hosts for one project only, while its metadata says so. All boots are of another project.
TENANTS = AggregateId(UUID(int=0x7E4A))
TENANT = {"filter_tenant_id": "another-project"}
FAILED_BUILDS_MAX = 2


def with_demands(plan: Plan, chance: random.Random) -> Plan:
    hosts = {
        cell: tuple(_host(host, number, chance) for number, host in enumerate(of_cell))
        for cell, of_cell in plan.hosts.items()
    }
    names = [host.name for of_cell in hosts.values() for host in of_cell]
    failing = chance.choice(names)
    boots = tuple(_demanding(boot, chance) for boot in plan.boots if _stays(boot, plan, chance))
    bursts = tuple(_bursts(chance))
    fails = FailsToBuild(hosts=(failing,), probability=0.9, reason="its disk is broken")
    counts = {boot.id: boot.count for boot in boots}
    deletes = [each for each in plan.deletes if each.index < counts.get(each.request, 0)]
    return structs.replace(
        plan,
        hosts=hosts,
        boots=tuple(sorted((*boots, *bursts), key=lambda boot: boot.at_s)),
        deletes=(*deletes, *deletes_soon(bursts, 0.6, chance)),
        disabled_hosts=(*plan.disabled_hosts, *_disabled_long(names, chance)),
        aggregate_orders=tuple(sorted(_aggregates(names, chance), key=lambda order: order.at_s)),
        script=structs.replace(plan.script, faults=(*plan.script.faults, fails)),
        settings=_settings(chance),
    )


def _host(host: SimulatedHost, number: int, chance: random.Random) -> SimulatedHost:
    """A third of the hosts is flat, a third has NUMA nodes, and a third has PCI devices, too."""
    profile = chance.choice(("flat", "numa", "pci"))
    devices = [
        frozenset(trait for trait in (FAST, PHYSNET + BLUE.upper()) if chance.random() < 0.5)
        for _ in range(chance.choice((2, 3, 4)))
    ]
    size = structs.replace(
        host.size,
        numa_nodes=0 if profile == "flat" else 2,
        devices=tuple(Device({DEVICE: 1}, traits) for traits in devices) if profile == "pci" else (),
    )
    return structs.replace(
        host,
        size=size,
        availability_zone=ZONES[number % 2],
        capabilities={FEATURES: "aes avx2" if chance.random() < 0.6 else "aes"},
        metrics={WATTS: chance.choice((500.0, 2_000.0))},
    )


def _stays(boot: Boot, plan: Plan, chance: random.Random) -> bool:
    is_named = any(invalid.id_of == boot.id for invalid in plan.invalid_requests)
    is_plain = not boot.host and boot.name.startswith("b")
    return is_named or not is_plain or chance.random() > SHARE_LEFT_OUT


def _demanding(boot: Boot, chance: random.Random) -> Boot:
    plain = boot.host or boot.group is not None or boot.vcpus > 4 or boot.at_s < BUSY_S[0]
    if plain or chance.random() > SHARE_DEMANDING:
        return boot
    return _with(boot, _demand(boot, chance))


def _with(boot: Boot, demand: Demand) -> Boot:
    amounts = demand.amounts
    return structs.replace(
        boot,
        demand=demand,
        needs_gold=False,
        vcpus=amounts["VCPU"],
        ram_mb=amounts["MEMORY_MB"],
        # Ports and volumes are one instance's.
        count=1 if any(part.kind for part in demand.parts) else boot.count,
    )


def _demand(boot: Boot, chance: random.Random) -> Demand:
    kind = chance.choice(("group", "two cells", "near", "devices", "port", "volume", "plain", "plain"))
    cpus = (("MEMORY_MB", boot.ram_mb), ("VCPU", boot.vcpus))
    disk = Part("", (("DISK_GB", 1),))
    device = _device("_DEV", chance)
    match kind:
        case "group":
            demand = Demand((disk, Part("_CPU", cpus)))
        case "two cells":
            halves = [Part(suffix, (("MEMORY_MB", 512), ("VCPU", 1))) for suffix in ("_A", "_B")]
            demand = Demand((disk, *halves), isolates=chance.random() < 0.8)
        case "near":
            near = (disk, Part("_CPU", cpus), device)
            demand = Demand(near, same_subtree=("_CPU", "_DEV"))
            if chance.random() < 0.5:
                in_cell = (*near, Part("_NODE", required=(CELL_OF_NUMA,)))
                demand = Demand(in_cell, same_subtree=("_NODE", "_CPU", "_DEV"))
        case "devices":
            outside = Part("", (("DISK_GB", 1), *cpus))
            demand = Demand((outside, device, _device("_MORE", chance)), isolates=True)
        case "port":
            port = Part("port-1", ((DEVICE, 1),), kind="port", physical_network=BLUE)
            demand = Demand((Part("", (("DISK_GB", 1), *cpus)), port))
        case "volume":
            volume = Part("volume-1", (("DISK_GB", 2),), kind="volume")
            demand = Demand((disk, Part("_CPU", cpus), volume))
        case _:
            required, forbidden = ((), (GOLD,)) if chance.random() < 0.5 else ((GOLD,), ())
            demand = Demand((Part("", (("DISK_GB", 1), *cpus), required, forbidden),))
    return _placed(demand, chance)


def _device(suffix: str, chance: random.Random) -> Part:
    match chance.choice(("any", "fast", "not fast", "rather fast")):
        case "fast":
            return Part(suffix, ((DEVICE, 1),), required=(FAST,))
        case "not fast":
            return Part(suffix, ((DEVICE, 1),), forbidden=(FAST,))
        case "rather fast":
            return Part(suffix, ((DEVICE, 1),), preferred=((FAST, 2.0),))
        case _:
            return Part(suffix, ((DEVICE, 1),))


def _placed(demand: Demand, chance: random.Random) -> Demand:
    """The demand with one condition for its host: a zone, an aggregate, a capability, a metric, or none of these."""
    match chance.choice(("zone", "zone", "aggregate", "not there", "capability", "watts", "", "")):
        case "zone":
            return structs.replace(demand, zone=chance.choice(ZONES))
        case "aggregate":
            return structs.replace(demand, member_of=ZONE_AGGREGATES)
        case "not there":
            return structs.replace(demand, forbidden_aggregates=(chance.choice(ZONE_AGGREGATES),))
        case "capability":
            return structs.replace(demand, capability=(FEATURES, "avx2"))
        case "watts":
            return structs.replace(demand, watts=1_000)
        case _:
            return demand


def _bursts(chance: random.Random) -> Iterator[Boot]:
    """Several boots of one kind at the same moment: schedulers choose the same devices, and are refused some."""
    for burst in range(3):
        at_s = chance.uniform(*BUSY_S)
        demand = Demand(
            (Part("", (("DISK_GB", 1), ("MEMORY_MB", 512), ("VCPU", 1))), Part("_DEV", ((DEVICE, 1),)))
        )
        for each in range(3):
            boot = Boot(
                id=UUID(int=chance.getrandbits(128)),
                name=f"d{burst}-{each}",
                at_s=at_s + each * 0.001,
                count=2,
                vcpus=1,
                ram_mb=512,
            )
            yield _with(boot, demand)


def deletes_soon(boots: tuple[Boot, ...], share: float, chance: random.Random) -> Iterator[Delete]:
    """Deletes of most demanding instances some seconds after their boots: devices are few, so others need them again."""
    for boot in boots:
        for index in range(boot.count if boot.demand is not None else 0):
            if chance.random() < share:
                yield Delete(boot.id, index, boot.at_s + chance.uniform(2, 8))


def _disabled_long(names: list[str], chance: random.Random) -> Iterator[DisabledHost]:
    """Two hosts that are disabled for so long that each scheduler knows it while boots still come."""
    for host in chance.sample(names, 2):
        at_s = chance.uniform(2, 6)
        yield DisabledHost(host, at_s, at_s + 28)


def _aggregates(names: list[str], chance: random.Random) -> Iterator[AggregateOrder]:
    """Two zones with most of the hosts, of which some move; and an aggregate that is kept for a project now and then."""
    in_zones = chance.sample(names, 8)
    half = len(in_zones) // 2
    for number, (aggregate, zone) in enumerate(zip(ZONE_AGGREGATES, ZONES, strict=True)):
        of_zone = tuple(in_zones[number * half : (number + 1) * half])
        yield AggregateOrder(1.0, aggregate, zone, {"availability_zone": zone}, add_hosts=of_zone)
    for host in chance.sample(in_zones, 3):
        old = in_zones.index(host) // half
        at_s = chance.uniform(8, 30)
        yield AggregateOrder(at_s, ZONE_AGGREGATES[old], ZONES[old], remove_hosts=(host,))
        yield AggregateOrder(at_s + 0.5, ZONE_AGGREGATES[1 - old], ZONES[1 - old], add_hosts=(host,))
    isolated = tuple(chance.sample(names, 2))
    closed_s = chance.uniform(3, 12)
    yield AggregateOrder(1.5, TENANTS, "kept", add_hosts=isolated)
    yield AggregateOrder(closed_s, TENANTS, "kept", dict(TENANT))
    yield AggregateOrder(closed_s + 22, TENANTS, "kept", dict.fromkeys(TENANT))


def _settings(chance: random.Random) -> dict[str, object]:
    """Settings of the schedulers: all filters that a demand needs, and some of the others; some weighers, with their
    multipliers.
    """
    needed = ("aggregate_tenants", "capabilities", "rack_power")
    others = [name for name in FILTERS if name not in needed and chance.random() < 0.6]
    weighers = [name for name in WEIGHERS if chance.random() < 0.6]
    return {
        "filters": (*needed, *others),
        "weighers": (*weighers, *(("rack_power=0.5",) if chance.random() < 0.5 else ())),
        "ram_weight_multiplier": chance.choice((1.0, -1.0)),
        "cpu_weight_multiplier": chance.choice((1.0, -1.0, 0.0)),
        "spread_weight_multiplier": chance.choice((0.0, 100.0)),
        "host_subset_size": chance.choice((1, 1, 3)),
        "failed_builds_max": FAILED_BUILDS_MAX,
    }
