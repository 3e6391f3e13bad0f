"""Resizes: the flavor that an order gives an instance, and the refusal of a size that the order does not say.

An order names what changes (`change`) and all else stays, or it replaces the whole flavor (`flavor`). In both cases an
instance that has memory or processors keeps some, unless the order says that it is to have none.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

import msgspec
from msgspec import Struct, structs

from bus.messages.build import (
    BuildInstance,
    BuildRejected,
    FlavorChange,
    InstanceState,
    Rebuild,
    RebuildInstance,
)
from bus.messages.moves import EndMove, MoveInstance
from engine.flavors import Flavor, FlavorPassedOver, Image
from engine.requests import InstanceSpec
from engine.requests.grammar import PREFERRED
from engine.requests.reading import DEADLINE_S_MAX, Alternative
from engine.requests.spec import PROFILE, is_memory, without_profile
from scheduler_worker.core.instances.history import alternatives_in, encoded, request_of
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

# Orders to rebuild an instance: each is accepted once, answered again when it is repeated, or refused.
#
# An instance can be rebuilt while it is active, or in error if its host still has it: after a rebuild or a move that failed. Its
# host must be up. There is one rebuild at a time. A delete ends it, and later events of the cell about it do not count.


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


_DISK = ("root_gb", "ephemeral_gb", "swap_mb")
# The classes that each size of a flavor asks for.
_CLASSES = {
    "vcpus": ("VCPU", "PCPU"),
    "ram_mb": ("MEMORY_MB",),
    **dict.fromkeys(_DISK, ("DISK_GB",)),
}
# An instance keeps some of each of these, unless the order says otherwise.
_NEEDED = ("vcpus", "ram_mb")


def problem_with_resize(order: MoveInstance) -> BuildRejected | None:
    """What is wrong with the size in an order to move, as far as the order alone shows it."""
    flavor, change = order.flavor, order.change
    field, value, reason = "", "", ""
    if order.kind != "resize" and flavor is not None:
        field, value, reason = "flavor", flavor.name, f"only a resize has a flavor, not {order.kind}"
    elif order.kind != "resize" and change is not None:
        field, reason = "change", f"only a resize changes the flavor: {order.kind} keeps the whole size"
    elif order.kind == "resize" and flavor is None and change is None:
        field, reason = "flavor", "there is none: it says what size the instance gets"
    elif flavor is not None and change is not None:
        field = "change"
        reason = "flavor is given, too: change says what differs, flavor is the whole size; give one of both"
    elif change == FlavorChange():
        field, reason = "change", "it names nothing that changes"
    return refused(order, field, value, reason) if field else None


def flavor_after(order: MoveInstance, known: Flavor) -> Flavor | BuildRejected:
    """The whole flavor that the instance gets by this order. `known` is the flavor that it has."""
    change = order.change
    if change is None:
        assert order.flavor is not None, "an order with neither was refused"
        return order.flavor
    sizes = {field: amount for field in _CLASSES if (amount := getattr(change, field)) is not None}
    # Another device profile replaces the devices of the one before.
    replaces_devices = PROFILE in change.extra_specs
    before = known.extra_specs
    extra_specs = {**without_profile(before), **_named_profile(before)} if replaces_devices else dict(before)
    for key, value in change.extra_specs.items():
        if value is not None:
            extra_specs[key] = value
        elif extra_specs.pop(key, None) is None:
            has = ", ".join(sorted(before)) or "none"
            return refused(
                order, f"change.extra_specs.{key}", "null", f"there is none to remove: the flavor has {has}"
            )
    after = structs.replace(known, **sizes, extra_specs=extra_specs)
    for field, amount in sizes.items():
        for key, value in _extra_specs_of(after, field):
            if value != str(amount):
                reason = f"its extra spec {key}={value} counts in place of it: change that"
                return refused(order, f"change.{field}", amount, reason)
    return after


def _named_profile(extra_specs: Mapping[str, str]) -> dict[str, str]:
    return {PROFILE: extra_specs[PROFILE]} if PROFILE in extra_specs else {}


def problem_with_size(
    order: MoveInstance, flavor: Flavor, before: InstanceSpec, after: InstanceSpec
) -> BuildRejected | None:
    """Why the instance does not get the needs `after` in place of `before`; None if it does.

    It would lose all of its memory, or all of its processors, and the order does not say so. A flavor says so by an
    extra spec such as `resources:MEMORY_MB` = 0, as flavors of bare metal do; a change may also say `ram_mb` = 0.
    """
    had, gets = dict(before.amounts), dict(after.amounts)
    for field in _NEEDED:
        classes = _CLASSES[field]
        lost = [f"{had[each]} {each}" for each in classes if had.get(each)]
        kept = any(gets.get(each) for each in classes) or (field == "ram_mb" and any(map(is_memory, gets)))
        if not lost or kept or _says(order, flavor, field):
            continue
        none = f"resources:{classes[0]}"
        reason = (
            f"the instance has {' and '.join(lost)}, and would have none: name an amount; or, if none is meant, the "
            f"extra spec {none} = 0. To keep what a resize does not name, use change in place of flavor"
        )
        return refused(order, f"flavor.{field}", 0, reason)
    return None


def _says(order: MoveInstance, flavor: Flavor, field: str) -> bool:
    """Does the order say that the instance is to have none of this?"""
    change = order.change
    if change is None:
        return any(_extra_specs_of(flavor, field))
    return getattr(change, field) is not None or any(_extra_specs_of(change, field))


def _extra_specs_of(flavor: Flavor | FlavorChange, field: str) -> Iterator[tuple[str, str | None]]:
    """The extra specs that ask for an amount of a class of this size, in any granular group; of a change also those that
    it removes.
    """
    for key, value in flavor.extra_specs.items():
        kind, _, name = key.partition(":")
        is_amount = value is None or not value.startswith(PREFERRED)
        if kind.startswith("resources") and name in _CLASSES[field] and is_amount:
            yield key, value


def as_in_change(refusal: BuildRejected, change: FlavorChange | None) -> BuildRejected:
    """A rejection of the whole flavor, with the field of the change that it is about."""
    if change is None:
        return refusal
    field = refusal.field.removeprefix("flavor.")
    key = field.removeprefix("extra_specs.")
    if getattr(change, field, None) is not None or key in change.extra_specs:
        return structs.replace(refusal, field=f"change.{field}")
    return refusal


# An instance that its cell builds with another flavor than the scheduler chose first, since no host could build that one.


NOT_BUILT = "no host could build it"


class FlavorTaken(NamedTuple):
    """The row's `resized_spec`, and the flavors that were passed over for its flavor."""

    resized_spec: bytes
    passed_over: tuple[FlavorPassedOver, ...]


