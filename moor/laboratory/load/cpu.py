"""CPU times of processes, from the kernel. Linux only.

A process's CPU clock counts all its threads, including ended ones, to the nanosecond. The kernel adds the time of an ended
child when its parent has waited for it. Kernel threads (writeback, interrupts) belong to no process and are not counted.
"""

import time

import psutil

_TRIES_MAX = 100


def process_cpu_s(pid: int) -> float:
    """The CPU time of one process, without its children."""
    # Python lacks clock_getcpuclockid(3): its result is the inverted pid, shifted, and 2 for the clock of the whole process.
    return time.clock_gettime((~pid << 3) | 2)


def process_tree_cpu_s(root: int) -> float:
    """The CPU time of a process and all its descendants, including ended ones: a server with all its helpers.

    Repeat the reading until no process started or ended during it, so that none is counted twice or missed.
    """
    for _ in range(_TRIES_MAX):
        try:
            members = _process_tree(root)
            cpu_s = sum(process_cpu_s(each.pid) + _ended_children_s(each) for each in members)
            if members == _process_tree(root):
                return cpu_s
        except (OSError, psutil.NoSuchProcess):
            continue
    raise RuntimeError(f"the CPU times of process {root} and its descendants cannot be read: has it ended?")


def machine_cpu_s() -> float:
    """The CPU time of all processors of this machine since boot, including time stolen by its hypervisor."""
    times = psutil.cpu_times()
    return float(times.user + times.nice + times.system + times.irq + times.softirq + times.steal)


def _process_tree(root: int) -> list[psutil.Process]:
    """A process and its living descendants, without zombies: those have no clock any more."""
    eldest = psutil.Process(root)
    every = (eldest, *eldest.children(recursive=True))
    return [each for each in every if each.status() != psutil.STATUS_ZOMBIE]


def _ended_children_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.children_user + times.children_system)
