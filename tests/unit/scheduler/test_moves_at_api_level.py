"""Orders to move instances, as the API level judges them."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstanceActive,
    InstanceMoved,
)
from bus.messages.moves import Change, EndMove, MoveInstance
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import Choice
from scheduler_worker.core.instances.history import changes_between
from scheduler_worker.core.instances.lifecycle import after_delete, heard
from scheduler_worker.core.instances.moves import (
    MoveRoom,
    move_ended,
    moved,
    problem_with,
)
from scheduler_worker.core.instances.resizes import refused
from scheduler_worker.core.instances.rows import InstanceRow, accepted
from tests.contracts.placement_orders import an_id
from tests.unit.conductor.cell import choice

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
ONE = InstanceId(an_id("one"))
H2: Choice = choice("h2")


def is_up(_cell: str, _host: str) -> bool:
    return True


def a_row(state: str = "active", **told: object) -> InstanceRow:
    build = BuildInstance(request_id=RequestId(an_id("request")), project="shop")
    (row,) = accepted(build, (ONE,), NOON, NOON + timedelta(hours=1), b"small")
    return structs.replace(
        row,
        told=structs.replace(
            row.told, **{"state": state, "cell": "c1", "host": "h1", "sequence": 10, **told}
        ),
        heard=10,
    )


def an_order(kind: str = "migrate", **fields: object) -> MoveInstance:
    order = MoveInstance(request_id=RequestId(UUID(int=7)), instance=ONE, kind=kind)  # type: ignore[arg-type]
    return structs.replace(order, **fields)


def taken(row: InstanceRow, order: MoveInstance | None = None, **fields: object) -> InstanceRow:
    order = order or an_order()
    assert problem_with(row, order) is None
    row = moved(row, order, (H2,), NOON, timeout_s=3600, confirm_s=600)
    return structs.replace(row, **fields)


def an_end(how: str, **fields: object) -> EndMove:
    order = EndMove(request_id=RequestId(UUID(int=7)), instance=ONE, how=how)  # type: ignore[arg-type]
    return structs.replace(order, **fields)


def arrived(row: InstanceRow, outcome: str = "", host: str = "h2") -> InstanceRow:
    assert row.told.move is not None
    move = structs.replace(row.told.move, outcome=outcome, destination="h2")
    state = structs.replace(
        row.told, sequence=row.told.sequence + 1, state="active" if outcome else "moved", host=host, move=move
    )
    event = (InstanceActive if outcome else InstanceMoved)(cell="c1", instance=state)
    after = heard(row, event, NOON)
    assert after is not None
    return after


@pytest.mark.parametrize(
    ("row", "order", "field", "why"),
    [
        (None, an_order(), "instance", "there is no such instance"),
        (a_row(), an_order(project="other"), "instance", "there is no such instance"),
        (
            a_row("deleting"),
            an_order(),
            "instance",
            "it is deleting: to migrate, it must be active or stopped",
        ),
        (
            a_row("error"),
            an_order("evacuate"),
            "instance",
            "it is error: to evacuate, it must be active, stopped or shelved, or in error with its host",
        ),
        (
            a_row("active"),
            an_order("unshelve"),
            "instance",
            "it is active: to unshelve, it must be shelved or offloaded",
        ),
        (
            a_row("shelved"),
            an_order("live-migrate"),
            "instance",
            "it is shelved: to live-migrate, it must be active",
        ),
        (
            a_row("offloaded"),
            an_order("evacuate"),
            "instance",
            "it is offloaded: to evacuate, it must be active, stopped or shelved, or in error with its host",
        ),
        (
            a_row("offloaded"),
            an_order("offload"),
            "instance",
            "it is offloaded: to offload, it must be active or shelved",
        ),
        (
            a_row("shelved"),
            an_order("unshelve", hosts=("h2",)),
            "hosts",
            "it stays on its host, or leaves it for none: to unshelve it, name none",
        ),
        (a_row(), an_order("resize"), "flavor", "there is none: it says what size the instance gets"),
        (a_row(), an_order(flavor=Flavor(name="big")), "flavor", "only a resize has a flavor, not migrate"),
        (
            a_row(),
            an_order("shelve", hosts=("h2",)),
            "hosts",
            "it stays on its host, or leaves it for none: to shelve it, name none",
        ),
        (a_row(), an_order(deadline_s=0), "deadline_s", "a deadline is 1 to 86400 seconds away"),
        (
            a_row(),
            an_order(confirm_s=-1),
            "confirm_s",
            "a move is confirmed by itself after 0 to 2592000 seconds",
        ),
    ],
)
def test_what_cannot_be_moved_is_refused_by_field_and_reason(
    row: InstanceRow | None, order: MoveInstance, field: str, why: str
) -> None:
    refused = problem_with(row, order)
    assert isinstance(refused, BuildRejected)
    assert (refused.field, refused.reason) == (field, why)


def test_an_instance_in_error_that_keeps_its_host_may_be_evacuated() -> None:
    assert problem_with(a_row("error", keeps_share=True), an_order("evacuate")) is None
    assert problem_with(a_row("error", keeps_share=True), an_order("migrate")) is not None


@pytest.mark.parametrize(
    ("state", "kind"),
    [
        ("shelved", "evacuate"),
        ("stopped", "migrate"),
        ("stopped", "evacuate"),
        ("stopped", "start"),
        ("stopped", "stop"),
        ("active", "start"),
        ("shelved", "offload"),
        ("active", "offload"),
        ("shelved", "unshelve"),
        ("offloaded", "unshelve"),
    ],
)
def test_what_is_shelved_or_offloaded_may_go_on(state: str, kind: str) -> None:
    assert problem_with(a_row(state), an_order(kind)) is None


@pytest.mark.parametrize(
    ("row", "how", "why"),
    [
        (taken(a_row()), "confirm", "the instance has not arrived yet: abort the move, or wait"),
        (arrived(taken(a_row())), "abort", "the instance has arrived already: confirm or revert the move"),
        (arrived(taken(a_row()), "confirmed"), "revert", "the move is confirmed"),
        (arrived(taken(a_row()), "failed", "h1"), "abort", "the move is failed"),
    ],
)
def test_an_end_that_comes_too_early_or_too_late_gets_the_reason(
    row: InstanceRow, how: str, why: str
) -> None:
    refused = move_ended(row, an_end(how), NOON, is_up)
    assert isinstance(refused, BuildRejected)
    assert refused.reason == why


def test_a_move_is_not_reverted_to_a_host_that_is_down() -> None:
    there = arrived(taken(a_row()))
    refused = move_ended(there, an_end("revert"), NOON, lambda _cell, host: host != "h1")
    assert isinstance(refused, BuildRejected)
    assert refused.reason == (
        "its first host h1 is down, and the instance would be destroyed where it runs now: confirm the move"
    )
    assert isinstance(
        move_ended(there, an_end("confirm"), NOON, lambda _cell, host: host != "h1"), InstanceRow
    )


def test_an_end_names_its_move() -> None:
    refused = move_ended(
        arrived(taken(a_row())), an_end("confirm", request_id=RequestId(UUID(int=9))), NOON, is_up
    )
    assert isinstance(refused, BuildRejected)
    assert refused.reason == f"the instance has no such move: its last move is by request {UUID(int=7)}"


def test_a_resize_counts_when_it_is_confirmed_and_not_when_it_is_reverted() -> None:
    order = an_order("resize", flavor=Flavor(name="large", vcpus=8))
    there = arrived(taken(a_row(), order, next_spec=b"large"))
    assert there.current_spec == b"small"
    assert arrived(there, "confirmed").current_spec == b"large"
    assert arrived(there, "reverted", "h1").current_spec == b"small"
    assert arrived(there, "reverted", "h1").next_spec == b""


def test_hosts_and_cells_have_room_for_so_many_moves() -> None:
    going = [
        Change(
            instance=ONE, number=3, what="migrate", cell="c1", asked_at=NOON, source="h1", destination="h9"
        )
    ]
    order = an_order()
    assert MoveRoom(going, 0, 0).take(taken(a_row()), order) is None
    assert MoveRoom(going, 2, 2).take(taken(a_row()), order) is None
    at_host = MoveRoom(going, 1, 0).take(taken(a_row()), order)
    why = "host h1 has 1 moves under way, at most 1: ask again later"
    assert at_host == refused(order, "moves_per_host_max", 1, why)
    assert MoveRoom(going, 1, 0).take(taken(a_row(), an_order("evacuate")), order) is None
    in_cell = MoveRoom(going, 0, 1).take(taken(a_row()), order)
    why = "cell c1 has 1 moves under way, at most 1: ask again later"
    assert in_cell == refused(order, "moves_per_cell_max", 1, why)
    room = MoveRoom((), 1, 0)
    assert room.take(taken(a_row()), order) is None
    assert room.take(taken(a_row()), order) is not None


def test_a_delete_ends_the_move_that_goes_on() -> None:
    row = taken(a_row())
    gone = after_delete(row, DeleteInstance(instance=ONE), NOON)
    assert gone is not None
    move, delete = changes_between(row, gone, "moor-app-shop")
    assert (move.number, move.outcome, move.ended_at, move.ended_by, move.by) == (
        *(11, "deleted", NOON),
        *("moor-app-shop", ""),
    )
    assert (delete.what, delete.number) == ("delete", 12)
    over = arrived(taken(a_row()), "confirmed")
    gone = after_delete(over, DeleteInstance(instance=ONE), NOON)
    assert gone is not None
    assert [each.what for each in changes_between(over, gone, "")] == ["delete"]


def test_an_instance_that_stops_by_itself_has_an_entry_that_says_why() -> None:
    row = a_row()
    stopped = structs.replace(
        row.told,
        sequence=row.told.sequence + 1,
        state="stopped",
        reason="its guest was killed",
        changed_at=NOON,
    )
    after = heard(row, InstanceMoved(cell="c1", instance=stopped), NOON)
    assert after is not None

    (change,) = changes_between(row, after, "")

    told = (change.what, change.outcome, change.failure, change.source, change.by, change.ended_at)
    assert told == ("stopped", "by itself", "its guest was killed", "h1", "", NOON)
    assert changes_between(after, after, "") == ()
