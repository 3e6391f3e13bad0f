"""Traces of arrivals: which instances were asked for, when, and how long each lived. `moor replay` plays them."""

import csv
from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path

from msgspec import Struct

# Times are seconds since the first arrival. Lifetimes may be in bins; `ended` is 0 for an instance that is still there.
NEEDED = ("arrival_s", "batch", "vcpus", "memory_gib", "lifetime_low_s", "lifetime_high_s", "ended")
FURTHER = ("disk_gb", "traits", "group")
MB_PER_GIB = 1024
# With dedicated processors, and in large pages, an instance takes as much of a host.
_PROCESSORS, _MEMORY, _PAGES = ("VCPU", "PCPU"), "MEMORY_MB", "CUSTOM_MEMORY_MB_PAGES_"


class ArrivedInstance(Struct, frozen=True):
    """An instance of a cloud. `ended_at` is None while it is there; `batch` names the request that asked for it."""

    at: datetime
    ended_at: datetime | None
    batch: str
    vcpus: int
    memory_mb: int
    disk_gb: int


def arrived(
    at: datetime | None, ended_at: datetime | None, batch: str, amounts: Mapping[str, int]
) -> ArrivedInstance | None:
    """None for an instance that no hypervisor could run, such as one on a bare-metal node."""
    vcpus = sum(amounts.get(resource, 0) for resource in _PROCESSORS)
    memory = sum(
        amount for resource, amount in amounts.items() if resource == _MEMORY or resource.startswith(_PAGES)
    )
    if at is None or not vcpus or not memory:
        return None
    return ArrivedInstance(at, ended_at, batch, vcpus, memory, amounts.get("DISK_GB", 0))


def write_trace(file: Path, instances: Iterable[ArrivedInstance], now: datetime) -> int:
    """Write them in the order of their arrivals, without names or ids. Returns how many there are."""
    in_order = sorted(instances, key=lambda each: each.at)
    batches: dict[str, int] = {}
    with file.open("w", newline="", encoding="utf-8") as out:
        lines = csv.writer(out, lineterminator="\n")
        lines.writerow((*NEEDED, FURTHER[0]))
        for each in in_order:
            lived_s = ((each.ended_at or now) - each.at).total_seconds()
            low = f"{max(lived_s, 0):.3f}"
            lines.writerow(
                (
                    f"{(each.at - in_order[0].at).total_seconds():.3f}",
                    batches.setdefault(each.batch, len(batches)),
                    each.vcpus,
                    f"{each.memory_mb / MB_PER_GIB:.4f}".rstrip("0").rstrip("."),
                    low,
                    low if each.ended_at else "",
                    int(each.ended_at is not None),
                    each.disk_gb,
                )
            )
    return len(in_order)
