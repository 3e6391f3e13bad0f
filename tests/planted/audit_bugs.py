"""Planted bugs in the orders by which an audit mends."""

from scheduler_worker.core.instances import lifecycle as row_mending
from tests.planted.replacing import BARE_METAL, planted_by

# A row's sequence is always as the audit saw it.
planted_by("a row mended out of date", row_mending, "_is_as_seen", world=BARE_METAL)(
    lambda _real: lambda row, _mend: row is not None
)
