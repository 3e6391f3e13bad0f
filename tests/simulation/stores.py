"""What every process's way to its rows has in common: the memory stores, with the moments in which the process may die,
and a word to whoever checks after each commit.

Rows outlive processes. A transaction of a process that dies before its commit leaves nothing, as cancellation has it.
"""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Protocol

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

    def books_written(
        self, orders: Sequence[ClaimOrder], written: Sequence[ClaimChanges | TreeChanges]
    ) -> None: ...

    def requests_written(self, rows: Iterable[InstanceRow], hosts: Sequence[HostState]) -> None: ...

    def cell_written(self, rows: Sequence[Instance], forgotten: Sequence[InstanceId]) -> None: ...

    def attempts_changed(self, attempts: Sequence[Attempted]) -> None: ...


async def on_the_way(process: SimProcess) -> None:
    """Databases are slow now and then, and nobody gets there who is dead."""
    if process.is_dead:
        await asyncio.Event().wait()
    if slow_s := process.slow_s():
        await asyncio.sleep(slow_s)
