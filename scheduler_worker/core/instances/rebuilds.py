"""Orders to rebuild an instance: each is accepted once, answered again when it is repeated, or refused.

An instance can be rebuilt while it is active, or in error if its host still has it: after a rebuild or a move that failed. Its
host must be up. There is one rebuild at a time. A delete ends it, and later events of the cell about it do not count.
"""

import hashlib
from collections.abc import Callable
from datetime import datetime, timedelta

import msgspec
from msgspec import Struct, structs

from bus.messages.build import BuildRejected, Image, InstanceState, Rebuild, RebuildInstance
from bus.messages.moves import EndMove, MoveInstance
from scheduler_worker.core.instances.rows import (
    ACTIVE,
    ERROR,
    MOVED,
    MOVING,
    NO_REQUEST,
    REBUILDING,
    InstanceRow,
    is_of,
)
from scheduler_worker.core.instances.specs import request_of
from scheduler_worker.core.requests.checking import DEADLINE_S_MAX

# How many requests for rebuilds and moves a row remembers. An older one would be done again if it was delivered again.
CHANGES_MAX = 16
DIGEST_BYTES = 16

_canonical = msgspec.json.Encoder(order="deterministic").encode


class RebuildImage(Struct, frozen=True):
    """The image that a rebuild gets. `properties` are those that count with it; None if they are those of the boot. `spec` is what
    the instance needs of a host then, encoded; empty if that does not change.
    """

    image: Image
    properties: dict[str, str] | None = None
    spec: bytes = b""


def rebuilt(
    row: InstanceRow | None,
    order: RebuildInstance,
    now: datetime,
    *,
    timeout_s: int,
    why_no_work: Callable[[str, str], str],
    image_of: Callable[[InstanceRow, RebuildInstance], RebuildImage | BuildRejected] | None = None,
) -> InstanceRow | BuildRejected:
    """The row with the rebuild on its way to the cell; the same object if the order was accepted before. `why_no_work` says
    why a cell's host of this name cannot work now, and `image_of` which image the instance gets, or why it cannot get that.
    """
    if row is None or row.told.request_id == NO_REQUEST or not is_of(row, order.project):
        return refused(order, "instance", order.instance, "there is no such instance")
    told, last = row.told, row.told.rebuild
    if order.request_id in row.changes:
        if last is not None and last.request_id == order.request_id and _is_another(last, order):
            return refused(
                order,
                "request_id",
                order.request_id,
                "duplicate id: a rebuild with this id and another image was taken before",
            )
        return problem_with_repeat(row, order) or row
    if problem := _problem_with(told, order, why_no_work):
        return problem
    wanted = (image_of or image_as_given)(row, order)
    return wanted if isinstance(wanted, BuildRejected) else _begun(row, order, wanted, now, timeout_s)


def _begun(
    row: InstanceRow, order: RebuildInstance, wanted: RebuildImage, now: datetime, timeout_s: int
) -> InstanceRow:
    told = row.told
    number = told.sequence + 1
    rebuild = Rebuild(
        request_id=order.request_id,
        number=number,
        image=wanted.image,
        image_name=order.image_name,
        image_properties=wanted.properties,
        ends_by=now + timedelta(seconds=timeout_s if order.deadline_s is None else order.deadline_s),
    )
    return structs.replace(
        with_order(row, order),
        told=structs.replace(
            told,
            sequence=number,
            state=REBUILDING,
            reason="",
            keeps_share=False,
            rebuild=rebuild,
            changed_at=now,
        ),
        order=None,
        next_spec=wanted.spec,
        unsaid=True,
    )


def image_as_given(row: InstanceRow, order: RebuildInstance) -> RebuildImage | BuildRejected:
    """An image that is not stored has no properties: those that count for the instance stay."""
    assert order.image is not None, "an order that names no stored image has an image"
    booted, now = request_of(row.spec), request_of(row.current_spec)
    if booted is None or now is None or booted.image_properties == now.image_properties:
        return RebuildImage(order.image)
    return RebuildImage(order.image, now.image_properties)


def _problem_with(
    told: InstanceState, order: RebuildInstance, why_no_work: Callable[[str, str], str]
) -> BuildRejected | None:
    if order.deadline_s is not None and not 1 <= order.deadline_s <= DEADLINE_S_MAX:
        reason = f"a deadline is 1 to {DEADLINE_S_MAX} seconds away"
        return refused(order, "deadline_s", order.deadline_s, reason)
    if reason := _why_not(told) or why_no_work(told.cell, told.host):
        return refused(order, "instance", order.instance, reason)
    return _problem_with_image(order)


def _problem_with_image(order: RebuildInstance) -> BuildRejected | None:
    if order.image is None:
        return None if order.image_name else refused(order, "image", "", "it is not given, nor is image_name")
    if not order.image_name:
        return None
    return refused(order, "image_name", order.image_name, "image is given, too: an order has either")


def _is_another(last: Rebuild, order: RebuildInstance) -> bool:
    return last.image_name != order.image_name or (order.image is not None and last.image != order.image)


def with_order(row: InstanceRow, order: RebuildInstance | MoveInstance) -> InstanceRow:
    """The row, which remembers this order from now on."""
    return structs.replace(
        row,
        changes=(*row.changes, order.request_id)[-CHANGES_MAX:],
        change_digests=(*row.change_digests, _digest(order))[-CHANGES_MAX:],
    )


def problem_with_repeat(row: InstanceRow, order: RebuildInstance | MoveInstance) -> BuildRejected | None:
    """Why this order is refused, though an order with its id was taken: that one had other content. None if it is that
    order again.
    """
    digests = dict(zip(row.changes, row.change_digests, strict=True))
    if digests.get(order.request_id, _digest(order)) == _digest(order):
        return None
    reason = "duplicate id: an order with this id and other content was taken before"
    return refused(order, "request_id", order.request_id, reason)


def _digest(order: RebuildInstance | MoveInstance) -> bytes:
    """A digest of what the order asks for. Its project only says for whom the sender speaks."""
    return hashlib.sha256(_canonical(structs.replace(order, project=""))).digest()[:DIGEST_BYTES]


def what_goes_on(told: InstanceState) -> str:
    """The rebuild or the move that must end before the next one; empty if there is none."""
    if told.waiting is not None and told.move is not None:
        return f"it waits for room to {told.move.kind}, by request {told.move.request_id}: abort that first"
    if told.state == REBUILDING and told.rebuild is not None:
        return f"it is rebuilt already, by request {told.rebuild.request_id}"
    if told.state == MOVING and told.move is not None:
        return f"it moves already, by request {told.move.request_id} ({told.move.kind})"
    if told.state == MOVED and told.move is not None:
        return f"it has moved, and that is not confirmed or reverted yet, by request {told.move.request_id} ({told.move.kind})"
    return ""


def _why_not(told: InstanceState) -> str:
    is_alive = told.state == ACTIVE or (told.state == ERROR and told.keeps_share and told.host)
    if is_alive and told.waiting is None:
        return ""
    return (
        what_goes_on(told)
        or f"it is {told.state}: only an active instance can be rebuilt, or one in error that keeps its host"
    )


def refused(
    order: RebuildInstance | MoveInstance | EndMove, field: str, value: object, reason: str
) -> BuildRejected:
    return BuildRejected(
        request_id=order.request_id, field=field, value=str(value), reason=reason, project=order.project
    )
