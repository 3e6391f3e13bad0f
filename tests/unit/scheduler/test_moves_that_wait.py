"""Moves that wait for room, as the API level's rows have them: what they keep, what ends them, and what they say."""

from datetime import timedelta
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from bus.messages.build import (
    AttemptFailed,
    BuildRejected,
    DeleteInstance,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceState,
    InstanceWaiting,
    RebuildInstance,
)
from bus.messages.cell import RemoveFromCell
from bus.messages.moves import MoveInstance, MoveWait, is_to_wait_again
from engine.flavors import Image, RequestId
from engine.refusals import NoValidHost
from engine.requests.reading import PRIORITY_MAX
from scheduler_worker.core.instances.history import changes_between
from scheduler_worker.core.instances.lifecycle import after_delete, heard, overdue
from scheduler_worker.core.instances.moves import (
    EVACUATION_PRIORITY,
    EVACUATION_WAIT_S,
    MoveWaits,
    before_wait,
    begun,
    move_ended,
    move_waits,
    moved,
    problem_with,
    wait_of,
)
from scheduler_worker.core.instances.resizes import rebuilt
from scheduler_worker.core.instances.rows import InstanceRow, KeptRequest, messages_of
from tests.unit.scheduler.test_moves_at_api_level import H2, NOON, ONE, a_row, an_end, an_order, is_up

FUNNEL = NoValidHost(hosts=2, steps=())
LONG = MoveWait(for_s=600)


def waits(row: InstanceRow, order: MoveInstance) -> InstanceRow:
    assert problem_with(row, order) is None
    wait = wait_of(order)
    assert wait is not None
    kept = KeptRequest(b"digest", msgspec.msgpack.encode(order))
    return move_waits(row, order, wait, NOON, kept=kept, reason="no host among 2", no_valid_host=FUNNEL)


def a_waiting(state: str = "active", kind: str = "migrate", **told: object) -> InstanceRow:
    row = waits(a_row(state, **told), an_order(kind, wait=LONG))
    return structs.replace(row, kept=None)


def goes(row: InstanceRow) -> InstanceRow:
    """The row whose move begins, since a host has room."""
    order = an_order("migrate", wait=LONG)
    now = NOON + timedelta(seconds=60)
    after = begun(moved(before_wait(row), order, (H2,), now, timeout_s=3600, confirm_s=600), row)
    return structs.replace(after, has_waited=False, unsaid=False)


def refused_in_cell(row: InstanceRow, *, is_refused: bool = True, **told: object) -> InstanceState:
    """The state that the cell tells when placement has refused each of the hosts."""
    assert row.told.move is not None
    failure = AttemptFailed(attempt=2, host="h2", reason="VCPU asked 4, free 0", is_refused=is_refused)
    state = structs.replace(
        row.told,
        sequence=row.told.sequence + 3,
        state="active",
        failures=(failure,),
        move=structs.replace(row.told.move, outcome="failed", failure="no other host took it"),
    )
    return structs.replace(state, **told)


@pytest.mark.parametrize(
    ("kind", "wait", "expected"),
    [
        ("unshelve", None, None),
        ("unshelve", MoveWait(for_s=60), MoveWaits(60, 0)),
        ("migrate", MoveWait(for_s=60, priority=7), MoveWaits(60, 7)),
        ("migrate", MoveWait(for_s=0), None),
        ("evacuate", None, MoveWaits(EVACUATION_WAIT_S, EVACUATION_PRIORITY)),
        ("evacuate", MoveWait(for_s=60), MoveWaits(60, EVACUATION_PRIORITY)),
        ("evacuate", MoveWait(priority=3), MoveWaits(EVACUATION_WAIT_S, 3)),
        ("evacuate", MoveWait(for_s=0), None),
    ],
)
def test_only_an_evacuation_waits_without_being_told_and_before_all_builds(
    kind: str, wait: MoveWait | None, expected: MoveWaits | None
) -> None:
    assert wait_of(an_order(kind, wait=wait)) == expected
    assert EVACUATION_PRIORITY > PRIORITY_MAX


@pytest.mark.parametrize(
    ("kind", "wait", "field"),
    [
        ("migrate", MoveWait(for_s=-1), "wait.for_s"),
        ("migrate", MoveWait(for_s=2_592_001), "wait.for_s"),
        ("migrate", MoveWait(), "wait.for_s"),
        ("migrate", MoveWait(for_s=60, priority=101), "wait.priority"),
        ("migrate", MoveWait(for_s=60, priority=-1), "wait.priority"),
        ("evacuate", MoveWait(priority=102), "wait.priority"),
    ],
)
def test_a_wrong_wait_is_refused_by_its_field(kind: str, wait: MoveWait, field: str) -> None:
    problem = problem_with(a_row(), an_order(kind, wait=wait))
    assert problem is not None
    assert problem.field == field


