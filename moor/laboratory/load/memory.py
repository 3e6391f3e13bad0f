"""How much memory processes have, from the kernel. Linux only."""

from pathlib import Path

import psutil

KB_PER_MB, BYTES_PER_MB = 1024, 1024 * 1024


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
