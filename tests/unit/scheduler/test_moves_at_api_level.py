"""Orders to move instances, as the API level judges them; and moves that wait for room: what their rows keep, what ends them, and what they say."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from bus.messages.build import (
    AttemptFailed,
    BuildInstance,
    BuildRejected,
    DeleteInstance,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceMoved,
    InstanceState,
    InstanceWaiting,
    RebuildInstance,
)
from bus.messages.cell import RemoveFromCell
from bus.messages.moves import Change, EndMove, MoveInstance, MoveWait
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.inventories import Choice
from engine.refusals import NoValidHost
from engine.requests.reading import PRIORITY_MAX
from scheduler_worker.core.instances.history import changes_between
from scheduler_worker.core.instances.lifecycle import after_delete, heard, overdue
from scheduler_worker.core.instances.moves import (
    EVACUATION_PRIORITY,
    EVACUATION_WAIT_S,
    MoveRoom,
    MoveWaits,
    before_wait,
    begun,
    move_ended,
    move_waits,
    moved,
    problem_with,
    wait_of,
)
from scheduler_worker.core.instances.resizes import rebuilt, refused
from scheduler_worker.core.instances.rows import InstanceRow, KeptRequest, accepted
from tests.contracts.placement_orders import an_id
from tests.narrowing import must_be, present
from tests.unit.conductor.cell import choice
from tests.unit.scheduler.rows_told import Case, Happening, check

CellEvent = InstanceActive | InstanceDeleted | InstanceFailed | InstanceMoved
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
    move = structs.replace(present(row.told.move), outcome=outcome, destination="h2")
    state = structs.replace(
        row.told, sequence=row.told.sequence + 1, state="active" if outcome else "moved", host=host, move=move
    )
    event = (InstanceActive if outcome else InstanceMoved)(cell="c1", instance=state)
    return present(heard(row, event, NOON))


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
            a_row("error", keeps_share=True),
            an_order(),
            "instance",
            "it is error: to migrate, it must be active or stopped",
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
        (a_row(), an_order(source="h9"), "source", "it is on h1"),
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
    refused = must_be(BuildRejected, problem_with(row, order))
    assert (refused.field, refused.reason) == (field, why)


@pytest.mark.parametrize(
    ("row", "kind"),
    [
        (a_row("shelved"), "evacuate"),
        (a_row("stopped"), "migrate"),
        (a_row("stopped"), "evacuate"),
        (a_row("stopped"), "start"),
        (a_row("stopped"), "stop"),
        (a_row("active"), "start"),
        (a_row("shelved"), "offload"),
        (a_row("active"), "offload"),
        (a_row("shelved"), "unshelve"),
        (a_row("offloaded"), "unshelve"),
        (a_row("error", keeps_share=True), "evacuate"),
    ],
)
def test_what_is_shelved_offloaded_or_in_error_with_its_host_may_go_on(row: InstanceRow, kind: str) -> None:
    assert problem_with(row, an_order(kind)) is None


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
    refused = must_be(BuildRejected, move_ended(row, an_end(how), NOON, is_up))
    assert refused.reason == why


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


# Moves that wait for room


FUNNEL = NoValidHost(hosts=2, steps=())
LONG = MoveWait(for_s=600)


def waits(row: InstanceRow, order: MoveInstance) -> InstanceRow:
    assert problem_with(row, order) is None
    wait = present(wait_of(order))
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
    problem = present(problem_with(a_row(), an_order(kind, wait=wait)))
    assert problem.field == field


def ends(how: str, *, down: str = "", **fields: object) -> Happening:
    return lambda row: move_ended(row, an_end(how, **fields), NOON, lambda _cell, host: host != down)


def deletes(row: InstanceRow) -> InstanceRow | None:
    return after_delete(row, DeleteInstance(instance=ONE), NOON)


def at(seconds: float) -> Happening:
    return lambda row: overdue(row, NOON + timedelta(seconds=seconds))


def hears(kind: type[CellEvent], **told: object) -> Happening:
    """Of the next state, from the cell."""

    def hear(row: InstanceRow) -> InstanceRow | None:
        state = structs.replace(row.told, sequence=row.told.sequence + 1, changed_at=NOON, **told)
        return heard(row, kind(cell="c1", instance=state), NOON)

    return hear


def is_refused_there(**told: Any) -> Happening:
    """Each of the hosts has, when its cell comes to the move."""
    event = InstanceFailed if told.get("state") == "error" else InstanceActive
    return lambda row: heard(
        row, event(cell="c1", instance=refused_in_cell(row, **told)), NOON + timedelta(seconds=90)
    )


OTHER = RequestId(UUID(int=8))
TO_CONFIRM = arrived(
    taken(a_row(), an_order("resize", flavor=Flavor(name="large", vcpus=8)), next_spec=b"large")
)
WAITS_ALREADY = f"instance {ONE}: it waits for room to migrate, by request {UUID(int=7)}: abort that first"
FAILED_OTHERWISE: dict[str, dict[str, Any]] = {
    "a host has tried it": {"is_refused": False},
    "nothing is told of hosts": {"failures": ()},
    "its host is lost": {"state": "error", "keeps_share": False},
}
CASES: dict[str, Case] = {
    "a move is not reverted to a host that is down but it is confirmed": (
        arrived(taken(a_row())),
        [
            (
                ends("revert", down="h1"),
                "how revert: its first host h1 is down, and the instance would be destroyed where it runs now: confirm the move",
            ),
            (ends("confirm", down="h1"), {}),
        ],
    ),
    "an end names its move": (
        arrived(taken(a_row())),
        [
            (
                ends("confirm", request_id=OTHER),
                f"request_id {OTHER}: the instance has no such move: its last move is by request {UUID(int=7)}",
            )
        ],
    ),
    "a resize counts when it is confirmed": (
        TO_CONFIRM,
        [
            (lambda row: structs.replace(row, unsaid=False), {"current_spec": b"small"}),
            (lambda row: arrived(row, "confirmed"), {"current_spec": b"large"}),
        ],
    ),
    "a resize does not count when it is reverted": (
        TO_CONFIRM,
        [(lambda row: arrived(row, "reverted", "h1"), {"current_spec": b"small", "next_spec": b""})],
    ),
    "a delete ends the move that goes on": (
        taken(a_row()),
        [(deletes, {"changes": [("migrate", 11, "deleted"), ("delete", 12, "")]})],
    ),
    "a delete is no end of a move that is over": (
        arrived(taken(a_row()), "confirmed"),
        [(deletes, {"changes": [("delete", 13, "")]})],
    ),
    "no other order is taken while a move waits": (
        a_waiting(),
        [
            (lambda row: problem_with(row, an_order("migrate", request_id=OTHER)), WAITS_ALREADY),
            (
                lambda row: rebuilt(
                    row,
                    RebuildInstance(request_id=OTHER, instance=ONE, image=Image(source="arch")),
                    NOON,
                    timeout_s=60,
                    why_no_work=lambda *_: "",
                ),
                WAITS_ALREADY,
            ),
        ],
    ),
    "an abort ends the wait at once and nothing is asked of the cell": (
        a_waiting(),
        [
            (
                ends("abort"),
                {
                    "told.state": "active",
                    "told.waiting": None,
                    "has_waited": True,
                    "due_at": None,
                    "messages": [InstanceWaiting],
                },
            ),
            (ends("abort"), None),
        ],
    ),
    "a delete ends the wait": (
        a_waiting(),
        [
            (
                deletes,
                {
                    "told.state": "deleting",
                    "told.waiting": None,
                    "told.no_valid_host": None,
                    "has_waited": True,
                    "messages": [RemoveFromCell],
                },
            ),
            (
                hears(InstanceDeleted, state="deleted", move=None),
                {"told.state": "deleted", "told.move.outcome": "aborted"},
            ),
        ],
    ),
    "a wait is overdue at its end and not before": (
        a_waiting(),
        [(at(599), None), (at(600), {"told.state": "active", "told.move.outcome": "failed"})],
    ),
    "a move waits again if others got the room before its cell": (
        goes(a_waiting()),
        [
            (
                is_refused_there(),
                {
                    "told.waiting.until": NOON + timedelta(seconds=600),
                    "told.waiting.since": NOON,
                    "told.waiting.reason": "others got the room: h2: VCPU asked 4, free 0",
                    "told.sequence": 16,
                    "kept.digest": b"digest",
                    "told.move.ends_by": NOON + timedelta(seconds=600),
                    "told.move.waits_until": NOON + timedelta(seconds=600),
                    "messages": [InstanceWaiting],
                    "changes": [("migrate", 11, "waiting")],
                },
            )
        ],
    ),
    **{
        f"a move that failed otherwise does not wait again: {how}": (
            goes(a_waiting()),
            [(is_refused_there(**told), {"told.waiting": None, "told.move.outcome": "failed"})],
        )
        for how, told in FAILED_OTHERWISE.items()
    },
    # The cell had ended the move before this order came.
    "a move that is to be aborted does not wait again": (
        goes(a_waiting()),
        [
            (ends("abort"), {}),
            (is_refused_there(), {"told.waiting": None, "told.move.outcome": "failed"}),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_a_move_and_of_its_row(case: str) -> None:
    check(CASES[case])


def test_an_instance_that_stops_by_itself_has_an_entry_that_says_why() -> None:
    row = a_row()
    after = must_be(InstanceRow, hears(InstanceMoved, state="stopped", reason="its guest was killed")(row))

    (change,) = changes_between(row, after, "")

    told = (change.what, change.outcome, change.failure, change.source, change.by, change.ended_at)
    assert told == ("stopped", "by itself", "its guest was killed", "h1", "", NOON)
    assert changes_between(after, after, "") == ()


def test_a_delete_that_ends_a_move_is_named_as_its_end() -> None:
    gone = present(deletes(taken(a_row())))
    move, delete = changes_between(taken(a_row()), gone, "moor-app-shop")
    assert (move.ended_at, move.ended_by, move.by, delete.what) == (NOON, "moor-app-shop", "", "delete")
