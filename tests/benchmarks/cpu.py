"""Whose CPU time is counted, under which name; how it is read is told in moor/load/cpu.py."""

from typing import Protocol

from moor.load.cpu import family_spent_s, process_spent_s


class Spender(Protocol):
    """One process, or several that belong together."""

    def spent_s(self) -> float:
        """All CPU time so far."""


class OneProcess:
    """A process without its children."""

    def __init__(self, pid: int) -> None:
        self._pid = pid

    def spent_s(self) -> float:
        return process_spent_s(self._pid)


class Family:
    """A process and everything below it, also what ends meanwhile: a server with all its helpers."""

    def __init__(self, eldest: int) -> None:
        self._eldest = eldest

    def spent_s(self) -> float:
        return family_spent_s(self._eldest)
