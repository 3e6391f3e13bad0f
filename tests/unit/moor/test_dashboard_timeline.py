"""The timeline of an instance: everything in its order, with who ordered it."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec import structs

from bus.messages.build import AttemptFailed, ClaimRefused, InstanceDetails, InstanceState
from bus.messages.moves import Change
from bus.messages.planning import Explanation
from engine.flavors import InstanceId, RequestId
from moor.dashboard.instance_pages import timeline_of

ID, REQUEST, MOVE = InstanceId(UUID(int=1)), RequestId(UUID(int=2)), RequestId(UUID(int=3))
BEGAN = datetime(2026, 1, 1, tzinfo=UTC)


def after(seconds: int) -> datetime:
    return BEGAN + timedelta(seconds=seconds)


def test_what_happened_is_told_in_its_order_with_who_ordered_it() -> None:
    state = InstanceState(
        id=ID,
        request_id=REQUEST,
        sequence=9,
        state="active",
        refusals=(ClaimRefused(host="h1", reason="full"),),
        failures=(AttemptFailed(attempt=1, host="h2", reason="no image"),),
        changed_at=after(30),
    )
    details = InstanceDetails(id=ID, accepted_at=after(1), placed_at=after(2))
    changes = [
        Change(
            instance=ID,
            number=1,
            what="boot",
            cell="c1",
            asked_at=BEGAN,
            by="moor-app-shop",
            destination="h2",
            ended_at=after(5),
            outcome="active",
        ),
        Change(
            instance=ID,
            number=2,
            what="migrate",
            cell="c1",
            asked_at=after(10),
            by="moor-operator",
            request_id=MOVE,
            source="h3",
            destination="h4",
            ended_at=after(30),
            ended_by="moor-app-shop",
            outcome="confirmed",
        ),
    ]
    moved = Explanation(state=state, chosen_at=after(11), what="migrate", request_id=MOVE, chosen="h4")

    steps = timeline_of(state, details, changes, [moved])

    assert [(step.what, step.by) for step in steps] == [
        ("boot requested", "moor-app-shop"),
        ("the claim on h1 was refused: full", ""),
        ("a host was chosen: h2", ""),
        ("attempt 1 on h2 failed: no image", ""),
        ("migrate requested: h3 → h4", "moor-operator"),
        ("a host was chosen for it: h4", ""),
        ("migrate: confirmed", "moor-app-shop"),
        ("active since then", ""),
    ]


def test_an_instance_of_which_little_is_known_has_a_timeline_too() -> None:
    state = InstanceState(id=ID, request_id=REQUEST, sequence=1, state="error", reason="no host")

    assert timeline_of(state, None, [], []) == []
    known = timeline_of(structs.replace(state, changed_at=BEGAN), None, [], [])
    assert [(step.what, step.kind) for step in known] == [("error since then: no host", "trouble")]
