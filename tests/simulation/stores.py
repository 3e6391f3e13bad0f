"""What every process's way to its rows has in common: the memory stores, with the moments in which the process may die,
and a word to whoever checks after each commit.

Rows outlive processes. A transaction of a process that dies before its commit leaves nothing, as cancellation has it.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol

from bus.errors import Transient, Unavailable
from bus.messages.build import InstanceId
from bus.messages.hosts import HostState
from cell_conductor.core.instance import Instance
from compute_sim.core.attempts import Attempted
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, TreeChanges
from scheduler_worker.instances import InstanceRow
from tests.simulation.process import SimProcess


class Commits(Protocol):
    """Whoever is told what was committed."""

    def books_opened(self) -> None:
        """The one transaction that there is at a time begins."""

    def locks(self, kind: str, *, after: Sequence[str]) -> None:
        """A transaction locks rows of this kind, when it has locked those."""

    def books_written(
        self, orders: Sequence[ClaimOrder], written: Sequence[ClaimChanges | TreeChanges]
    ) -> None: ...

    def requests_written(self, rows: Iterable[InstanceRow], hosts: Sequence[HostState]) -> None: ...

    def cell_written(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None: ...

    def attempts_changed(self, attempts: Sequence[Attempted]) -> None: ...


# As bus/sql/errors.py has what databases say.
_PROBLEMS: dict[str, tuple[type[Transient], str]] = {
    "deadlock": (Transient, "deadlock detected"),
    "serialisation_failure": (Transient, "could not serialize access due to concurrent update"),
    "lost_before_commit": (Unavailable, "connection was closed in the middle of operation"),
    "lost_after_commit": (Unavailable, "connection was closed in the middle of operation"),
    "database_away": (Unavailable, "cannot connect"),
}


async def on_the_way(process: SimProcess) -> None:
    """Databases are slow now and then, or cannot be reached, and nobody gets there who is dead."""
    if process.is_dead:
        await asyncio.Event().wait()
    await process.until_awake()
    if slow_s := process.slow_s():
        await asyncio.sleep(slow_s)
    if asyncio.get_running_loop().time() < process.without_database_until_s:
        _raise(process, "database_away")


def meets(process: SimProcess, *problems: str) -> None:
    """Raise what the adapter of a database raises, if this is to befall the process now."""
    for problem in problems:
        if process.take_mark(problem):
            _raise(process, problem)


def _raise(process: SimProcess, problem: str) -> NoReturn:
    process.fired(problem)
    kind, words = _PROBLEMS[problem]
    raise kind(f"database: {words}")


async def committing(process: SimProcess) -> None:
    """The last moment before a commit."""
    await process.point("before_commit")
    meets(process, "serialisation_failure", "lost_before_commit")


async def committed(process: SimProcess) -> None:
    """The first moment after a commit. Those who check have been told."""
    await process.until_awake()
    await process.point("after_commit")
    meets(process, "lost_after_commit")
