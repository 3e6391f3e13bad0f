"""The shape of a guest: its cells with their processors and memory, and the policies that say how a host gives them."""

import re
from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar, cast, get_args

from msgspec import Struct

from engine.flavors import Flavor, RequestProblem
from engine.inventories import ProviderId

CpuPolicy = Literal["shared", "dedicated", "mixed"]
ThreadPolicy = Literal["", "prefer", "isolate", "require"]
EmulatorThreads = Literal["", "share", "isolate"]
# Empty: nothing is asked. `sized`: pages of `page_kib`.
PageSize = Literal["", "small", "large", "any", "sized"]
PciAffinity = Literal["legacy", "required", "preferred", "socket"]

CPU_POLICIES: tuple[str, ...] = get_args(CpuPolicy)
THREAD_POLICIES: tuple[str, ...] = get_args(ThreadPolicy)[1:]
EMULATOR_THREADS: tuple[str, ...] = get_args(EmulatorThreads)[1:]
PCI_AFFINITIES: tuple[str, ...] = get_args(PciAffinity)

SMALL_PAGES, HUGE_PAGES = "MEMORY_MB", "CUSTOM_MEMORY_MB_PAGES_"


class GuestCell(Struct, frozen=True):
    """A NUMA cell of the guest: the numbers of its shared and of its dedicated processors, and its memory."""

    shared: tuple[int, ...] = ()
    dedicated: tuple[int, ...] = ()
    memory_mb: int = 0


class GuestShape(Struct, frozen=True):
    """The demands of a guest on its host. Without `cells` it has no topology: its sizes may come from anywhere on the host. Each guest
    cell has a host cell of its own, which gives all that the cell has; a host without cells is a single one.
    """

    cells: tuple[GuestCell, ...] = ()
    cpu_policy: CpuPolicy = "shared"
    thread_policy: ThreadPolicy = ""
    emulator_threads: EmulatorThreads = ""
    page_size: PageSize = ""
    page_kib: int = 0
    pci_affinity: PciAffinity = "legacy"

    @property
    def emulator_cpus(self) -> int:
        """Dedicated processors for the emulator's threads: the host cell of the first guest cell has them, too."""
        return 1 if self.cells and self.emulator_threads == "isolate" else 0


def memory_class(page_kib: int) -> str:
    """The resource class of memory in pages of this size; 0 is the host's small pages."""
    return f"{HUGE_PAGES}{page_kib}" if page_kib else SMALL_PAGES


# Sets of a guest's processors, as extra specs write them: `0-3,^2,6`.


_PART = re.compile(r"\s*(\^?)\s*([0-9]{1,6})\s*(?:-\s*([0-9]{1,6})\s*)?", re.ASCII)


def read_cpu_numbers(text: str, count: int) -> frozenset[int]:
    """The numbers in this text, of a guest with `count` processors. If all parts exclude, they exclude from all.
    A ValueError says what is wrong.
    """
    taken: set[int] = set()
    excluded: set[int] = set()
    parts = [part for part in text.split(",") if part.strip()]
    for part in parts:
        read = _PART.fullmatch(part)
        if read is None:
            raise ValueError(
                f"{part.strip()!r} is neither a number, as in 3, nor a range, as in 0-3, nor an exclusion, as in ^2"
            )
        caret, low, high = read.groups()
        first, last = int(low), int(high or low)
        if first > last:
            raise ValueError(f"the range {part.strip()!r} ends before it begins")
        if last >= count:
            raise ValueError(
                f"there is no processor {last}: flavor.vcpus is {count}, so the last one is {count - 1}"
            )
        (excluded if caret else taken).update(range(first, last + 1))
    if excluded and not taken:
        taken.update(range(count))
    return frozenset(taken - excluded)


# The keys of a flavor and an image that are about the guest's shape, and the problems that are found in them.


SPEC, IMAGE = "flavor.extra_specs.", "image_properties."
NODES, CPUS, MEMORY = "numa_nodes", "numa_cpus", "numa_mem"
POLICY, THREADS, PAGES, AFFINITY = (
    "cpu_policy",
    "cpu_thread_policy",
    "mem_page_size",
    "pci_numa_affinity_policy",
)
MASK, EMULATOR = "cpu_dedicated_mask", "emulator_threads_policy"

