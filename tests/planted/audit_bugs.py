"""Planted bugs in the orders by which an audit mends."""

from contextlib import AbstractContextManager

from scheduler_worker.core.instances import lifecycle as row_mending
from tests.planted.replacing import replaced


def late_row_mended() -> AbstractContextManager[None]:
    """A row's sequence is always as the audit saw it."""
    return replaced(row_mending, "_is_as_seen", lambda _real: lambda row, _mend: row is not None)
