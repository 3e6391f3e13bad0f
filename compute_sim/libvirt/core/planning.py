"""Which host CPUs, memory, pages and devices a guest gets: exactly what its claim says, or a refusal that names what is missing.

Placement's arithmetic has granted the claim. But it counts only amounts: whether a certain CPU is free, and whether a device is
still there, is seen here.
"""

from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, structs

from compute_sim.core.trees import ProviderTree
from compute_sim.libvirt.core.guest_hardware import CannotGiveError, arch_of, planned_devices, with_hardware
from compute_sim.libvirt.core.layout import HostLayout, OfferedCell
from compute_sim.libvirt.core.machine import cpus_in_words
from compute_sim.libvirt.core.plans import DomainCell, ForeignGuest, GuestOrder, GuestPlan, Taken, by_provider
from engine.flavors import Flavor
from engine.guests import (
    HUGE_PAGES,
    SMALL_PAGES,
    GuestShape,
    ShareDiffersError,
    ThreadPolicy,
    cells_of,
    memory_class,
    page_kib_of,
    read_guest,
)
from engine.inventories import ProviderId

# Which dedicated CPUs of a cell a guest's CPUs are pinned to, by its thread policy.
#
# Policies are about cores with several threads:
#
#     prefer   the threads of whole free cores first, so that the guest's CPUs are neighbours; then what is left
#     require  only threads of cores of which the guest has at least two
#     isolate  one thread of each core, and nobody else's on it: its other threads stay idle
#     (none)   as prefer
#
# A host without such cores gives any CPUs for prefer and isolate, and none for require.


# The fewest threads of a core that the policy `require` takes.
PAIR = 2


class ChosenCpus(Struct, frozen=True):
    """The CPUs, one for each that is asked for; and the idle ones beside them."""

    cpus: tuple[int, ...]
    idle: tuple[int, ...] = ()


def choose_cpus(
    count: int,
    dedicated: Sequence[int],
    free: frozenset[int],
    threads: Mapping[int, tuple[int, ...]],
    policy: ThreadPolicy,
) -> ChosenCpus | None:
    """`count` of the free CPUs among `dedicated`; None if the policy does not allow any such choice."""
    cores = _cores(dedicated, threads)
    if policy == "isolate":
        return _isolated(count, cores, free, threads)
    if policy == "require":
        return _paired(count, [[cpu for cpu in core if cpu in free] for core in cores])
    return _near(count, [[cpu for cpu in core if cpu in free] for core in cores])


def _cores(dedicated: Sequence[int], threads: Mapping[int, tuple[int, ...]]) -> list[list[int]]:
    """The dedicated CPUs by the core that they are threads of."""
    cores: dict[int, list[int]] = {}
    for cpu in sorted(dedicated):
        cores.setdefault(min(threads.get(cpu, (cpu,))), []).append(cpu)
    return list(cores.values())


def _isolated(
    count: int, cores: Sequence[Sequence[int]], free: frozenset[int], threads: Mapping[int, tuple[int, ...]]
) -> ChosenCpus | None:
    # A core that is dedicated in part has threads on which anything may run.
    whole = [core for core in cores if set(threads.get(core[0], core)) <= free]
    if len(whole) < count:
        return None
    # Cores with the fewest threads first: they leave the fewest idle.
    chosen = sorted(whole, key=len)[:count]
    return ChosenCpus(
        tuple(core[0] for core in chosen), tuple(sorted(cpu for core in chosen for cpu in core[1:]))
    )


def _near(count: int, cores: Sequence[Sequence[int]]) -> ChosenCpus | None:
    """Fill cores, the fullest ones first while they fit as a whole; then the smallest one that has the rest."""
    left, chosen = count, list[int]()
    for core in sorted((core for core in cores if core), key=len, reverse=True):
        if len(core) <= left:
            chosen += core
            left -= len(core)
    if left:
        rest = [core for core in sorted(cores, key=len) if core and not set(core) & set(chosen)]
        for core in rest:
            taken = core[:left]
            chosen += taken
            left -= len(taken)
    return None if left else ChosenCpus(tuple(chosen))