_OF_BOTH = (NODES, POLICY, THREADS, PAGES, AFFINITY)
SPEC_KEYS = frozenset({f"hw:{name}" for name in (*_OF_BOTH, MASK, EMULATOR)})
IMAGE_KEYS = frozenset({f"hw_{name}" for name in _OF_BOTH})
_NUMBERED = tuple(f"hw{mark}{name}." for mark in ":_" for name in (CPUS, MEMORY))
# What a host alone reads: the hardware that it gives to the guest, and how it starts it.
HARDWARE_IMAGE_KEYS = frozenset(
    {
        "hw_machine_type",
        "hw_disk_bus",
        "hw_cdrom_bus",
        "hw_vif_model",
        "hw_video_model",
        "hw_firmware_type",
        "hw_cpu_sockets",
        "hw_cpu_cores",
        "hw_cpu_threads",
        "os_command_line",
    }
)
# Of a flavor also limits and further devices, as Nova's computes know them. All are told to the host; a driver may follow them.
HOST_SCOPES = ("quota:", "hw_rng:", "hw_video:", "vmware:")
HOST_SPEC_KEYS = frozenset(
    {
        *(f"hw:cpu_{part}" for part in ("sockets", "cores", "threads")),
        *(f"hw:cpu_max_{part}" for part in ("sockets", "cores", "threads")),
        *("hw:boot_menu", "hw:watchdog_action", "hw:serial_port_count", "hw:vif_multiqueue_enabled"),
        *("hw:hide_hypervisor_id", "hide_hypervisor_id", "hw:pmu", "hw:time_hpet", "hw:input_bus"),
        *("hw:usb_model", "hw:redirected_usb_ports", "hw:locked_memory", "hw:viommu_model"),
    }
)


def is_host_key(key: str) -> bool:
    """Is this extra spec read by the host alone? No host is chosen by it."""
    return key in HOST_SPEC_KEYS or key.startswith(HOST_SCOPES)


def is_guest_key(key: str) -> bool:
    """Is this key, of an extra spec or of a property, about the shape of the guest?"""
    return key in SPEC_KEYS or key in IMAGE_KEYS or key.startswith(_NUMBERED)


class GuestKeys:
    """The values of a flavor and an image, by the names that follow `hw:` and `hw_`."""

    def __init__(self, flavor: Flavor, properties: Mapping[str, str]) -> None:
        self.flavor = flavor
        self.properties = properties
        self.problems: list[RequestProblem] = []

    def of_flavor(self, name: str) -> str | None:
        return self.flavor.extra_specs.get(f"hw:{name}")

    def of_image(self, name: str) -> str | None:
        return self.properties.get(f"hw_{name}")

    def numbered(self, name: str) -> dict[str, tuple[str, str]]:
        """The field and the value of each `hw:NAME.N`, or of each `hw_NAME.N`, by what stands for N."""
        flavors = _numbered(self.flavor.extra_specs, f"hw:{name}.", SPEC)
        images = _numbered(self.properties, f"hw_{name}.", IMAGE)
        if flavors and images:
            field, value = next(iter(images.values()))
            self.wrong(field, value, f"the flavor says hw:{name}.N, and so the image may not")
        return flavors or images

    def wrong(self, field: str, value: str, reason: str) -> None:
        self.problems.append(RequestProblem(field, value, reason))

    def wrong_in_flavor(self, name: str, reason: str) -> None:
        self.wrong(f"{SPEC}hw:{name}", self.of_flavor(name) or "", reason)

    def wrong_in_image(self, name: str, reason: str) -> None:
        self.wrong(f"{IMAGE}hw_{name}", self.of_image(name) or "", reason)

    def wrong_where_said(self, name: str, reason: str) -> None:
        """The value of the flavor is wrong; that of the image if the flavor has none."""
        if self.of_flavor(name) is not None:
            self.wrong_in_flavor(name, reason)
        else:
            self.wrong_in_image(name, reason)

    def one_of(self, name: str, words: tuple[str, ...]) -> tuple[str | None, str | None]:
        """What flavor and image say, None where they say nothing or none of these words."""
        flavor, image = self.of_flavor(name), self.of_image(name)
        reason = f"it is one of {', '.join(words)}"
        if flavor is not None and flavor not in words:
            self.wrong_in_flavor(name, reason)
            flavor = None
        if image is not None and image not in words:
            self.wrong_in_image(name, reason)
            image = None
        return flavor, image


