"""All ways to place one to four guests on a small host of two cells: whatever placement's arithmetic grants is given, and nothing is
given twice. A refusal must be impossible to avoid, by an oracle that tries all sets of CPUs.

The host: each cell has a shared CPU and four dedicated ones, cell 0 on two cores of two threads, cell 1 on one core of two and two
of one; two pages of 2 MiB in each cell; a network card with two virtual functions in cell 1.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations, permutations
from uuid import UUID

import pytest
from msgspec import Struct

from compute_sim.core.trees import ProviderTree
from compute_sim.libvirt.core.layout import DeviceOffer, HostLayout, HostOffer, layout_of
from compute_sim.libvirt.core.machine import (
    GuestKind,
    HugePages,
    Machine,
    MachineCell,
    NodeDevices,
    PciFunction,
)
from compute_sim.libvirt.core.planning import NoPlan, plan_guest
from compute_sim.libvirt.core.plans import ForeignGuest, ForeignMemory, GuestPlan
from compute_sim.libvirt.core.trees import tree_of
from engine.flavors import Flavor
from tests.unit.compute.libvirt_machines import ROOT, an_order

CORES = ((0,), (1, 2), (3, 4), (5,), (6, 7), (8,), (9,))
CELL_CPUS = ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
SHARED = ((0,), (5,))
DEDICATED = (frozenset({1, 2, 3, 4}), frozenset({6, 7, 8, 9}))
PAGES_MB = 4
CARD, PORTS = "0000:81:00.0", ("0000:81:10.0", "0000:81:10.1")
PAGES = "CUSTOM_MEMORY_MB_PAGES_2048"

Claim = Mapping[str, Mapping[str, int]]


class Wanted(Struct, frozen=True):
    """A kind of guests, and every claim that a scheduler may make for one."""

    flavor: Flavor
    claims: tuple[Claim, ...]
    policy: str = ""
    emulator: int = 0


def wanted(claims: Sequence[Claim], ram_mb: int = 1, vcpus: int = 1, **specs: str) -> Wanted:
    extra = {f"hw:{name.replace('__', '.')}": value for name, value in specs.items()}
    return Wanted(
        Flavor(vcpus=vcpus, ram_mb=ram_mb, extra_specs=extra),
        tuple(claims),
        specs.get("cpu_thread_policy", ""),
        int(specs.get("emulator_threads_policy") == "isolate"),
    )


def in_each(amounts: Mapping[str, int]) -> list[Claim]:
    return [{f"NUMA{cell}": amounts} for cell in (0, 1)]


def in_both(first: Mapping[str, int], second: Mapping[str, int]) -> list[Claim]:
    return [{f"NUMA{one}": first, f"NUMA{other}": second} for one, other in permutations((0, 1))]


SHARED_ONE = wanted(in_each({"VCPU": 1, "MEMORY_MB": 1}))
ONE = wanted(in_each({"PCPU": 1, "MEMORY_MB": 1}), cpu_policy="dedicated")
TWO = wanted(
    in_each({"PCPU": 2, "MEMORY_MB": 1}), vcpus=2, cpu_policy="dedicated", cpu_thread_policy="prefer"
)
PAIR = wanted(
    in_each({"PCPU": 2, "MEMORY_MB": 1}), vcpus=2, cpu_policy="dedicated", cpu_thread_policy="require"
)
ALONE = wanted(in_each({"PCPU": 1, "MEMORY_MB": 1}), cpu_policy="dedicated", cpu_thread_policy="isolate")
WITH_EMULATOR = wanted(
    in_each({"PCPU": 2, "MEMORY_MB": 1}),
    cpu_policy="dedicated",
    cpu_thread_policy="isolate",
    emulator_threads_policy="isolate",
)
MIXED = wanted(
    in_both({"VCPU": 1, "PCPU": 1, PAGES: 2}, {"PCPU": 1, PAGES: 2}),
    ram_mb=4,
    vcpus=3,
    cpu_policy="mixed",
    cpu_dedicated_mask="1-2",
    numa_nodes="2",
    numa_cpus__0="0-1",
    numa_mem__0="2",
    numa_cpus__1="2",
    numa_mem__1="2",
    mem_page_size="2MB",
)
PAGED = wanted(in_each({"VCPU": 1, PAGES: 4}), ram_mb=4, mem_page_size="2048")
PORT = wanted([{"NUMA1": {"VCPU": 1, "MEMORY_MB": 1}, CARD: {"SRIOV_NET_VF": 1}}])
MENU = (SHARED_ONE, ONE, TWO, PAIR, ALONE, WITH_EMULATOR, MIXED, PAGED, PORT)

STRANGER = ForeignGuest(
    name="stranger",
    uuid=UUID(int=0xF0),
    pins=((2,), (9,)),
    memory=(ForeignMemory(2, 2048, (1,)),),
    functions=(PORTS[0],),
)


def the_layout() -> HostLayout:
    threads = {cpu: core for core in CORES for cpu in core}
    cells = tuple(
        MachineCell(number, 64, cpus, {cpu: threads[cpu] for cpu in cpus}, (HugePages(2048, 2),))
        for number, cpus in enumerate(CELL_CPUS)
    )
    card = PciFunction(
        address=CARD, vendor="8086", product="1572", numa_node=1, is_network=True, virtual=PORTS
    )
    ports = tuple(
        PciFunction(address=each, vendor="8086", product="154c", numa_node=1, is_network=True, physical=CARD)
        for each in PORTS
    )
    return layout_of(
        ROOT,
        Machine(arch="x86_64", cells=cells, guests=(GuestKind("x86_64", "hvm", ("kvm",)),)),
        HostOffer(
            name="h1",
            cpus_dedicated=DEDICATED[0] | DEDICATED[1],
            memory_reserved_mb=0,
            devices=(DeviceOffer("8086", "154c"),),
        ),
        devices=NodeDevices((card, *ports)),
    )


LAYOUT = the_layout()


def placement_grants(tree: ProviderTree, claims: Sequence[Claim]) -> bool:
    """Placement's arithmetic, as its API describes it."""
    used: Counter[tuple[str, str]] = Counter()
    for claim in claims:
        for provider, amounts in claim.items():
            used.update({(provider, resource): amount for resource, amount in amounts.items()})
    by_name = {each.name.removeprefix("h1_"): each for each in tree.providers.values()}
    for (provider, resource), amount in used.items():
        inventory = by_name[provider].inventories[resource]
        if amount > (inventory.total - inventory.reserved) * inventory.allocation_ratio:
            return False
    return True


