"""CPU times of processes, from the kernel. Linux only.

A process's CPU clock counts all its threads, including ended ones, to the nanosecond. /proc adds the time of an ended child
when its parent has waited for it. Kernel threads (writeback, interrupts) belong to no process and are not counted.
"""

import os
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TRIES_MAX = 100
# Fields of /proc/PID/stat, counted after the name.
_STATE, _PARENT = 0, 1
_CHILDREN_USER, _CHILDREN_SYSTEM = 13, 14
# Fields of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE = (3, 4)
_STEAL = 7


def process_cpu_s(pid: int) -> float:
    """The CPU time of one process, without its children."""
    # Python lacks clock_getcpuclockid(3): its result is the inverted pid, shifted, and 2 for the clock of the whole process.
    return time.clock_gettime((~pid << 3) | 2)


def process_tree_cpu_s(root: int) -> float:
    """The CPU time of a process and all its descendants, including ended ones: a server with all its helpers.

    Repeat the reading until no process started or ended during it, so that none is counted twice or missed.
    """
    for _ in range(_TRIES_MAX):
        members = _process_tree(root)
        try:
            cpu_s = sum(process_cpu_s(pid) + _ended_children_s(pid) for pid in members)
        except OSError:
            continue
        if members == _process_tree(root):
            return cpu_s
    raise RuntimeError(f"the CPU times of process {root} and its descendants cannot be read: has it ended?")


def machine_cpu_s() -> float:
    """The CPU time of all processors of this machine since boot, including time stolen by its hypervisor."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]]
    return sum(ticks[n] for n in range(_STEAL + 1) if n not in _IDLE) / _TICKS_PER_S


def _process_tree(root: int) -> list[int]:
    """A process and its living descendants, without zombies: those have no clock any more."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            # A process may end while its files are read.
            with suppress(FileNotFoundError, ProcessLookupError):
                fields = _fields(int(entry.name))
                if fields[_STATE] not in "ZX":
                    children[int(fields[_PARENT])].append(int(entry.name))
    found = [root]
    for parent in found:
        found += sorted(children[parent])
    return found


def _ended_children_s(pid: int) -> float:
    fields = _fields(pid)
    return (int(fields[_CHILDREN_USER]) + int(fields[_CHILDREN_SYSTEM])) / _TICKS_PER_S


def _fields(pid: int) -> list[str]:
    # "pid (name) state parent ...", where the name may hold anything, brackets and spaces too.
    return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
