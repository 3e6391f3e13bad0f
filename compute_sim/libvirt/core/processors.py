"""The host CPUs of a guest: of each of its own CPUs, and of the emulator's threads."""

from collections.abc import Iterable, Mapping

from msgspec import Struct, structs

from bus.guests import GuestShape, cells_of
from bus.message import ProviderId
from bus.messages.build import Flavor
from compute_sim.libvirt.core.cpu_ranges import cpus_in_words
from compute_sim.libvirt.core.image_asks import CannotGiveError
from compute_sim.libvirt.core.layout import OfferedCell
from compute_sim.libvirt.core.pinning import ChosenCpus, choose_cpus
from compute_sim.libvirt.core.plans import GuestPlan, by_provider
from compute_sim.libvirt.core.taken import Taken

Amounts = Mapping[str, int]


class PlannedCpus(Struct, frozen=True):
    """The host CPUs of each CPU of the guest, those of the emulator, and those that no other guest may have."""

    pins: tuple[tuple[int, ...], ...]
    dedicated: tuple[int, ...]
    emulator: tuple[int, ...]


def planned_cpus(
    flavor: Flavor, shape: GuestShape, share: Mapping[ProviderId, Amounts], taken: Taken
) -> PlannedCpus:
    if shape.cells:
        return _by_cell(shape, share, taken)
    return _anywhere(flavor, shape, share, taken)


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
    claimed = sum(amounts.get("VCPU", 0) for _, amounts in of_cells) + len(chosen)
    count = max(1, flavor.vcpus or claimed)
    if len(chosen) > count:
        raise CannotGiveError(f"flavor.vcpus is {count}, and {len(chosen)} PCPU are claimed")
    where = [cell for cell, amounts in of_cells if amounts.get("VCPU")] or taken.layout.cells
    shared = _shared_of(where, taken)
    if count > len(chosen) and not shared:
        raise CannotGiveError(
            f"{taken.layout.offer.name} has no shared CPU for {count - len(chosen)} CPUs of the guest"
        )
    pins = (*[shared] * (count - len(chosen)), *((cpu,) for cpu in chosen))
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
