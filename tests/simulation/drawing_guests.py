"""Draws the guests of one seed in forty that have a shape: dedicated processors, pages, cells, and devices near these. Most hosts have two
NUMA cells, a card with a virtual function to give, and one that a guest gets whole: guests contend for both.
"""

import random
from collections.abc import Iterator
from uuid import UUID

from msgspec import structs

from laboratory.computes.hosts import (
    DIRECT_PORTS,
    VIRTUAL_FUNCTIONS,
    SimulatedHost,
    gpu,
    pci_function,
    virtual_functions,
)
from tests.simulation.demands import Demand, Part
from tests.simulation.drawing_demands import BUSY_S, FEATURES, WATTS
from tests.simulation.plan import Boot, Delete, Plan

SHARE_SHAPED = 0.7
NETWORK = "blue"
CARD = "CUSTOM_PCI_8086_10FB"
PAGES = "CUSTOM_MEMORY_MB_PAGES_2048"
DEDICATED = ("hw:cpu_policy", "dedicated")
HUGE = ("hw:mem_page_size", "2048")
NEARNESS = ("required", "legacy", "preferred")
DISK = Part("", (("DISK_GB", 1),))


def with_guests(plan: Plan, chance: random.Random) -> Plan:
    hosts = {
        cell: tuple(_host(host, chance, has_cells=number % 4 != 3) for number, host in enumerate(of_cell))
        for cell, of_cell in plan.hosts.items()
    }
    named = {invalid.id_of for invalid in plan.invalid_requests}
    boots = tuple(boot if boot.id in named else _shaped(boot, chance) for boot in plan.boots)
    bursts = tuple(_bursts(chance))
    counts = {boot.id: boot.count for boot in boots}
    deletes = [each for each in plan.deletes if each.index < counts.get(each.request, 0)]
    return structs.replace(
        plan,
        hosts=hosts,
        boots=tuple(sorted((*boots, *bursts), key=lambda boot: boot.at_s)),
        deletes=(*deletes, *_deletes((*boots, *bursts), chance)),
    )


def _host(host: SimulatedHost, chance: random.Random, *, has_cells: bool) -> SimulatedHost:
    functions, card = virtual_functions(1, NETWORK), pci_function("8086", "10fb")
    gpus = gpu("nvidia_11", 2), gpu("nvidia_12", 1)
    size = structs.replace(
        host.size,
        numa_nodes=2 if has_cells else 0,
        pcpus=chance.choice((4, 6, 7)),
        pages=((2048, chance.choice((32, 48))),),
        devices=(functions, card, *gpus)[: chance.choice((3, 4))],
    )
    return structs.replace(host, size=size, capabilities={FEATURES: "aes"}, metrics={WATTS: 1_000.0})


def _shaped(boot: Boot, chance: random.Random) -> Boot:
    plain = boot.host or boot.group is not None or boot.at_s < BUSY_S[0] or not boot.name.startswith("b")
    if plain or boot.all_or_nothing or chance.random() > SHARE_SHAPED:
        return boot
    return _with(boot, _demand(chance))


def _with(boot: Boot, demand: Demand) -> Boot:
    return structs.replace(
        boot,
        demand=demand,
        needs_gold=False,
        vcpus=demand.sizes[0],
        ram_mb=demand.sizes[1],
        # Ports are one instance's.
        count=1 if any(part.kind == "port" for part in demand.parts) else min(boot.count, 2),
    )


def _demand(chance: random.Random) -> Demand:
    near = chance.choice(NEARNESS)
    affinity = ("hw:pci_numa_affinity_policy", near)
    kind = chance.choice(("pinned", "pages", "mixed", "two cells", "function", "function", "card", "gpu"))
    pinned = _cell(0, PCPU=2, MEMORY_MB=64)
    parts: tuple[Part, ...]
    guest: tuple[tuple[str, str], ...]
    match kind:
        case "pinned":
            parts, guest, sizes = (pinned,), (DEDICATED,), (2, 64)
        case "pages":
            parts, guest, sizes = (_cell(0, VCPU=1, **{PAGES: 8}),), (("hw:numa_nodes", "1"), HUGE), (1, 8)
        case "mixed":
            mixed = (("hw:cpu_policy", "mixed"), ("hw:cpu_dedicated_mask", "1"))
            guest = (*mixed, ("hw:emulator_threads_policy", "isolate"))
            parts, sizes = (_cell(0, PCPU=2, VCPU=1, MEMORY_MB=64),), (2, 64)
        case "two cells":
            parts = tuple([_cell(number, PCPU=1, **{PAGES: 4}) for number in range(2)])
            guest, sizes = (DEDICATED, HUGE, ("hw:numa_nodes", "2")), (2, 8)
        case "function":
            parts, guest, sizes = (pinned, _function(near)), (DEDICATED, affinity), (2, 64)
        case "card":
            part = Part("_PF", ((CARD, 1),), nearness=near)
            parts, guest, sizes = (pinned, part), (DEDICATED, affinity), (2, 64)
        case _:
            part = Part("_GPU", (("VGPU", 1),), (f"CUSTOM_NVIDIA_1{chance.choice('12')}",), nearness=near)
            parts, guest, sizes = (pinned, part), (DEDICATED, affinity), (2, 64)
    return Demand((DISK, *parts), guest=guest, sizes=sizes)


def _cell(number: int, **amounts: int) -> Part:
    return Part(f"guest cell {number}", tuple(sorted(amounts.items())), kind="cell")


def _function(near: str) -> Part:
    return Part(
        "port-1",
        ((VIRTUAL_FUNCTIONS, 1),),
        (DIRECT_PORTS,),
        kind="port",
        physical_network=NETWORK,
        nearness=near,
    )


def _bursts(chance: random.Random) -> Iterator[Boot]:
    """Several boots of one kind at the same moment: schedulers choose the same functions and processors, and are refused some."""
    card = Demand(
        (DISK, _cell(0, PCPU=1, MEMORY_MB=8), Part("_PF", ((CARD, 1),), nearness="legacy")),
        guest=(DEDICATED,),
        sizes=(1, 8),
    )
    function = Demand(
        (DISK, _cell(0, PCPU=1, MEMORY_MB=8), _function("required")),
        guest=(DEDICATED, ("hw:pci_numa_affinity_policy", "required")),
        sizes=(1, 8),
    )
    for burst in range(6):
        at_s = chance.uniform(*BUSY_S)
        for each in range(5):
            boot = Boot(
                id=UUID(int=chance.getrandbits(128)),
                name=f"g{burst}-{each}",
                at_s=at_s + each * 0.001,
                count=1,
                vcpus=1,
                ram_mb=8,
            )
            yield _with(boot, card if each == burst % 2 else function)


def _deletes(boots: tuple[Boot, ...], chance: random.Random) -> Iterator[Delete]:
    """Deletes of most instances some seconds after their boots: devices are few, so others need them again."""
    for boot in boots:
        for index in range(boot.count if boot.demand is not None else 0):
            if chance.random() < 0.7:
                yield Delete(boot.id, index, boot.at_s + chance.uniform(2, 8))