def _paired(count: int, cores: Sequence[Sequence[int]]) -> ChosenCpus | None:
    """Parts of at least two threads from cores, which are `count` together."""
    usable = sorted((core for core in cores if len(core) > 1), key=len, reverse=True)
    parts = [0] * len(usable)
    left = count
    for number, core in enumerate(usable):
        parts[number] = min(len(core), left) if left > 1 else 0
        left -= parts[number]
    if left == 1:
        # One thread alone: a core with three or more gives one of its own away, and both go onto another core.
        giver = next((number for number, part in enumerate(parts) if part > PAIR), None)
        taker = next((number for number, part in enumerate(parts) if not part), None)
        if giver is None or taker is None:
            return None
        parts[giver] -= 1
        parts[taker], left = PAIR, 0
    if left:
        return None
    return ChosenCpus(tuple(cpu for part, core in zip(parts, usable, strict=True) for cpu in core[:part]))


# The host CPUs of a guest: of each of its own CPUs, and of the emulator's threads.


Amounts = Mapping[str, int]


class PlannedCpus(Struct, frozen=True):
    """The host CPUs of each CPU of the guest, those of the emulator, and those that no other guest may have."""

    pins: tuple[tuple[int, ...], ...]
    dedicated: tuple[int, ...]
    emulator: tuple[int, ...]


def pinned_anew(plan: GuestPlan, taken: Taken) -> GuestPlan:
    """The plan of a guest whose shared CPUs are where the host offers shared CPUs now: other settings may have made some of them
    dedicated, or the host may have other cells. Its dedicated CPUs stay. `taken` has the other guests.
    """
    claimed = by_provider(plan.share)
    offered = taken.layout.cells
    floating = [cell for cell in offered if claimed.get(cell.provider, {}).get("VCPU")] or offered
    cells = {
        cpu: [host for host in offered if host.number == cell.host_cell] or floating
        for cell in plan.cells
        for cpu in cell.cpus
    }
    everywhere = _shared_of(floating, taken)
    pins = tuple(
        now if set(now) <= set(plan.dedicated) else _shared_of(cells.get(cpu, floating), taken) or now
        for cpu, now in enumerate(plan.pins)
    )
    emulator = plan.emulator
    if not set(emulator) <= set(plan.dedicated):
        own = {cpu for each in plan.pins for cpu in each}
        emulator = (
            tuple(sorted({cpu for each in pins for cpu in each})) if set(emulator) == own else everywhere
        )
    return structs.replace(plan, pins=pins, emulator=emulator or plan.emulator)


def _shared_of(cells: Iterable[OfferedCell], taken: Taken) -> tuple[int, ...]:
    """The shared CPUs of these cells, without those that a guest has had for itself since before they were shared."""
    shared = sorted({cpu for cell in cells for cpu in cell.shared})
    return tuple([cpu for cpu in shared if cpu not in taken.cpus]) or tuple(shared)


def _by_cell(shape: GuestShape, share: Mapping[ProviderId, Amounts], taken: Taken) -> PlannedCpus:
    hosts = cells_of(shape, share, {cell.provider: cell for cell in taken.layout.cells})
    pins: dict[int, tuple[int, ...]] = {}
    ours: set[int] = set()
    emulator: tuple[int, ...] = ()
    for number, (cell, host) in enumerate(zip(shape.cells, hosts, strict=True)):
        pins |= dict.fromkeys(cell.shared, _shared(host, taken) if cell.shared else ())
        chosen, own = _dedicated(
            host, len(cell.dedicated), shape, 0 if number else shape.emulator_cpus, taken
        )
        pins |= {cpu: (host_cpu,) for cpu, host_cpu in zip(cell.dedicated, chosen.cpus, strict=True)}
        ours.update(chosen.cpus, chosen.idle, own)
        emulator += own
    ordered = tuple(pins[cpu] for cpu in sorted(pins))
    return PlannedCpus(ordered, tuple(sorted(ours)), emulator or _emulator(shape, hosts, ordered))


def _anywhere(
    flavor: Flavor, shape: GuestShape, share: Mapping[ProviderId, Amounts], taken: Taken
) -> PlannedCpus:
    """A guest without a topology: its shared CPUs may be in any of the cells that it claims some of."""
    of_cells = [(cell, share.get(cell.provider, {})) for cell in taken.layout.cells]
    chosen = [
        cpu
        for cell, amounts in of_cells
        if (count := amounts.get("PCPU", 0))
        for cpu in _dedicated(cell, count, shape, 0, taken)[0].cpus
    ]
    # Also of a cell that the host has no more, since it got another shape.
    floating = sum(amounts.get("VCPU", 0) for amounts in share.values())
    if not floating and not chosen:
        raise CannotGiveError(
            f"flavor.vcpus is {flavor.vcpus}, and neither VCPU nor PCPU are claimed: a virtual machine needs some"
        )
    where = [cell for cell, amounts in of_cells if amounts.get("VCPU")] or taken.layout.cells
    shared = _shared_of(where, taken)
    if floating and not shared:
        raise CannotGiveError(f"{taken.layout.offer.name} has no shared CPU for {floating} CPUs of the guest")
    pins = (*[shared] * floating, *((cpu,) for cpu in chosen))
    return PlannedCpus(pins, tuple(sorted(chosen)), tuple(sorted({cpu for each in pins for cpu in each})))