def can_be_pinned(kind: Wanted, claim: Claim, free: frozenset[int]) -> bool:
    """Is there any choice of free CPUs in the claimed cells that the thread policy allows? It tries all."""
    counts = {
        int(name[-1]): amounts.get("PCPU", 0) for name, amounts in claim.items() if name.startswith("NUMA")
    }
    # The emulator's CPU is in the cell of the first guest cell; all guests here that have one have a single cell.
    for cell, count in counts.items():
        own = count - kind.emulator if count else 0
        there = sorted(free & DEDICATED[cell])
        ways = (
            set(rest)
            for chosen in combinations(there, own)
            if allowed(chosen, kind.policy, free)
            for rest in [set(there) - blocked(chosen, kind.policy)]
            if len(rest) >= (kind.emulator if count else 0)
        )
        if next(ways, None) is None:
            return False
    return True


def allowed(chosen: Sequence[int], policy: str, free: frozenset[int]) -> bool:
    for core in CORES:
        ours = set(core) & set(chosen)
        if policy == "require" and len(ours) == 1:
            return False
        if policy == "isolate" and ours and (len(ours) > 1 or not set(core) <= free):
            return False
    return True


def blocked(chosen: Sequence[int], policy: str) -> set[int]:
    """The CPUs that nobody else may have then."""
    if policy != "isolate":
        return set(chosen)
    return {cpu for core in CORES if set(core) & set(chosen) for cpu in core}


