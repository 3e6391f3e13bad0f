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
    InstanceDeleted,
    InstanceMoved,
)
from bus.messages.cell import EndMoveInCell, MoveInCell
from bus.messages.moves import Change, EndMove, MoveInstance
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import Choice
from scheduler_worker.core.instances.history import changes_between
from scheduler_worker.core.instances.lifecycle import after_delete, heard
from scheduler_worker.core.instances.moves import (
    MoveRoom,
    is_taken,
    move_ended,
    moved,
    problem_with,
    stays_on_host,
)
from scheduler_worker.core.instances.resizes import refused
from scheduler_worker.core.instances.rows import InstanceRow, accepted, messages_of
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


def test_a_move_goes_to_the_cell_with_its_number_and_its_hosts() -> None:
    row = taken(a_row())
    assert (row.told.state, row.told.sequence) == ("moving", 11)
    assert row.told.move is not None
    assert (row.told.move.number, row.told.move.source, row.told.move.confirm_s) == (11, "h1", 600)
    assert messages_of(row) == (MoveInCell(cell="c1", instance=ONE, move=row.told.move, choices=(H2,)),)
    assert is_taken(row, an_order())


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


def test_an_offloaded_instance_may_be_unshelved_on_hosts_that_are_named() -> None:
    assert problem_with(a_row("offloaded"), an_order("unshelve", hosts=("h2",))) is None
    assert [stays_on_host(a_row(each), "unshelve") for each in ("shelved", "offloaded")] == [True, False]


def test_the_word_of_an_offloaded_instance_is_kept_as_the_cell_tells_it() -> None:
    row = taken(a_row(), an_order("offload"))
    move = structs.replace(row.told.move, outcome="done")  # type: ignore[type-var]
    told = structs.replace(row.told, sequence=30, state="offloaded", host="", move=move)
    after = heard(row, InstanceMoved(cell="c1", instance=told), NOON)
    assert after is not None
    assert (after.told.state, after.told.host, after.unsaid) == ("offloaded", "", False)


def test_of_two_moves_at_once_the_second_gets_the_reason() -> None:
    refused = problem_with(taken(a_row()), an_order(request_id=RequestId(UUID(int=8))))
    assert refused is not None
    assert refused.reason == f"it moves already, by request {UUID(int=7)} (migrate)"


def test_of_confirm_and_revert_at_once_one_wins_and_the_other_gets_the_reason() -> None:
    there = arrived(taken(a_row()))
    confirmed = move_ended(there, an_end("confirm"), NOON, is_up)
    assert isinstance(confirmed, InstanceRow)
    (said,) = messages_of(confirmed)
    assert isinstance(said, EndMoveInCell)
    assert said.move.asked == "confirm"
    assert move_ended(confirmed, an_end("confirm"), NOON, is_up) is confirmed
    refused = move_ended(confirmed, an_end("revert"), NOON, is_up)
    assert isinstance(refused, BuildRejected)
    assert (refused.field, refused.value, refused.reason) == (
        "how",
        "revert",
        "the move is about to be confirmed",
    )


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


def test_words_from_before_the_move_do_not_end_it() -> None:
    row = taken(a_row())
    old = InstanceActive(cell="c1", instance=structs.replace(a_row().told, sequence=20))
    after = heard(row, old, NOON)
    assert after is not None
    assert (after.told.state, after.unsaid, after.choices) == ("moving", True, (H2,))


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


def test_each_step_of_a_move_is_one_change_of_the_history() -> None:
    before = a_row()
    begun = taken(before)
    (first,) = changes_between(before, begun, "moor-operator")
    assert (first.number, first.what, first.by, first.source, first.cell) == (
        11,
        "migrate",
        "moor-operator",
        "h1",
        "c1",
    )
    there = arrived(begun)
    (then,) = changes_between(begun, there, "")
    assert then.destination == "h2"
    asked = move_ended(there, an_end("revert"), NOON, is_up)
    assert isinstance(asked, InstanceRow)
    (then,) = changes_between(there, asked, "moor-app-shop")
    assert then.ended_by == "moor-app-shop"
    back = arrived(asked, "reverted", "h1")
    (last,) = changes_between(asked, back, "")
    assert (last.number, last.outcome, last.ended_at is not None, last.by) == (11, "reverted", True, "")


def test_what_a_cell_says_later_is_no_change_again() -> None:
    row = arrived(taken(a_row()), "confirmed")
    gone = InstanceDeleted(
        cell="c1", instance=structs.replace(row.told, sequence=row.told.sequence + 1, state="deleted")
    )
    after = heard(row, gone, NOON)
    assert after is not None
    (change,) = changes_between(row, after, "")
    assert change.what == "delete"


def test_the_host_that_was_chosen_first_counts_until_another_has_granted_its_share() -> None:
    (change,) = changes_between(a_row(), taken(a_row()), "moor-operator")
    assert change.destination == "h2"
    beyond = MoveRoom([change], 1, 0).take(taken(a_row(host="h3")), an_order())
    assert beyond is not None
    assert beyond.reason.startswith("host h2 has 1 moves")


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
