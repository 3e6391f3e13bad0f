"""What a row keeps of its request, the details of an instance as they are shown, and the history of its orders."""

from collections.abc import Iterator
from datetime import datetime

import msgspec
from msgspec import Struct, structs

from bus.messages.build import (
    BuildInstance,
    InstanceDetails,
    InstanceState,
    Move,
    Rebuild,
    Size,
)
from bus.messages.moves import WAITS, Change
from engine.flavors import Flavor
from engine.requests import Alternative, InstanceSpec, priority_of
from scheduler_worker.core.instances.rows import (
    ACTIVE,
    DELETED,
    DELETING,
    ERROR,
    MOVED,
    MOVING,
    REBUILDING,
    STOPPED,
    InstanceRow,
)

# The spec of a request as its rows keep it: for explanations of past decisions, for plans to drain a host, and for moves.


class _Kept(Struct, frozen=True, array_like=True):
    """A spec as a row stores it, with the build request and the flavor that it was read from. `alternatives` are all flavors
    of a request that accepts several; the spec is that of the first one.

    A resize reads the request again, with another flavor. So the request is stored without all that a resize does not
    read from it: ids, names, the deadline and so on. It is None if nothing else was asked.
    """

    spec: InstanceSpec
    build: BuildInstance | None
    flavor: Flavor
    alternatives: tuple[Alternative, ...] = ()


_encode = msgspec.msgpack.Encoder().encode
_kept = msgspec.msgpack.Decoder(_Kept).decode


_NOTHING_ELSE = BuildInstance()
_NO_FLAVOR = Flavor()


def encoded(
    spec: InstanceSpec, build: BuildInstance = _NOTHING_ELSE, alternatives: tuple[Alternative, ...] = ()
) -> bytes:
    """The spec, its request and its flavor as bytes for a row. Two requests with equal needs, flavors and priorities give equal
    bytes, since everything that names a request is left out.
    """
    # A flavor that prefers a class of nodes is not itself the first one.
    flavor = alternatives[0].flavor if alternatives else build.flavor or _NO_FLAVOR
    build = structs.replace(
        build,
        request_id=None,
        flavor=None,
        count=1,
        instance_ids=(),
        name="",
        project="",
        user="",
        group=None,
        hosts=(),
        ignore_hosts=(),
        different_host=(),
        same_host=(),
        deadline_s=None,
        image=None,
        config_drive="",
        ports=(),
        all_or_nothing=False,
        wait=None,
        alternatives=(),
    )
    return _encode(_Kept(spec, None if build == _NOTHING_ELSE else build, flavor, alternatives))


def decoded(kept: bytes) -> InstanceSpec | None:
    """The spec that `encoded` made these bytes of. None if there are none, or if they are of another release and cannot
    be read.
    """
    found = _read(kept)
    return None if found is None else found.spec


def alternatives_in(kept: bytes) -> tuple[Alternative, ...]:
    """All flavors that the request accepts, if these bytes have several; otherwise none."""
    found = _read(kept)
    return () if found is None else found.alternatives


def specs_in(kept: bytes) -> tuple[InstanceSpec, ...]:
    """The spec for each flavor that the request accepts, the best first; none if they cannot be read."""
    found = _read(kept)
    if found is None:
        return ()
    return tuple([each.spec for each in found.alternatives]) or (found.spec,)


def request_of(kept: bytes) -> BuildInstance | None:
    found = _read(kept)
    return None if found is None else found.build or _NOTHING_ELSE


def image_name_of(kept: bytes) -> str:
    """The name of the stored image that the request named; empty if it named none."""
    request = request_of(kept)
    return "" if request is None else request.image_name


def flavor_of(kept: bytes) -> Flavor | None:
    """The flavor with these needs; None if there are none, or if they are of another release and cannot be read."""
    found = _read(kept)
    return None if found is None else found.flavor


def _read(kept: bytes) -> _Kept | None:
    try:
        return _kept(kept) if kept else None
    except msgspec.DecodeError:
        return None


# The details of an instance that its row at API level has beside its state: its size, and when its hosts were chosen.
#
# This is read from the row when somebody asks: nothing of it is written for it.


def details_of(row: InstanceRow) -> InstanceDetails:
    kept = _read(_spec_that_counts(row))
    group = None if kept is None else kept.spec.server_group
    return InstanceDetails(
        id=row.id,
        size=None if kept is None else _size(kept.flavor.name, kept.spec),
        accepted_at=row.issued_at,
        placed_at=None if row.decision is None else row.decision.at,
        move_placed_at=None if row.move_decision is None else row.move_decision.at,
        image=_image_name(row),
        priority=0
        if kept is None
        else priority_of(structs.replace(kept.build or _NOTHING_ELSE, flavor=kept.flavor)),
        group=None if group is None else group.id,
        policy="" if group is None else group.policy,
    )