def _numbered(pairs: Mapping[str, str], prefix: str, field: str) -> dict[str, tuple[str, str]]:
    return {
        key.removeprefix(prefix): (field + key, value)
        for key, value in pairs.items()
        if key.startswith(prefix)
    }


# The size of the pages that a guest's memory is in. An image may only choose where the flavor leaves a choice.


KIB_PER_MIB = 1024
# Small pages of nearly all machines; a host whose small pages are larger names these by their size.
SMALL_KIB = 4
PAGE_KIB_MAX = 16 * 1024 * 1024
_SIZE = re.compile(r"([0-9]{1,10})(?:([KkMGT])(?:i?B)?)?", re.ASCII)
_KIB_PER_UNIT = {"k": 1, "K": 1, "M": 1024, "G": 1024**2, "T": 1024**3}
_ALLOWED = f"a page size is small, large, any, or a size such as 2048 (in KiB), 2MB or 1GB; at most {PAGE_KIB_MAX} KiB"


def read_page_size(asked: GuestKeys) -> tuple[PageSize, int]:
    """The page size, and its KiB if it is `sized`."""
    flavor, image = asked.of_flavor(PAGES), asked.of_image(PAGES)
    if flavor is None:
        if image is not None:
            asked.wrong_in_image(
                PAGES, "the flavor has no hw:mem_page_size, and so the image may not choose one"
            )
        return "", 0
    size = _read(flavor)
    if size is None:
        asked.wrong_in_flavor(PAGES, _ALLOWED)
        return "", 0
    if image is None:
        return size
    of_image = _read(image)
    if of_image is None:
        asked.wrong_in_image(PAGES, _ALLOWED)
    elif size[0] in ("large", "any"):
        return of_image
    elif of_image != size and not _includes(of_image[0], size[0]):
        asked.wrong_in_image(
            PAGES, f"the flavor says {flavor}: an image may choose only beside large and any"
        )
    return size


def _includes(image: PageSize, flavor: PageSize) -> bool:
    """Does the image leave open what the flavor has decided?"""
    return image == "any" or (image == "large" and flavor == "sized")


def check_pages(asked: GuestKeys, cells: tuple[GuestCell, ...], page_size: PageSize, page_kib: int) -> None:
    """Is each cell's memory made of whole pages?"""
    if page_size and not asked.flavor.ram_mb:
        asked.wrong_where_said(PAGES, "it is about memory, and flavor.ram_mb is 0")
    for number, cell in enumerate(cells):
        if page_kib and not is_whole_pages(cell.memory_mb, page_kib):
            asked.wrong_where_said(
                PAGES,
                f"guest cell {number} has {cell.memory_mb} MB, which are not whole pages of {page_kib} KiB",
            )
            return


def is_whole_pages(memory_mb: int, page_kib: int) -> bool:
    return memory_mb * KIB_PER_MIB % page_kib == 0


def _read(text: str) -> tuple[PageSize, int] | None:
    match text:
        case "small" | "large" | "any":
            return text, 0
    read = _SIZE.fullmatch(text)
    if read is None:
        return None
    kib = int(read[1]) * _KIB_PER_UNIT[read[2] or "K"]
    if not SMALL_KIB <= kib <= PAGE_KIB_MAX or kib & (kib - 1):
        return None
    return ("small", 0) if kib == SMALL_KIB else ("sized", kib)


# The cells of a guest: as many as `hw:numa_nodes` says, with equal parts of its sizes, or with those that `hw:numa_cpus.N` and
# `hw:numa_mem.N` name.


CELLS_MAX = 16
# The processors of a guest with cells are numbered one by one.
CPUS_MAX = 1024

_MB = re.compile(r"[0-9]{1,10}", re.ASCII)


def read_node_count(asked: GuestKeys) -> int | None:
    """The number of cells that is asked for; None if none is."""
    flavor, image = asked.of_flavor(NODES), asked.of_image(NODES)
    if flavor is not None and image is not None:
        asked.wrong_in_image(NODES, "the flavor says hw:numa_nodes, and so the image may not")
    said = image if flavor is None else flavor
    if said is None:
        return None
    if not _MB.fullmatch(said) or not 1 <= int(said) <= CELLS_MAX:
        asked.wrong_where_said(NODES, f"a guest has 1 to {CELLS_MAX} NUMA cells")
        return None
    return int(said)


