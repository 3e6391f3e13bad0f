"""Faults that all simulated stores share: points where the process may die, and errors of databases. Each commit is
reported to the observer.

Rows outlive processes. If a process dies before its commit, cancellation undoes the transaction.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import NoReturn, Protocol

from cell_conductor.core.rows import CellHost, Instance
from compute_sim.core.attempts import AttemptRecord, BuildOrder, HostOrder
from engine.flavors import InstanceId
from engine.hosts import HostState
from kit.errors import Transient, Unavailable
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, Quota, TreeChanges
from scheduler_worker.core.aggregates import KeptAggregate
from scheduler_worker.core.instances.rows import InstanceRow
from tests.simulation.process import SimProcess


class CommitObserver(Protocol):
    """Is told what was committed."""

    def books_opened(self) -> None:
        """A transaction on the books begins; only one is open at a time."""

    def locks(self, kind: str, *, after: Sequence[str]) -> None:
        """A transaction locks rows of `kind`, after it has locked rows of the kinds in `after`."""

    def books_written(
        self, orders: Sequence[ClaimOrder], written: Sequence[ClaimChanges | TreeChanges]
    ) -> None: ...

    def quotas_written(self, written: Sequence[Quota]) -> None: ...

    def requests_written(self, rows: Iterable[InstanceRow], hosts: Sequence[HostState]) -> None: ...

    def aggregates_written(self, written: Sequence[KeptAggregate]) -> None: ...

    def cell_written(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None: ...

    def cell_hosts_written(self, hosts: Sequence[CellHost]) -> None: ...

    def attempts_changed(self, attempts: Sequence[AttemptRecord]) -> None: ...

    def disk_written(self, order: BuildOrder) -> None:
        """A host begins to write an instance's disk."""

    def cannot_give(self, order: HostOrder, words: str) -> None:
        """A host is told to give an instance what it does not have, or what another instance has."""


# The errors that kit/sql/dialects.py makes of a database's errors.
_PROBLEMS: dict[str, tuple[type[Transient], str]] = {
    "deadlock": (Transient, "deadlock detected"),
    "serialisation_failure": (Transient, "could not serialize access due to concurrent update"),
    "lost_before_commit": (Unavailable, "connection was closed in the middle of operation"),
    "lost_after_commit": (Unavailable, "connection was closed in the middle of operation"),
    "database_away": (Unavailable, "cannot connect"),
}


async def reach_database(process: SimProcess) -> None:
    """Wait until the database answers, or raise if it cannot be reached. A dead process never gets there."""
    if process.is_dead:
        await asyncio.Event().wait()
    await process.until_awake()
    if slow_s := process.slow_s():
        await asyncio.sleep(slow_s)
    if asyncio.get_running_loop().time() < process.database_away_until_s:
        _raise(process, "database_away")


def fail_if_armed(process: SimProcess, *problems: str) -> None:
    """Raise the error of the first of these faults that is armed on the process."""
    for problem in problems:
        if process.take_armed(problem):
            _raise(process, problem)


def _raise(process: SimProcess, problem: str) -> NoReturn:
    process.fired(problem)
    kind, words = _PROBLEMS[problem]
    raise kind(f"database: {words}")


async def before_commit(process: SimProcess) -> None:
    """A store calls this as the last thing before each commit: the process may die here, or its transaction fail."""
    await process.point("before_commit")
    fail_if_armed(process, "serialisation_failure", "lost_before_commit")


async def after_commit(process: SimProcess) -> None:
    """A store calls this as the first thing after each commit, when the checkers have been told: the process may die
    here, or lose its connection.
    """
    await process.until_awake()
    await process.point("after_commit")
    fail_if_armed(process, "lost_after_commit")