def has_named(row: InstanceRow, flavor: str, image: str) -> bool:
    """Does the instance have the flavor of this name, and the stored image of this name? An empty name stands for any."""
    if image and _image_name(row) != image:
        return False
    size = size_in(_spec_that_counts(row)) if flavor else None
    return not flavor or (size is not None and size.flavor == flavor)


def _image_name(row: InstanceRow) -> str:
    """The name of the stored image that the instance has; empty if it has another one, or none is known."""
    rebuild = row.told.rebuild
    if rebuild is None:
        return image_name_of(row.spec)
    return "" if rebuild.failure or row.told.state == REBUILDING else rebuild.image_name


def size_in(kept: bytes) -> Size | None:
    """The size that these bytes of a row ask for; None if there are none, or if they cannot be read."""
    spec, known = decoded(kept), flavor_of(kept)
    return None if spec is None or known is None else _size(known.name, spec)


def booted_size(row: InstanceRow) -> Size | None:
    """The size that the instance was built with. Of several flavors it is the one that it got."""
    alternatives = alternatives_in(row.spec)
    if not alternatives:
        return size_in(row.spec)
    passed = len(row.told.passed_over)
    if passed >= len(alternatives):
        # It got none of them.
        return None
    chosen = alternatives[passed]
    return _size(chosen.flavor.name, chosen.spec)


def _size(flavor: str, spec: InstanceSpec) -> Size:
    return Size(flavor=flavor, amounts={resource: amount for resource, amount in spec.amounts if amount})


def _spec_that_counts(row: InstanceRow) -> bytes:
    """After a resize has arrived, the instance holds its new size, and while it is being confirmed, too."""
    told = row.told
    is_confirmed = told.state == MOVING and told.move is not None and told.move.asked == "confirm"
    return (row.next_spec if told.state == MOVED or is_confirmed else b"") or row.current_spec


# The history of an instance: orders of clients and operators, and how they ended.
#
# An entry of the history is a `Change`. Its number is the sequence of the row's state that the order led to. The step
# that ends the order makes an entry with the same number, which completes the stored one.


def with_history(before: InstanceRow | None, after: InstanceRow, by: str) -> InstanceRow:
    """The row after a step from the row `before`, with what its history gets by it, and with the end of its boot."""
    changes = changes_between(before, after, by)
    active_at = None if before is None or after.active_at is not None else active_since_boot(before)
    if not changes and (active_at is None or after.told.state == ACTIVE):
        return after
    return structs.replace(after, history=(*after.history, *changes), active_at=after.active_at or active_at)


def active_since_boot(row: InstanceRow) -> datetime | None:
    """When the instance became active by its boot. As long as it only is active, its state says so; then the row keeps it."""
    told = row.told
    if row.active_at is not None or told.state != ACTIVE:
        return row.active_at
    # Release 0.1.0 did not keep it.
    return None if row.changes or told.move is not None or told.rebuild is not None else told.changed_at


def changes_between(before: InstanceRow | None, after: InstanceRow, by: str) -> tuple[Change, ...]:
    """The entries of the instance's history that the step from the row `before` to the row `after` begins or completes.
    `by` is the user who ordered the step; empty if a cell reported it.
    """
    was, is_ = None if before is None else before.told, after.told
    if is_.state in (DELETING, DELETED) and (was is None or was.state not in (DELETING, DELETED)):
        # Only so that it is none of the changes that go on; its real end is read from the row (`with_end`).
        delete = structs.replace(_change(after, "delete", is_.sequence, by), ended_at=is_.changed_at)
        return *_cut_short(was, after, by), delete
    change = _change_between(was, after, by)
    return () if change is None else (change,)


def _cut_short(was: InstanceState | None, after: InstanceRow, by: str) -> Iterator[Change]:
    """The changes that a delete ends: a move or a rebuild that is under way."""
    if was is None:
        return
    end = {"ended_at": after.told.changed_at, "outcome": DELETED}
    if was.move is not None and not was.move.outcome:
        yield structs.replace(_of_move(after, was.move, ""), ended_by=by, **end)
    if was.rebuild is not None and was.state == REBUILDING:
        yield structs.replace(_of_rebuild(after, was.rebuild, ""), ended_by=by, **end)


