"""Who spent how much CPU, by the kernel's own books. Linux only.

A process's clock counts all its threads, those that ended too, to the nanosecond; what its ended children took is added
in /proc when it has waited for them. The kernel's own threads (writing back to disk, interrupts) are nobody's, and are
not counted.
"""

import os
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TRIES_MAX = 100
# In /proc/PID/stat, after the name.
_STATE, _PARENT = 0, 1
_CHILDREN_USER, _CHILDREN_SYSTEM = 13, 14
# In /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE = (3, 4)
_STEAL = 7


def process_spent_s(pid: int) -> float:
    """All that one process spent, without its children."""
    # clock_getcpuclockid(3), which Python lacks: the id's bits inverted, and the kind of clock (all of the process).
    return time.clock_gettime((~pid << 3) | 2)


def family_spent_s(eldest: int) -> float:
    """A process and everything below it, also what ended meanwhile: a server with all its helpers.

    Read until nobody came or went during the reading, so that no one is counted twice or not at all.
    """
    for _ in range(_TRIES_MAX):
        members = _family(eldest)
        try:
            spent_s = sum(process_spent_s(pid) + _ended_children_s(pid) for pid in members)
        except OSError:
            continue
        if members == _family(eldest):
            return spent_s
    raise RuntimeError(f"process {eldest} and what is below it could not be read: has it ended?")


def machine_spent_s() -> float:
    """What all processors of this machine have spent so far, on whomever; what a hypervisor took from them included."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]]
    return sum(ticks[n] for n in range(_STEAL + 1) if n not in _IDLE) / _TICKS_PER_S


def _family(eldest: int) -> list[int]:
    """It and every living process below it. The dead that nobody waited for have no clock any more."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            # A process may end while we read about it.
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = _fields(int(entry.name))
                if fields[_STATE] not in "ZX":
                    children[int(fields[_PARENT])].append(int(entry.name))
    found = [eldest]
    for parent in found:
        found += sorted(children[parent])
    return found


def _ended_children_s(pid: int) -> float:
    fields = _fields(pid)
    return (int(fields[_CHILDREN_USER]) + int(fields[_CHILDREN_SYSTEM])) / _TICKS_PER_S


def _fields(pid: int) -> list[str]:
    # "pid (name) state parent ...", where the name may hold anything, brackets and spaces too.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
