"""Planted bugs in what schedulers do for instances that wait for room."""

from contextlib import AbstractContextManager
from typing import Any

from scheduler_worker.core.instances.rows import WAITING
from scheduler_worker.core.picture.touched import TouchedHosts
from scheduler_worker.requests import deadlines
from tests.simulation.replacing import replaced


def wake_up_lost() -> AbstractContextManager[None]:
    """A host that changed is not recorded, so nothing that waits is tried when it has room again."""
    return replaced(TouchedHosts, "add", lambda _real: lambda *_: None)


def deadline_forgotten() -> AbstractContextManager[None]:
    """The deadline of an instance that waits for room is not noticed; only accepted instances end by theirs."""

    def planted(real: Any) -> Any:
        def overdue(row: Any, now: Any) -> Any:
            return None if row.told.state == WAITING else real(row, now)

        return overdue

    return replaced(deadlines, "overdue", planted)