def _change_between(was: InstanceState | None, after: InstanceRow, by: str) -> Change | None:
    is_ = after.told
    if is_.move is not None and (was is None or (is_.move, is_.waiting) != (was.move, was.waiting)):
        return _change_of_move(was, after, is_.move, by)
    if is_.state == STOPPED and was is not None and was.state == ACTIVE:
        return _of_stop_by_itself(after)
    if is_.rebuild is not None and was is not None:
        if was.rebuild is None or was.rebuild.number != is_.rebuild.number:
            return _of_rebuild(after, is_.rebuild, by)
        if is_.state in (ACTIVE, ERROR) and (was.state == REBUILDING or was.rebuild != is_.rebuild):
            failure = is_.rebuild.failure
            return structs.replace(
                _of_rebuild(after, is_.rebuild, ""),
                ended_at=is_.changed_at,
                outcome="failed" if failure else "done",
                failure=failure,
            )
    return None


def _change_of_move(was: InstanceState | None, after: InstanceRow, move: Move, by: str) -> Change:
    waiting = after.told.waiting
    is_new = was is None or was.move is None or was.move.number != move.number
    change = _of_move(after, move, by if is_new else "")
    if waiting is not None:
        why = f"waits for room until {waiting.until:%Y-%m-%d %H:%M:%S} UTC: {waiting.reason}"
        return structs.replace(change, outcome=WAITS, failure=why)
    if move.outcome:
        return structs.replace(change, ended_at=after.told.changed_at)
    if is_new:
        # Until placement has granted a share there, the host that was chosen first counts.
        chosen = after.choices[0].name if after.choices else ""
        return structs.replace(change, destination=move.destination or chosen, size=size_in(after.next_spec))
    return structs.replace(change, ended_by=by if move.asked else "")


def _of_move(row: InstanceRow, move: Move, by: str) -> Change:
    # A move that waited keeps the number that it had then.
    number = move.number if row.waited is None else row.waited.number
    return structs.replace(
        _change(row, move.kind, number, by),
        request_id=move.request_id,
        source=move.source,
        destination=move.destination,
        outcome=move.outcome,
        failure=move.failure,
    )


def _of_stop_by_itself(row: InstanceRow) -> Change:
    """The entry for an instance that has stopped without an order. It has ended when it is told."""
    told = row.told
    return structs.replace(
        _change(row, "stopped", told.sequence, ""),
        source=told.host,
        ended_at=told.changed_at,
        outcome="by itself",
        failure=told.reason,
    )


def _of_rebuild(row: InstanceRow, rebuild: Rebuild, by: str) -> Change:
    return structs.replace(_change(row, "rebuild", rebuild.number, by), request_id=rebuild.request_id)


def _change(row: InstanceRow, what: str, number: int, by: str) -> Change:
    return Change(
        instance=row.id,
        number=number,
        what=what,
        cell=row.told.cell,
        asked_at=row.told.changed_at or row.issued_at,
        by=by,
    )


def boot_of(row: InstanceRow) -> Change:
    """The instance's first change, its boot. Its data are on the row itself."""
    decision, told = row.decision, row.told
    outcome, ended_at = _end_of_boot(row)
    return Change(
        instance=row.id,
        number=1,
        what="boot",
        cell=told.cell,
        asked_at=row.issued_at,
        by=row.by,
        request_id=told.request_id,
        destination="" if decision is None else decision.host,
        ended_at=ended_at,
        outcome=outcome,
        failure=told.reason if outcome == ERROR or not row.is_in_cell else "",
        size=booted_size(row),
    )


def _end_of_boot(row: InstanceRow) -> tuple[str, datetime | None]:
    """How the boot ended, and when: `active` with the moment, whatever became of the instance since."""
    told = row.told
    if row.is_open:
        return "", None
    if active_at := active_since_boot(row):
        return ACTIVE, active_at
    if told.state == ERROR and not row.changes:
        return ERROR, told.changed_at
    return ("placed" if row.is_in_cell or row.decision is not None else told.state), None


def with_end(change: Change, row: InstanceRow) -> Change:
    """An entry of the history as it is shown. The stored entry of a delete has the moment of the order as its end, so
    that it counts as none of the changes that go on. When the delete really ended is read from the row.
    """
    if change.what != "delete":
        return change
    if row.told.state != DELETED:
        return structs.replace(change, ended_at=None)
    return structs.replace(change, ended_at=row.told.changed_at, outcome="deleted")
