"""Which dedicated CPUs of a cell a guest's CPUs are pinned to, by its thread policy.

Policies are about cores with several threads:

    prefer   the threads of whole free cores first, so that the guest's CPUs are neighbours; then what is left
    require  only threads of cores of which the guest has at least two
    isolate  one thread of each core, and nobody else's on it: its other threads stay idle
    (none)   as prefer

A host without such cores gives any CPUs for prefer and isolate, and none for require.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from bus.guests.shape import ThreadPolicy

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