def after_other_flavor(row: InstanceRow, said: InstanceState) -> FlavorTaken:
    """As before, unless the cell has taken another flavor of those that the request accepts."""
    flavor = None if said.move is not None else said.flavor
    return with_flavor(row, flavor)


def with_flavor(row: InstanceRow, flavor: Flavor | None) -> FlavorTaken:
    """What the row has with this flavor of those that its request accepts. It is a better one than before if a question to
    placement was carried out late, and a worse one if no host could build what was before.
    """
    told = row.told
    if flavor is None or flavor == told.flavor:
        return FlavorTaken(row.resized_spec, told.passed_over)
    alternatives = alternatives_in(row.spec)
    for number, each in enumerate(alternatives):
        if each.flavor == flavor:
            passed = told.passed_over[:number]
            skipped = alternatives[len(passed) : number]
            build = structs.replace(request_of(row.spec) or BuildInstance(), flavor=each.flavor)
            return FlavorTaken(
                encoded(each.spec, build) if number else b"",
                (*passed, *[FlavorPassedOver(flavor=one.name, reason=NOT_BUILT) for one in skipped]),
            )
    return FlavorTaken(row.resized_spec, told.passed_over)


def still_accepted(row: InstanceRow, said: InstanceState) -> tuple[Alternative, ...]:
    """The flavor with which its cell goes on, and those that are worse; none if the request accepts one flavor only."""
    alternatives = alternatives_in(row.spec)
    numbers = [number for number, each in enumerate(alternatives) if each.flavor == said.flavor]
    return alternatives[numbers[0] if numbers else len(row.told.passed_over) :]
