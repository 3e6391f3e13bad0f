"""Reads the shape of a guest from its flavor's extra specs and its image's properties, or finds what contradicts in them.

The flavor's word counts before the image's. An image may narrow what the flavor leaves open, and never ask for more:
no dedicated processors where the flavor says shared, and no huge pages where it says nothing of pages.
"""

import re
from collections.abc import Mapping
from typing import cast

from bus.guests.asked import (
    AFFINITY,
    EMULATOR,
    IMAGE_KEYS,
    MASK,
    NODES,
    POLICY,
    SPEC,
    SPEC_KEYS,
    THREADS,
    GuestKeys,
    is_guest_key,
)
from bus.guests.cells import CPUS_MAX, names_cells, read_cells, read_node_count
from bus.guests.cpu_numbers import read_cpu_numbers
from bus.guests.pages import check_pages, read_page_size
from bus.guests.shape import (
    CPU_POLICIES,
    EMULATOR_THREADS,
    HUGE_PAGES,
    PCI_AFFINITIES,
    SMALL_PAGES,
    THREAD_POLICIES,
    CpuPolicy,
    EmulatorThreads,
    GuestCell,
    GuestProblem,
    GuestShape,
    PciAffinity,
    ThreadPolicy,
)
from bus.messages.build import Flavor

__all__ = ["IMAGE_KEYS", "SPEC_KEYS", "is_guest_key", "read_guest"]

NOTHING_ASKED = GuestShape()
_SIZED = re.compile(rf"resources[a-zA-Z0-9_-]*:(VCPU|PCPU|{SMALL_PAGES}|{HUGE_PAGES}.*)", re.ASCII)


def read_guest(flavor: Flavor, properties: Mapping[str, str]) -> GuestShape | tuple[GuestProblem, ...]:
    """The shape that an instance of this flavor has, with an image of these properties; or its problems."""
    # Most flavors ask for nothing here, and each boot of one is read.
    if not any(map(is_guest_key, flavor.extra_specs)) and not any(map(is_guest_key, properties)):
        return NOTHING_ASKED
    asked = GuestKeys(flavor, properties)
    shape = _read(asked)
    return tuple(asked.problems) or shape


def _read(asked: GuestKeys) -> GuestShape:
    flavor = asked.flavor
    policy = _cpu_policy(asked)
    nodes, (page_size, page_kib) = read_node_count(asked), read_page_size(asked)
    threads, emulator = _thread_policy(asked, policy), _emulator_threads(asked, policy)
    has_cells = bool(nodes or page_size or names_cells(asked)) or (policy != "shared" and flavor.vcpus > 0)
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
