"""What the kernel knows of processes: their CPU time, their memory, and which of them serves a URL. Linux only.

A process's CPU clock counts all its threads, including ended ones, to the nanosecond. The kernel adds the time of an ended
child when its parent has waited for it. Kernel threads (writeback, interrupts) belong to no process and are not counted.

A server is found by its listening socket. A process that only forwards bytes to the server (a container's proxy, an SSH tunnel) has another
name than the server, and is rejected by that name. Its CPU time would be almost zero, and a wrong figure is worse than none.
"""

import socket
import time
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from kit.urls import hosts_of

KB_PER_MB, BYTES_PER_MB = 1024, 1024 * 1024
PORTS = {"amqp": 5672, "amqps": 5671, "postgresql+asyncpg": 5432, "postgresql": 5432}
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


def process_peak_mb(pid: int) -> float:
    """The most memory that this process had in RAM since its start: the kernel keeps it, so no peak is missed. 0 if it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0.0
    peaks = [line.split()[1] for line in lines if line.startswith("VmHWM:")]
    return int(peaks[0]) / KB_PER_MB if peaks else 0.0


def process_tree_mb(root: int) -> float:
    """The memory of a process and all its descendants now, such as that of a database.

    Pages that they share count once: as many as the one has that shares most.
    """
    own, shared = 0, [0]
    try:
        eldest = psutil.Process(root)
        for each in (eldest, *eldest.children(recursive=True)):
            found = each.memory_info()
            own += found.rss - found.shared
            shared.append(found.shared)
    except psutil.NoSuchProcess:
        # One has ended meanwhile; the next reading has the others.
        return 0.0
    return (own + max(shared)) / BYTES_PER_MB


def listener_of(url: str, names: tuple[str, ...]) -> int | str:
    """The process that listens at this URL's address, if its name starts with one of `names`. Otherwise the reason why it is not
    known: it is on another machine, or this user may not inspect it.
    """
    if len(hosts_of(url)) > 1:
        return "its URL names several hosts"
    parts = urlsplit(url)
    host, port = parts.hostname, parts.port or PORTS.get(parts.scheme)
    if host is None or port is None:
        return "its URL has no host or port"
    if not _is_local(host):
        return "not on this machine"
    sockets = psutil.net_connections("tcp")
    owners = {each.pid for each in sockets if each.status == psutil.CONN_LISTEN and each.laddr.port == port}
    if not owners:
        return "not on this machine"
    # A socket of a process that this user may not inspect has no owner here.
    for pid in sorted(filter(None, owners)):
        if psutil.Process(pid).name().startswith(names):
            return int(pid)
    return f"port {port} is served by a process that this user may not inspect"


def _is_local(host: str) -> bool:
    """Does this address belong to this machine? Only such an address can be bound."""
    with suppress(OSError):
        for family, kind, protocol, _, address in socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM):
            with suppress(OSError), socket.socket(family, kind, protocol) as trying:
                trying.bind(address)
                return True
    return False
