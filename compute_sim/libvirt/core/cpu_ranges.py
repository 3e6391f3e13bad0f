"""Sets of CPUs as libvirt, the kernel and settings write them: `0-3,8`."""

import re
from collections.abc import Iterable

FORM = "numbers and ranges such as 0-3,8; ^2 takes one out"
# The kernel's own limit is 8192.
CPU_MAX = 16_383
_PART = re.compile(r"(?P<out>\^?)(?P<first>[0-9]{1,5})(-(?P<last>[0-9]{1,5}))?", re.ASCII)


def read_cpus(text: str, field: str = "cpus") -> frozenset[int]:
    """The CPUs that this text names. Raises ValueError with the field and the part that is wrong."""
    chosen: set[int] = set()
    out: set[int] = set()
    for part in text.split(",") if text.strip() else ():
        found = _PART.fullmatch(part.strip())
        if found is None:
            raise ValueError(f"{field} has {part.strip()!r}, must be {FORM}")
        first = int(found["first"])
        last = int(found["last"] or first)
        if last < first or last > CPU_MAX:
            raise ValueError(f"{field} has {part.strip()!r}: a range rises, and ends at {CPU_MAX} or before")
        (out if found["out"] else chosen).update(range(first, last + 1))
    return frozenset(chosen - out)


def cpus_in_words(cpus: Iterable[int]) -> str:
    """The same set as text, with as few ranges as possible; empty for no CPUs."""
    ranges: list[list[int]] = []
    for cpu in sorted(set(cpus)):
        if ranges and cpu == ranges[-1][1] + 1:
            ranges[-1][1] = cpu
        else:
            ranges.append([cpu, cpu])
    return ",".join(str(first) if first == last else f"{first}-{last}" for first, last in ranges)
