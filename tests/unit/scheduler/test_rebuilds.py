"""Which orders to rebuild an instance are taken, once each, and what its cell says of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceState,
    Move,
    Rebuild,
    RebuildInstance,
)
from engine.flavors import Image, InstanceId, RequestId
from scheduler_worker.core.instances.history import details_of
from scheduler_worker.core.instances.lifecycle import deleted_unseen, heard
from scheduler_worker.core.instances.resizes import RebuildImage, rebuilt
from scheduler_worker.core.instances.resizes import refused as refused_order
from scheduler_worker.core.instances.rows import (
    ACTIVE,
    ERROR,
    MOVED,
    MOVING,
    REBUILDING,
    SHELVED,
    InstanceRow,
    accepted,
    messages_of,
)
from tests.contracts.placement_orders import an_id

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
ONE = InstanceId(an_id("one"))
NEW = Image(source="http://images/fedora", checksum="1b2c")
OTHER = Image(source="http://images/debian", checksum="0a1b")
A_MOVE = Move(
    request_id=RequestId(an_id("move")),
    number=102,
    kind="migrate",
    source="n1",
    ends_by=NOON + timedelta(hours=1),
)


def an_order(number: int = 1, **fields: Any) -> RebuildInstance:
    order = RebuildInstance(request_id=RequestId(an_id(f"rebuild-{number}")), instance=ONE, image=NEW)
    return structs.replace(order, **fields)


def a_row(state: str = ACTIVE, **told: Any) -> InstanceRow:
    build = BuildInstance(request_id=RequestId(an_id("build")), project="shop")
    (row,) = accepted(build, (ONE,), NOON, NOON + timedelta(hours=2))
    values = {"sequence": 102, "cell": "c1", "host": "n1", "attempt": 1, **told}
    return structs.replace(row, told=structs.replace(row.told, state=state, **values), heard=102)


def judged(
    row: InstanceRow | None, order: RebuildInstance | None = None, down: str = ""
) -> InstanceRow | BuildRejected:
    def why_no_work(_cell: str, host: str) -> str:
        return f"{host} is down" if host == down else ""

    return rebuilt(
        row, order or an_order(), NOON, timeout_s=7_200, why_no_work=why_no_work, image_of=image_of
    )


def image_of(_: InstanceRow, order: RebuildInstance) -> RebuildImage | BuildRejected:
    """Of the stored images, `debian` has properties, and no host may run any other."""
    if order.image is not None:
        return RebuildImage(order.image)
    if order.image_name == "debian":
        return RebuildImage(OTHER, {"os_type": "linux"}, b"its needs")
    return refused_order(order, "image_name", order.image_name, "its host cannot run it")


def taken(row: InstanceRow, order: RebuildInstance | None = None) -> InstanceRow:
    verdict = judged(row, order)
    assert isinstance(verdict, InstanceRow), verdict
    return verdict


def refused(row: InstanceRow | None, order: RebuildInstance | None = None) -> BuildRejected:
    verdict = judged(row, order)
    assert isinstance(verdict, BuildRejected), verdict
    return verdict


def said(
    kind: type[InstanceActive | InstanceFailed | InstanceDeleted],
    row: InstanceRow,
    sequence: int,
    rebuild: Rebuild | None,
    **fields: Any,
) -> InstanceActive | InstanceFailed | InstanceDeleted:
    values = {"state": ACTIVE, "host": "n1", "cell": "c1", "changed_at": NOON, **fields}
    state = InstanceState(
        id=row.id, request_id=row.told.request_id, sequence=sequence, rebuild=rebuild, **values
    )
    return kind(cell="c1", instance=state)


@pytest.mark.parametrize("seconds", [0, 86_401])
def test_a_deadline_that_makes_no_sense_is_refused(seconds: int) -> None:
    answer = refused(a_row(), an_order(deadline_s=seconds))

    assert (answer.field, answer.value) == ("deadline_s", str(seconds))


def test_an_order_that_comes_again_changes_nothing_while_it_is_done_and_after() -> None:
    row = taken(a_row())
    assert taken(row) is row
    done = heard(row, said(InstanceActive, row, 104, row.told.rebuild), NOON)
    assert done is not None

    assert taken(done) is done
    second = taken(done, an_order(2))
    assert second.told.state == REBUILDING
    # The first, delivered once more, though another came after it.
    assert taken(second) is second


@pytest.mark.parametrize(
    ("row", "why"),
    [
        (None, "there is no such instance"),
        (deleted_unseen(ONE, NOON), "there is no such instance"),
        *(
            (a_row(state), f"it is {state}: only an active")
            for state in ("accepted", "placed", SHELVED, "deleting")
        ),
        (a_row(ERROR), "it is error: only an active instance can be rebuilt, or one in error that keeps"),
        (a_row(ERROR, keeps_share=True, host=""), "it is error: only an active"),
        (a_row(MOVING, move=A_MOVE), f"it moves already, by request {A_MOVE.request_id} (migrate)"),
        (a_row(MOVED, move=A_MOVE), "it has moved, and that is not confirmed or reverted yet, by request"),
        (a_row("deleted", keeps_share=True), "it is deleted: only an active"),
    ],
)
def test_what_is_not_active_is_refused_with_field_and_value(row: InstanceRow | None, why: str) -> None:
    answer = refused(row)

    assert (answer.request_id, answer.field, answer.value) == (an_order().request_id, "instance", str(ONE))
    assert why in answer.reason


def test_nothing_is_rebuilt_on_a_host_that_is_down_and_a_repeated_order_is_answered_all_the_same() -> None:
    answer = judged(a_row(), down="n1")
    row = taken(a_row())

    assert isinstance(answer, BuildRejected)
    assert (answer.field, answer.value, answer.reason) == ("instance", str(ONE), "n1 is down")
    assert judged(row, down="n1") is row


def test_the_active_of_before_does_not_end_a_rebuild() -> None:
    """A word that was on its way when the rebuild was ordered, and one about an earlier rebuild that was done late."""
    first = taken(a_row())
    earlier = first.told.rebuild

    for late in (None, earlier):
        row = (
            first
            if late is None
            else taken(structs.replace(first, told=structs.replace(first.told, state=ACTIVE)), an_order(2))
        )
        after = heard(row, said(InstanceActive, row, 110, late), NOON)
        assert after is not None
        assert (after.told, after.heard, after.unsaid) == (row.told, 110, True)
        assert messages_of(after) == messages_of(row)


def test_its_cells_word_about_it_ends_a_rebuild() -> None:
    row = taken(a_row())
    rebuild = row.told.rebuild
    assert rebuild is not None

    done = heard(row, said(InstanceActive, row, 105, rebuild), NOON)
    failed = heard(
        row,
        said(
            InstanceFailed,
            row,
            105,
            structs.replace(rebuild, failure="no disk"),
            state=ERROR,
            keeps_share=True,
            reason="its rebuild failed: no disk",
        ),
        NOON,
    )

    assert done is not None
    assert (done.told.state, done.told.rebuild, done.told.sequence) == (ACTIVE, rebuild, 105)
    assert messages_of(done) == ()
    assert failed is not None
    assert (failed.told.state, failed.told.keeps_share) == (ERROR, True)
    assert not failed.may_lose(is_new=False)
    again = taken(failed, an_order(2)).told
    assert (again.state, again.reason, again.keeps_share) == (REBUILDING, "", False)


BY_NAME = an_order(image=None, image_name="debian")


def test_a_stored_image_counts_with_its_needs_when_its_rebuild_is_done() -> None:
    row = taken(a_row(), BY_NAME)
    rebuild = row.told.rebuild
    assert rebuild is not None
    assert (rebuild.image, rebuild.image_name, rebuild.image_properties) == (
        OTHER,
        "debian",
        {"os_type": "linux"},
    )
    before = row.current_spec
    assert details_of(row).image == ""

    after = heard(row, said(InstanceActive, row, 104, rebuild), NOON)

    assert after is not None
    assert (before, after.current_spec, after.next_spec) == (row.spec, b"its needs", b"")
    assert details_of(after).image == "debian"


def test_a_failed_rebuild_leaves_the_needs_and_one_that_is_done_late_does_not() -> None:
    row = taken(a_row(), BY_NAME)
    rebuild = row.told.rebuild
    assert rebuild is not None
    failed = structs.replace(rebuild, failure="no disk")

    runs_on = heard(row, said(InstanceActive, row, 104, failed), NOON)
    assert runs_on is not None
    assert (runs_on.current_spec, runs_on.next_spec, details_of(runs_on).image) == (row.spec, b"", "")

    given_up = heard(row, said(InstanceFailed, row, 104, failed, state=ERROR, keeps_share=True), NOON)
    assert given_up is not None
    assert given_up.current_spec == row.spec
    late = heard(given_up, said(InstanceActive, row, 105, rebuild), NOON)
    assert late is not None
    assert late.current_spec == b"its needs"


def test_an_order_names_one_image_and_a_repeated_one_is_the_same_whatever_is_stored_now() -> None:
    row = taken(a_row(), BY_NAME)

    assert taken(row, BY_NAME) is row
    assert refused(row, an_order()).field == "request_id"
    assert refused(a_row(), an_order(image=None)).field == "image"
    both = refused(a_row(), an_order(image_name="debian"))
    assert (both.field, both.value) == ("image_name", "debian")
    assert refused(a_row(), an_order(image=None, image_name="arch")).reason == "its host cannot run it"
