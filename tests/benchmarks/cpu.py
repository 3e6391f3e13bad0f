"""Who spent how much CPU, by the kernel's own books.

A process's clock counts all its threads, those that ended too, to the nanosecond; what its ended children took is added
in /proc when it has waited for them. The kernel's own threads (writing back to disk, interrupts) are nobody's, and are
not counted.
"""

import os
import time
from pathlib import Path
from typing import Protocol

from tests.servers import descendants

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_TRIES_MAX = 100
# In /proc/PID/stat, after the name: the user and system time of children that ended and were waited for.
_CHILDREN_USER, _CHILDREN_SYSTEM = 13, 14
# In /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE = (3, 4)
_STEAL = 7


class Spender(Protocol):
    """One process, or several that belong together."""

    def spent_s(self) -> float:
        """All CPU time so far."""


class OneProcess:
    """A process without its children."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def spent_s(self) -> float:
        return _own_s(self._pid)


class Family:
    """A process and everything below it, also what ends meanwhile: a server with all its helpers."""

    def __init__(self, eldest: int) -> None:
        self._eldest = eldest

    def spent_s(self) -> float:
        """Read until nobody came or went during the reading, so that no one is counted twice or not at all."""
        for _ in range(_TRIES_MAX):
            members = (self._eldest, *descendants(self._eldest))
            try:
                spent_s = sum(_own_s(pid) + _ended_children_s(pid) for pid in members)
            except OSError:
                continue
            if members == (self._eldest, *descendants(self._eldest)):
                return spent_s
        raise RuntimeError(f"process {self._eldest} and what is below it could not be read: has it ended?")


def busy_s() -> float:
    """What all processors of this machine have spent so far, on whomever; what a hypervisor took from them included."""
    ticks = [int(text) for text in Path("/proc/stat").read_text().partition("\n")[0].split()[1:]]
    return sum(ticks[n] for n in range(_STEAL + 1) if n not in _IDLE) / _TICKS_PER_S


def _own_s(pid: int) -> float:
    # clock_getcpuclockid(3), which Python lacks: the id's bits inverted, and the kind of clock (all of the process).
    return time.clock_gettime((~pid << 3) | 2)


def _ended_children_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    return (int(fields[_CHILDREN_USER]) + int(fields[_CHILDREN_SYSTEM])) / _TICKS_PER_S