def check(
    kind: Wanted, claim: Claim, plan: GuestPlan, before: Sequence[GuestPlan], foreign: Sequence[ForeignGuest]
) -> None:
    guests = [*before, plan]
    cpus = Counter(cpu for guest in guests for cpu in guest.dedicated)
    assert all(count == 1 for count in cpus.values()), "a CPU is given twice"
    assert not cpus.keys() & {cpu for guest in foreign for pins in guest.pins for cpu in pins}
    cells = {int(name[-1]): amounts for name, amounts in claim.items() if name.startswith("NUMA")}
    for cell, amounts in cells.items():
        single = {pins[0] for pins in plan.pins if len(pins) == 1 and pins[0] in DEDICATED[cell]}
        if kind.emulator:
            single |= set(plan.emulator)
        assert len(single) == amounts.get("PCPU", 0)
        assert single <= set(plan.dedicated)
    own = [pins[0] for pins in plan.pins if pins not in SHARED]
    assert set(plan.dedicated) == blocked(own, kind.policy) | (set(plan.emulator) if kind.emulator else set())
    assert Counter(pins for pins in plan.pins if pins in SHARED) == Counter(
        {SHARED[cell]: amounts["VCPU"] for cell, amounts in cells.items() if "VCPU" in amounts}
    )
    assert allowed(own, kind.policy, frozenset(range(10)))
    where = {cell.host_cell for cell in plan.cells} or set(plan.memory_cells)
    assert where == {cell for cell, amounts in cells.items() if amounts.keys() & {"MEMORY_MB", PAGES}}
    for cell in (0, 1):
        taken = sum(each.mb for guest in foreign for each in guest.memory if cell in each.cells)
        taken += sum(
            one.memory_mb
            for guest in guests
            if guest.page_kib
            for one in guest.cells
            if one.host_cell == cell
        )
        assert taken <= PAGES_MB, "a page beyond what is there"
    functions = Counter(
        [each.address for guest in guests for each in guest.functions]
        + [address for guest in foreign for address in guest.functions]
    )
    assert all(count == 1 for count in functions.values()), "a function is given twice"
    assert CARD not in functions, "only virtual functions are offered"
    assert len(plan.functions) == claim.get(CARD, {}).get("SRIOV_NET_VF", 0)


def worlds(
    menu: Sequence[Wanted], most: int, foreign: Sequence[ForeignGuest]
) -> Iterator[GuestPlan | NoPlan]:
    """Every way to place up to `most` guests of the menu one after the other. Each plan and each refusal is checked."""
    tree = tree_of(LAYOUT, foreign)
    strangers = frozenset(cpu for guest in foreign for pins in guest.pins for cpu in pins)

    def further(
        kinds: tuple[Wanted, ...], claims: tuple[Claim, ...], plans: tuple[GuestPlan, ...]
    ) -> Iterator[GuestPlan | NoPlan]:
        for kind in menu:
            for claim in kind.claims:
                if not placement_grants(tree, (*claims, claim)):
                    continue
                order = an_order(LAYOUT, claim, kind.flavor, len(plans) + 1)
                plan = plan_guest(order, LAYOUT, (*plans, *foreign))
                free = frozenset(range(10)).difference(strangers, *(each.dedicated for each in plans))
                assert can_be_pinned(kind, claim, free) == isinstance(plan, GuestPlan), (kind, claim, plan)
                yield plan
                if isinstance(plan, NoPlan):
                    strict = [each for each in (*kinds, kind) if each.policy in ("require", "isolate")]
                    assert strict, "only thread policies make a granted claim impossible"
                    continue
                check(kind, claim, plan, plans, foreign)
                if len(plans) + 1 < most:
                    yield from further((*kinds, kind), (*claims, claim), (*plans, plan))

    return further((), (), ())


def counted(found: Iterator[GuestPlan | NoPlan]) -> tuple[int, int]:
    """How many guests were placed, and how many refused."""
    plans = [isinstance(plan, GuestPlan) for plan in found]
    return plans.count(True), plans.count(False)


@pytest.mark.parametrize("foreign", [(), (STRANGER,)], ids=["alone", "beside a foreign guest"])
def test_every_way_to_place_three_guests(foreign: tuple[ForeignGuest, ...]) -> None:
    placed, refused = counted(worlds(MENU, 3, foreign))

    assert placed > 2_000, placed
    assert refused > 300, refused


@pytest.mark.parametrize("foreign", [(), (STRANGER,)], ids=["alone", "beside a foreign guest"])
def test_every_way_to_place_four_guests(foreign: tuple[ForeignGuest, ...]) -> None:
    placed, refused = counted(worlds(MENU, 4, foreign))

    assert placed > 20_000, placed
    assert refused > 4_000, refused