def read_cells(asked: GuestKeys, nodes: int, dedicated: frozenset[int]) -> tuple[GuestCell, ...]:
    """The cells of a guest whose processors with the numbers in `dedicated` are dedicated ones."""
    cpus, memory = asked.numbered(CPUS), asked.numbered(MEMORY)
    if not cpus and not memory:
        return _equal(asked, nodes, dedicated)
    numbers = [str(number) for number in range(nodes)]
    for name, said in ((CPUS, cpus), (MEMORY, memory)):
        for number, (field, value) in said.items():
            if number not in numbers:
                asked.wrong(
                    field,
                    value,
                    f"the guest has {nodes} NUMA cells, and the last one is {nodes - 1}: set hw:numa_nodes",
                )
        missing = [number for number in numbers if number not in said]
        if missing:
            field, value = next(iter((cpus or memory).values()))
            asked.wrong(
                field,
                value,
                f"hw:{name}.{missing[0]} is missing: with one cell named, each has its numa_cpus and numa_mem",
            )
    if asked.problems:
        return ()
    return _named(
        asked, [cpus[number] for number in numbers], [memory[number] for number in numbers], dedicated
    )


def _equal(asked: GuestKeys, nodes: int, dedicated: frozenset[int]) -> tuple[GuestCell, ...]:
    flavor = asked.flavor
    for name, size in (("vcpus", flavor.vcpus), ("ram_mb", flavor.ram_mb)):
        if size % nodes or (name == "vcpus" and size < nodes):
            reason = f"flavor.{name} is {size}, which {nodes} cells cannot share equally: name hw:numa_cpus.N and hw:numa_mem.N"
            asked.wrong_where_said(NODES, reason)
            return ()
    each = flavor.vcpus // nodes
    return tuple(
        [
            _cell(range(number * each, (number + 1) * each), dedicated, flavor.ram_mb // nodes)
            for number in range(nodes)
        ]
    )


def _named(
    asked: GuestKeys, cpus: list[tuple[str, str]], memory: list[tuple[str, str]], dedicated: frozenset[int]
) -> tuple[GuestCell, ...]:
    count, cells = asked.flavor.vcpus, []
    left = set(range(count))
    for (field, value), (memory_field, memory_value) in zip(cpus, memory, strict=True):
        try:
            numbers = read_cpu_numbers(value, count)
        except ValueError as wrong:
            asked.wrong(field, value, str(wrong))
            return ()
        if not numbers:
            asked.wrong(field, value, "a cell has at least one processor")
        twice = sorted(numbers - left)
        if twice:
            asked.wrong(field, value, f"processor {twice[0]} is in another cell, too")
        if not _MB.fullmatch(memory_value):
            asked.wrong(memory_field, memory_value, "a cell's memory is a whole number of MB")
            return ()
        left -= numbers
        cells.append(_cell(sorted(numbers), dedicated, int(memory_value)))
    if left:
        asked.wrong(*cpus[-1], f"processor {min(left)} of {count} is in no cell")
    total = sum(cell.memory_mb for cell in cells)
    if total != asked.flavor.ram_mb:
        asked.wrong(
            *memory[-1], f"the cells have {total} MB in all, and flavor.ram_mb is {asked.flavor.ram_mb}"
        )
    return tuple(cells)


def _cell(numbers: range | list[int], dedicated: frozenset[int], memory_mb: int) -> GuestCell:
    return GuestCell(
        tuple([number for number in numbers if number not in dedicated]),
        tuple([number for number in numbers if number in dedicated]),
        memory_mb,
    )


# Reads the shape of a guest from its flavor's extra specs and its image's properties, or finds what contradicts in them.
#
# The flavor's word counts before the image's. An image may narrow what the flavor leaves open, and never ask for more:
# no dedicated processors where the flavor says shared, and no huge pages where it says nothing of pages.


NOTHING_ASKED = GuestShape()
_SIZED = re.compile(rf"resources[a-zA-Z0-9_-]*:(VCPU|PCPU|{SMALL_PAGES}|{HUGE_PAGES}.*)", re.ASCII)


def read_guest(flavor: Flavor, properties: Mapping[str, str]) -> GuestShape | tuple[RequestProblem, ...]:
    """The shape that an instance of this flavor has, with an image of these properties; or its problems."""
    # Most flavors ask for nothing here, and each boot of one is read.
    if not any(map(is_guest_key, flavor.extra_specs)) and not any(map(is_guest_key, properties)):
        return NOTHING_ASKED
    asked = GuestKeys(flavor, properties)
    shape = _read_reading(asked)
    return tuple(asked.problems) or shape


def _read_reading(asked: GuestKeys) -> GuestShape:
    flavor = asked.flavor
    policy = _cpu_policy(asked)
    nodes, (page_size, page_kib) = read_node_count(asked), read_page_size(asked)
    threads, emulator = _thread_policy(asked, policy), _emulator_threads(asked, policy)
    has_cells = bool(nodes or page_size or asked.numbered(CPUS) or asked.numbered(MEMORY)) or (
        policy != "shared" and flavor.vcpus > 0
    )
    cells: tuple[GuestCell, ...] = ()
    if has_cells and not asked.problems and _is_countable(asked):
        cells = read_cells(asked, nodes or 1, _dedicated(asked, policy))
        check_pages(asked, cells, page_size, page_kib)
        _check_sizes(asked)
    return GuestShape(
        cells=cells,
        cpu_policy=policy,
        thread_policy=threads,
        emulator_threads=emulator,
        page_size=page_size,
        page_kib=page_kib,
        pci_affinity=_pci_affinity(asked),
    )


def _cpu_policy(asked: GuestKeys) -> CpuPolicy:
    flavor, image = asked.one_of(POLICY, CPU_POLICIES)
    if flavor == "shared" and image in ("dedicated", "mixed"):
        asked.wrong_in_image(POLICY, "the flavor says shared, so the image can be nothing else")
    if flavor == "mixed" and image == "dedicated":
        asked.wrong_in_image(POLICY, "the flavor says mixed, so the image cannot be dedicated")
    policy = flavor or image or "shared"
    mask = asked.of_flavor(MASK)
    if policy == "mixed" and mask is None and not asked.problems:
        asked.wrong_where_said(
            POLICY, f"hw:{MASK} of the flavor is missing: it names the dedicated processors"
        )
    if policy != "mixed" and mask is not None:
        asked.wrong_in_flavor(MASK, f"it is about mixed processors: set hw:{POLICY} to mixed")
    return cast("CpuPolicy", policy)


def _dedicated(asked: GuestKeys, policy: CpuPolicy) -> frozenset[int]:
    everyone = frozenset(range(asked.flavor.vcpus))
    if policy != "mixed":
        return everyone if policy == "dedicated" else frozenset()
    try:
        dedicated = read_cpu_numbers(asked.of_flavor(MASK) or "", asked.flavor.vcpus)
    except ValueError as wrong:
        asked.wrong_in_flavor(MASK, str(wrong))
        return frozenset()
    if not dedicated or dedicated == everyone:
        named = "all" if dedicated else "none"
        asked.wrong_in_flavor(
            MASK, f"it names {named} of the processors: of mixed ones some are dedicated, and some are not"
        )
    return dedicated


def _thread_policy(asked: GuestKeys, policy: CpuPolicy) -> ThreadPolicy:
    flavor, image = asked.one_of(THREADS, THREAD_POLICIES)
    if flavor not in (None, "prefer") and image not in (None, flavor):
        asked.wrong_in_image(THREADS, f"the flavor says {flavor}, and the image something else")
    if (flavor or image) and policy == "shared":
        asked.wrong_where_said(
            THREADS, f"it is about dedicated processors: set hw:{POLICY} to dedicated or mixed, too"
        )
    return cast("ThreadPolicy", (image if flavor in (None, "prefer") and image else flavor) or "")


def _emulator_threads(asked: GuestKeys, policy: CpuPolicy) -> EmulatorThreads:
    flavor, _ = asked.one_of(EMULATOR, EMULATOR_THREADS)
    if flavor == "isolate" and policy == "shared":
        asked.wrong_in_flavor(
            EMULATOR, f"their processor is a dedicated one: set hw:{POLICY} to dedicated or mixed, too"
        )
    return cast("EmulatorThreads", flavor or "")


def _pci_affinity(asked: GuestKeys) -> PciAffinity:
    flavor, image = asked.one_of(AFFINITY, PCI_AFFINITIES)
    if flavor and image and flavor != image:
        asked.wrong_in_image(AFFINITY, f"the flavor says {flavor}, and the image something else")
    return cast("PciAffinity", flavor or image or "legacy")


def _is_countable(asked: GuestKeys) -> bool:
    vcpus = asked.flavor.vcpus
    if 1 <= vcpus <= CPUS_MAX:
        return True
    asked.wrong(
        "flavor.vcpus",
        str(vcpus),
        f"a guest with NUMA cells, pages or dedicated processors has 1 to {CPUS_MAX}",
    )
    return False


def _check_sizes(asked: GuestKeys) -> None:
    """The cells are made of the flavor's sizes, so that no extra spec may give others."""
    for key, value in asked.flavor.extra_specs.items():
        if _SIZED.fullmatch(key):
            asked.wrong(
                SPEC + key,
                value,
                f"the guest's cells are made of flavor.vcpus and flavor.ram_mb; see hw:{NODES}, hw:{POLICY}",
            )


# Which host cell each guest cell stands on, by the share that was claimed for the guest.


# What the caller has for a cell of the host, such as its number.
HostCell = TypeVar("HostCell")
Amounts = Mapping[str, int]

_CPUS = ("VCPU", "PCPU")


class ShareDiffersError(ValueError):
    """The share does not give what the shape asks for: they are not of one claim."""


def cell_amounts(shape: GuestShape, page_kib: int) -> tuple[dict[str, int], ...]:
    """What each guest cell takes from its host cell, by class, with memory in pages of this size (0: small ones)."""
    memory = memory_class(page_kib)
    return tuple(
        [
            {
                resource: amount
                for resource, amount in (
                    ("VCPU", len(cell.shared)),
                    ("PCPU", len(cell.dedicated) + (0 if number else shape.emulator_cpus)),
                    (memory, cell.memory_mb),
                )
                if amount
            }
            for number, cell in enumerate(shape.cells)
        ]
    )


def page_kib_of(share: Mapping[ProviderId, Amounts]) -> int:
    """The size of the pages that the share takes memory in; 0: small ones."""
    sizes = sorted(
        {
            int(resource.removeprefix(HUGE_PAGES))
            for amounts in share.values()
            for resource in amounts
            if resource.startswith(HUGE_PAGES) and resource.removeprefix(HUGE_PAGES).isdecimal()
        }
    )
    if len(sizes) > 1:
        raise ShareDiffersError(f"the share has pages of several sizes: {', '.join(map(str, sizes))} KiB")
    return sizes[0] if sizes else 0


def cells_of(
    shape: GuestShape, share: Mapping[ProviderId, Amounts], cells: Mapping[ProviderId, HostCell]
) -> tuple[HostCell, ...]:
    """The host cell of each guest cell, in the order of the guest's cells; empty for a guest without a topology.

    `cells` are the providers that are cells of the host; of a host without cells, its root. Equal guest cells are
    interchangeable: the first one gets the first host cell in the order of `cells`.
    """
    if not shape.cells:
        return ()
    page_kib = page_kib_of(share)
    if not _is_of_size(shape, page_kib):
        wanted = "large" if shape.page_size == "large" else memory_class(shape.page_kib)
        raise ShareDiffersError(
            f"the share has memory in {memory_class(page_kib)}, and the guest asks for {wanted}"
        )
    given = {provider: _of_cells(share[provider]) for provider in cells if provider in share}
    left = {provider: amounts for provider, amounts in given.items() if amounts}
    found: list[HostCell] = []
    for number, asked in enumerate(cell_amounts(shape, page_kib)):
        provider = next((provider for provider, amounts in left.items() if amounts == asked), None)
        if provider is None:
            raise ShareDiffersError(
                f"guest cell {number} takes {_shown(asked)}, and the share has {_listed(list(given.values()))}"
            )
        del left[provider]
        found.append(cells[provider])
    if left:
        raise ShareDiffersError(
            f"no guest cell takes what the share has beside: {_listed(list(left.values()))}"
        )
    return tuple(found)


def _is_of_size(shape: GuestShape, page_kib: int) -> bool:
    match shape.page_size:
        case "any":
            return True
        case "large":
            return page_kib > 0
        case _:
            return page_kib == shape.page_kib


def _of_cells(amounts: Amounts) -> dict[str, int]:
    return {
        resource: amount
        for resource, amount in amounts.items()
        if resource in _CPUS or resource == SMALL_PAGES or resource.startswith(HUGE_PAGES)
    }


def _shown(amounts: Amounts) -> str:
    return ", ".join(f"{resource} {amount}" for resource, amount in sorted(amounts.items())) or "nothing"


def _listed(amounts: Sequence[Amounts]) -> str:
    return "; ".join(map(_shown, amounts)) or "no cell"