def test_no_other_order_is_taken_meanwhile() -> None:
    row = a_waiting()
    other = RequestId(UUID(int=8))
    problem = problem_with(row, an_order("migrate", request_id=other))
    assert problem is not None
    assert problem.reason == f"it waits for room to migrate, by request {UUID(int=7)}: abort that first"
    order = RebuildInstance(request_id=other, instance=ONE, image=Image(source="arch"))
    refused = rebuilt(row, order, NOON, timeout_s=60, why_no_work=lambda *_: "")
    assert isinstance(refused, BuildRejected)
    assert refused.reason == problem.reason


def test_an_abort_ends_the_wait_at_once_and_nothing_is_asked_of_the_cell() -> None:
    row = a_waiting()
    ended = move_ended(row, an_end("abort"), NOON, is_up)
    assert isinstance(ended, InstanceRow)
    assert (ended.told.state, ended.told.waiting, ended.has_waited, ended.due_at) == (
        "active",
        None,
        True,
        None,
    )
    assert messages_of(ended) == (InstanceWaiting(cell="c1", instance=ended.told),)
    assert move_ended(ended, an_end("abort"), NOON, is_up) is ended


def test_a_delete_ends_the_wait() -> None:
    row = after_delete(a_waiting(), DeleteInstance(instance=ONE), NOON)
    assert row is not None
    assert (row.told.state, row.told.waiting, row.told.no_valid_host, row.has_waited) == (
        "deleting",
        None,
        None,
        True,
    )
    (remove,) = messages_of(row)
    assert isinstance(remove, RemoveFromCell)
    gone = structs.replace(row.told, state="deleted", sequence=row.told.sequence + 1, move=None)
    over = heard(row, InstanceDeleted(cell="c1", instance=gone), NOON)
    assert over is not None
    assert over.told.move is not None
    assert (over.told.state, over.told.move.outcome) == ("deleted", "aborted")


def test_a_wait_is_overdue_at_its_end_and_not_before() -> None:
    row = a_waiting()
    assert overdue(row, NOON + timedelta(seconds=599)) is None
    over = overdue(row, NOON + timedelta(seconds=600))
    assert over is not None
    assert over.told.move is not None
    assert (over.told.state, over.told.move.outcome) == ("active", "failed")


def test_a_move_waits_again_if_others_got_the_room_before_its_cell() -> None:
    row = goes(a_waiting())
    said = refused_in_cell(row)
    assert is_to_wait_again(said, NOON)

    again = heard(row, InstanceActive(cell="c1", instance=said), NOON + timedelta(seconds=90))

    assert again is not None
    assert again.told.waiting is not None
    assert again.told.waiting.until == NOON + timedelta(seconds=600)
    assert again.told.waiting.since == NOON
    assert "h2: VCPU asked 4, free 0" in again.told.waiting.reason
    assert again.told.sequence > said.sequence
    assert again.kept is not None
    assert again.kept.digest == b"digest"
    assert again.told.move is not None
    assert again.told.move.ends_by == again.told.move.waits_until == NOON + timedelta(seconds=600)
    assert messages_of(again) == (InstanceWaiting(cell="c1", instance=again.told),)
    (entry,) = changes_between(row, again, "")
    assert (entry.number, entry.outcome, entry.ended_at) == (11, "waiting", None)


@pytest.mark.parametrize(
    "changes",
    [{"is_refused": False}, {"failures": ()}, {"state": "error", "keeps_share": False}],
    ids=["a host has tried it", "nothing is told of hosts", "its host is lost"],
)
def test_a_move_that_failed_otherwise_does_not_wait_again(changes: dict[str, object]) -> None:
    row = goes(a_waiting())
    said = refused_in_cell(row, **changes)  # type: ignore[arg-type]
    event = InstanceFailed if said.state == "error" else InstanceActive
    after = heard(row, event(cell="c1", instance=said), NOON)
    assert after is not None
    assert (after.told.waiting, after.told.move and after.told.move.outcome) == (None, "failed")


def test_a_move_that_is_to_be_aborted_does_not_wait_again() -> None:
    row = goes(a_waiting())
    asked = move_ended(row, an_end("abort", request_id=an_order().request_id), NOON, is_up)
    assert isinstance(asked, InstanceRow)
    # The cell had ended the move before this order came.
    after = heard(asked, InstanceActive(cell="c1", instance=refused_in_cell(row)), NOON)
    assert after is not None
    assert after.told.waiting is None
    assert after.told.move is not None
    assert after.told.move.outcome == "failed"
