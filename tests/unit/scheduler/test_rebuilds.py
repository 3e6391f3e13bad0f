"""Which orders to rebuild an instance are taken, once each, and what its cell says of them."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    InstanceActive,
    InstanceFailed,
    InstanceState,
    Move,
    Rebuild,
    RebuildInstance,
)
from bus.messages.cell import RebuildInCell
from engine.flavors import Image, InstanceId, RequestId
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
)
from tests.contracts.placement_orders import an_id
from tests.narrowing import must_be, present
from tests.unit.scheduler.rows_told import Case, Happening, check

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
    return rebuilt(
        row,
        order or an_order(),
        NOON,
        timeout_s=7_200,
        why_no_work=lambda _cell, host: f"{host} is down" if host == down else "",
        image_of=image_of,
    )


def image_of(_: InstanceRow, order: RebuildInstance) -> RebuildImage | BuildRejected:
    """Of the stored images, `debian` has properties, and no host may run any other."""
    if order.image is not None:
        return RebuildImage(order.image)
    if order.image_name == "debian":
        return RebuildImage(OTHER, {"os_type": "linux"}, b"its needs")
    return refused_order(order, "image_name", order.image_name, "its host cannot run it")


def taken(row: InstanceRow, order: RebuildInstance | None = None) -> InstanceRow:
    return must_be(InstanceRow, judged(row, order))


def refused(row: InstanceRow | None, order: RebuildInstance | None = None) -> BuildRejected:
    return must_be(BuildRejected, judged(row, order))


def said(
    kind: type[InstanceActive | InstanceFailed],
    row: InstanceRow,
    sequence: int,
    rebuild: Rebuild | None,
    **fields: Any,
) -> InstanceActive | InstanceFailed:
    values = {"state": ACTIVE, "host": "n1", "cell": "c1", "changed_at": NOON, **fields}
    state = InstanceState(
        id=row.id, request_id=row.told.request_id, sequence=sequence, rebuild=rebuild, **values
    )
    return kind(cell="c1", instance=state)


TAKEN, BY_NAME = taken(a_row()), an_order(image=None, image_name="debian")
EARLIER = TAKEN.told.rebuild
SECOND = taken(structs.replace(TAKEN, told=structs.replace(TAKEN.told, state=ACTIVE)), an_order(2))
NAMED = taken(a_row(), BY_NAME)
DUPLICATE = "duplicate id: a rebuild with this id and another image was taken before"


def orders(number: int = 1, *, down: str = "", **fields: Any) -> Happening:
    return lambda row: judged(row, an_order(number, **fields), down)


def hears(
    kind: type[InstanceActive | InstanceFailed], sequence: int, *, failure: str = "", **fields: Any
) -> Happening:
    """About its rebuild, unless another is given."""

    def hear(row: InstanceRow) -> InstanceRow | None:
        values = {"rebuild": structs.replace(present(row.told.rebuild), failure=failure), **fields}
        return heard(row, said(kind, row, sequence, **values), NOON)

    return hear


CASES: dict[str, Case] = {
    "an order that comes again changes nothing while it is done and after": (
        a_row(),
        [
            (orders(), {"told.state": REBUILDING}),
            (orders(), None),
            (hears(InstanceActive, 104), {"told.state": ACTIVE}),
            (orders(), None),
            (orders(2), {"told.state": REBUILDING}),
            # The first, delivered once more, though another came after it.
            (orders(), None),
        ],
    ),
    "a deadline that makes no sense is refused": (
        a_row(),
        [
            (orders(deadline_s=seconds), f"deadline_s {seconds}: a deadline is 1 to 86400 seconds away")
            for seconds in (0, 86_401)
        ],
    ),
    "nothing is rebuilt on a host that is down": (
        a_row(),
        [(orders(down="n1"), f"instance {ONE}: n1 is down")],
    ),
    "a repeated order is answered although its host is down": (TAKEN, [(orders(down="n1"), None)]),
    **{
        f"the active of before does not end a rebuild: {how}": (
            row,
            [
                (
                    hears(InstanceActive, 110, rebuild=late),
                    {"told": row.told, "heard": 110, "unsaid": True, "messages": [RebuildInCell]},
                )
            ],
        )
        for how, row, late in (
            ("a word that was on its way when it was ordered", TAKEN, None),
            ("an earlier rebuild that was done late", SECOND, EARLIER),
        )
    },
    "its cell's word about it ends a rebuild": (
        TAKEN,
        [
            (
                hears(InstanceActive, 105),
                {"told.state": ACTIVE, "told.rebuild": EARLIER, "told.sequence": 105, "messages": []},
            )
        ],
    ),
    "a rebuild that failed keeps its share and may be ordered again": (
        TAKEN,
        [
            (
                hears(
                    InstanceFailed,
                    105,
                    failure="no disk",
                    state=ERROR,
                    keeps_share=True,
                    reason="its rebuild failed: no disk",
                ),
                {"told.state": ERROR, "told.keeps_share": True, "may_be_lost": False},
            ),
            (orders(2), {"told.state": REBUILDING, "told.reason": "", "told.keeps_share": False}),
        ],
    ),
    "a stored image counts with its needs when its rebuild is done": (
        a_row(),
        [
            (
                orders(image=None, image_name="debian"),
                {
                    "told.rebuild.image": OTHER,
                    "told.rebuild.image_name": "debian",
                    "told.rebuild.image_properties": {"os_type": "linux"},
                    "current_spec": a_row().spec,
                    "details.image": "",
                },
            ),
            (
                hears(InstanceActive, 104),
                {"current_spec": b"its needs", "next_spec": b"", "details.image": "debian"},
            ),
        ],
    ),
    "a failed rebuild leaves the needs": (
        NAMED,
        [
            (
                hears(InstanceActive, 104, failure="no disk"),
                {"current_spec": NAMED.spec, "next_spec": b"", "details.image": ""},
            )
        ],
    ),
    "a rebuild that is done late changes the needs": (
        NAMED,
        [
            (
                hears(InstanceFailed, 104, failure="no disk", state=ERROR, keeps_share=True),
                {"current_spec": NAMED.spec},
            ),
            (hears(InstanceActive, 105), {"current_spec": b"its needs"}),
        ],
    ),
    "a repeated order is the same whatever is stored now": (
        NAMED,
        [
            (orders(image=None, image_name="debian"), None),
            (orders(), f"request_id {BY_NAME.request_id}: {DUPLICATE}"),
        ],
    ),
    "an order names one image": (
        a_row(),
        [
            (orders(image=None), "image : it is not given, nor is image_name"),
            (orders(image_name="debian"), "image_name debian: image is given, too: an order has either"),
            (orders(image=None, image_name="arch"), "image_name arch: its host cannot run it"),
        ],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_becomes_of_a_rebuild_and_of_its_row(case: str) -> None:
    check(CASES[case])


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