def _shared(cell: OfferedCell, taken: Taken) -> tuple[int, ...]:
    if not cell.shared:
        raise CannotGiveError(f"{_cell_name(cell)} has no shared CPU any more")
    return _shared_of((cell,), taken)


def _dedicated(
    cell: OfferedCell, count: int, shape: GuestShape, for_emulator: int, taken: Taken
) -> tuple[ChosenCpus, tuple[int, ...]]:
    """The dedicated CPUs of the guest's CPUs in this cell, and those of its emulator."""
    if not count:
        return ChosenCpus(()), ()
    free = frozenset(cell.dedicated).difference(taken.cpus)
    threads = {cpu: each for one in taken.layout.machine.cells for cpu, each in one.threads.items()}
    chosen = choose_cpus(count, cell.dedicated, free, threads, shape.thread_policy)
    if chosen is not None:
        rest = sorted(free.difference(chosen.cpus, chosen.idle))
        if len(rest) >= for_emulator:
            return chosen, tuple(rest[:for_emulator])
    raise CannotGiveError(_too_few(cell, count + for_emulator, free, shape, taken))


def _too_few(cell: OfferedCell, count: int, free: frozenset[int], shape: GuestShape, taken: Taken) -> str:
    used = sorted((cpu, taken.cpus[cpu]) for cpu in cell.dedicated if cpu in taken.cpus)
    policy = (
        f" with hw:cpu_thread_policy={shape.thread_policy}"
        if shape.thread_policy in ("isolate", "require")
        else ""
    )
    others = ", ".join(f"{cpu} is {domain}'s" for cpu, domain in used)
    return (
        f"{_cell_name(cell)} cannot give {count} dedicated CPUs{policy}: {cpus_in_words(free) or 'none'} of "
        f"{cpus_in_words(cell.dedicated) or 'none'} are free{f'; {others}' if others else ''}"
    )


def _emulator(
    shape: GuestShape, hosts: tuple[OfferedCell, ...], pins: tuple[tuple[int, ...], ...]
) -> tuple[int, ...]:
    """Where the emulator's threads run if they have no CPU of their own: with `share` on the shared CPUs, else on the guest's."""
    shared = {cpu for cell in hosts for cpu in cell.shared}
    if shape.emulator_threads == "share" and shared:
        return tuple(sorted(shared))
    return tuple(sorted({cpu for each in pins for cpu in each}))


def _cell_name(cell: OfferedCell) -> str:
    return "the host" if cell.number is None else f"NUMA cell {cell.number}"


# The memory of a guest: its cells, the host's cells where these are, and its pages.


class PlannedMemory(Struct, frozen=True):
    """`host_cells` are those of a guest that has no cells of its own."""

    mb: int
    cells: tuple[DomainCell, ...] = ()
    host_cells: tuple[int, ...] = ()


def planned_memory(
    flavor: Flavor, shape: GuestShape, share: Mapping[ProviderId, Amounts], layout: HostLayout
) -> PlannedMemory:
    if shape.cells:
        hosts = cells_of(shape, share, {cell.provider: cell for cell in layout.cells})
        cells = tuple(
            DomainCell(tuple(sorted((*cell.shared, *cell.dedicated))), cell.memory_mb, host.number)
            for cell, host in zip(shape.cells, hosts, strict=True)
        )
        return PlannedMemory(_more_than_none(sum(cell.memory_mb for cell in cells), flavor), cells)
    claimed = memory_class(page_kib_of(share))
    # A guest has pages of one size: what it claims of others it would not have.
    for resource in sorted({each for amounts in share.values() for each in amounts}):
        if resource.startswith((SMALL_PAGES, HUGE_PAGES)) and resource != claimed:
            raise CannotGiveError(
                f"{resource} and {claimed} are claimed, and a guest's memory is of one of them: set resources:{resource}=0"
            )
    mb = _more_than_none(sum(amounts.get(claimed, 0) for amounts in share.values()), flavor)
    host_cells = [cell.number for cell in layout.cells if share.get(cell.provider, {}).get(claimed)]
    return PlannedMemory(mb, host_cells=tuple([each for each in host_cells if each is not None]))


