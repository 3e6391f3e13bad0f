"""The processes whose CPU time is counted, by name; laboratory/load/kernel.py describes how it is read."""

from typing import Protocol

from laboratory.load.kernel import process_cpu_s, process_tree_cpu_s


class Spender(Protocol):
    """One process, or several that are counted together."""

    def spent_s(self) -> float:
        """All CPU time so far."""


class OneProcess:
    """A process without its children."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def spent_s(self) -> float:
        return process_cpu_s(self._pid)


class ProcessTree:
    """A process and all its descendants, including those that end meanwhile: a server with all its helpers."""

    def __init__(self, eldest: int) -> None:
        self._eldest = eldest

    def spent_s(self) -> float:
        return process_tree_cpu_s(self._eldest)
