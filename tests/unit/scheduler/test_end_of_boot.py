"""The history says when an instance became active by its boot: while it only is active, and after whatever came then."""

from datetime import timedelta
from uuid import UUID

import pytest
from msgspec import structs

from engine.flavors import RequestId
from scheduler_worker.core.instances.history import boot_of, with_history
from scheduler_worker.core.instances.rows import InstanceRow
from tests.contracts.scheduler_rows import NOON, a_placed, a_request

(PLACED,) = a_placed(a_request(1)).rows
BUILT_AT, LATER = NOON + timedelta(seconds=9), NOON + timedelta(hours=1)


def as_told(row: InstanceRow, state: str, reason: str = "") -> InstanceRow:
    at = BUILT_AT if state in ("active", "error") and row.told.state == "placed" else LATER
    return structs.replace(row, told=structs.replace(row.told, state=state, changed_at=at, reason=reason))


ACTIVE = as_told(PLACED, "active")
STOPPED = with_history(ACTIVE, as_told(ACTIVE, "stopped"), "")
# A row of release 0.1.0, of an instance that has been stopped and started.
STARTED_UNKNOWN = structs.replace(as_told(ACTIVE, "active"), changes=(RequestId(UUID(int=5)),))


@pytest.mark.parametrize(
    ("row", "outcome", "ended_at", "failure"),
    [
        (PLACED, "placed", None, ""),
        (ACTIVE, "active", BUILT_AT, ""),
        (STOPPED, "active", BUILT_AT, ""),
        (with_history(STOPPED, as_told(STOPPED, "active"), ""), "active", BUILT_AT, ""),
        (with_history(STOPPED, as_told(STOPPED, "deleted"), ""), "active", BUILT_AT, ""),
        (as_told(PLACED, "error", "no host builds it"), "error", BUILT_AT, "no host builds it"),
        (with_history(STARTED_UNKNOWN, as_told(STARTED_UNKNOWN, "stopped"), ""), "placed", None, ""),
    ],
)
def test_the_boot_of_a_row_has_its_end(
    row: InstanceRow, outcome: str, ended_at: object, failure: str
) -> None:
    boot = boot_of(row)

    assert (boot.outcome, boot.ended_at, boot.failure) == (outcome, ended_at, failure)