def check_pages(share: Mapping[ProviderId, Amounts], taken: Taken, page_kib: int) -> None:
    """Are the pages there, and free?"""
    if not page_kib:
        return
    for cell in taken.layout.cells:
        asked = share.get(cell.provider, {}).get(memory_class(page_kib), 0)
        if not asked:
            continue
        total = sum(pages.mb for pages in cell.huge_pages if pages.kib == page_kib)
        free = total - taken.pages_mb(cell, page_kib)
        if free < asked:
            raise CannotGiveError(
                f"{_cell_name(cell)} has {max(0, free)} MB of {total} MB in pages of {page_kib} KiB free, and {asked} MB are claimed"
            )


def _more_than_none(mb: int, flavor: Flavor) -> int:
    if not mb:
        raise CannotGiveError(
            f"flavor.ram_mb is {flavor.ram_mb}, and no memory is claimed: a virtual machine needs some"
        )
    return mb


# Classes that only the host's own providers have, and of which a guest gets a certain part. Pools outside of the tree share others.
# Shared CPUs and small pages are not among them: if their provider is gone, since the host got another shape, the guest floats.
_OWN_CLASSES = (
    "PCPU",
    "CUSTOM_MEMORY_MB_PAGES_",
    "CUSTOM_PCI_",
    "SRIOV_NET_VF",
    "VGPU",
)


class NoPlan(Struct, frozen=True):
    """The host cannot build this guest as its claim says."""

    reason: str


def plan_guest(
    order: GuestOrder,
    layout: HostLayout,
    others: Sequence[GuestPlan | ForeignGuest] = (),
    known: ProviderTree | None = None,
) -> GuestPlan | NoPlan:
    """The plan of a guest beside all `others` on the machine. `known` is the tree that was last reported; it has the names of
    providers that have vanished since.
    """
    try:
        return _plan(order, layout, Taken(layout, others), known)
    except (CannotGiveError, ShareDiffersError) as refusal:
        return NoPlan(str(refusal))


def _plan(order: GuestOrder, layout: HostLayout, taken: Taken, known: ProviderTree | None) -> GuestPlan:
    shape = read_guest(order.flavor, order.image_properties)
    if not isinstance(shape, GuestShape):
        raise CannotGiveError("; ".join(f"{each.field} is {each.value!r}: {each.reason}" for each in shape))
    share = by_provider(order.share)
    _check_providers(share, layout, known)
    of_cells = shape.cells and _by_cell(shape, share, taken)
    cpus = of_cells or _anywhere(order.flavor, shape, share, taken)
    memory = planned_memory(order.flavor, shape, share, layout)
    page_kib = page_kib_of(share)
    check_pages(share, taken, page_kib)
    functions, mediated = planned_devices(order, share, taken)
    plan = GuestPlan(
        instance=order.instance,
        attempt=order.attempt,
        cell=order.cell,
        share=order.share,
        name=order.name,
        domain=order.domain,
        domain_type=layout.offer.domain_type,
        arch=arch_of(order, layout),
        cpu_mode=layout.offer.guest_cpu_mode,
        memory_mb=memory.mb,
        page_kib=page_kib,
        pins=cpus.pins,
        dedicated=cpus.dedicated,
        emulator=cpus.emulator,
        memory_cells=memory.host_cells,
        cells=memory.cells,
        functions=functions,
        mediated=mediated,
        kernel=order.kernel,
        ramdisk=order.ramdisk,
        cmdline=order.cmdline,
        console_log=order.console_log,
    )
    return with_hardware(plan, order, layout)


def _check_providers(
    share: Mapping[ProviderId, Mapping[str, int]], layout: HostLayout, known: ProviderTree | None
) -> None:
    """Is every provider there that only this host can have?"""
    there = {
        layout.root,
        *(cell.provider for cell in layout.cells),
        *(devices.provider for devices in layout.devices),
    }
    for provider, amounts in share.items():
        if provider in there:
            continue
        for resource in sorted(amounts):
            if resource.startswith(_OWN_CLASSES):
                before = known.providers.get(provider) if known else None
                name = before.name if before else f"provider {provider}"
                raise CannotGiveError(
                    f"{name} is not on this host any more; {amounts[resource]} {resource} of it are claimed"
                )
