"""An instance's row at API level: the state of the instance, and what a worker needs to go on with it; and the ids of rows,
which the client gives or which follow from the request's id.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha1
from uuid import UUID

import msgspec
from msgspec import Struct, convert, structs

from bus.message import Message
from bus.messages.build import (
    BuildInstance,
    InstanceDeleted,
    InstanceDetails,
    InstanceFailed,
    InstancePlaced,
    InstanceState,
    InstanceWaiting,
    Move,
    Rebuild,
    Size,
)
from bus.messages.cell import (
    EndMoveInCell,
    GiveBackInCell,
    MoreAlternates,
    MoveInCell,
    PlaceInCell,
    RebuildInCell,
    RemoveFromCell,
)
from bus.messages.moves import WAITS, Change
from bus.messages.placement import ReleaseClaim
from bus.topology import CELL0
from engine.flavors import Flavor, InstanceId, RequestId
from engine.inventories import Choice
from engine.requests import Alternative, InstanceSpec

FIRST_ATTEMPT = 1
BOOT = "boot"
# The request id of a row whose delete came before its request: no client's uuid is all zeros.
NO_REQUEST = RequestId(UUID(int=0))

ACCEPTED = "accepted"
WAITING = "waiting"
PLACED = "placed"
BUILDING = "building"
ACTIVE = "active"
REBUILDING = "rebuilding"
MOVING = "moving"
MOVED = "moved"
STOPPED = "stopped"
SHELVED = "shelved"
OFFLOADED = "offloaded"
ERROR = "error"
DELETING = "deleting"
DELETED = "deleted"
# In these states the cell has an order that it has not answered.
UNANSWERED = (PLACED, BUILDING, REBUILDING, MOVING, DELETING)
# Instances in these states may have a host: in error only those whose rebuild failed.
LIVING = (PLACED, ACTIVE, REBUILDING, MOVING, MOVED, STOPPED, SHELVED, ERROR)


class HostDecision(Struct, frozen=True, array_like=True):
    """How a host of an instance was chosen: for its boot, or for the move of kind `what`. It stays on the row when the
    instance has moved on to an alternate. `qualified` of `hosts` passed all filters; both are 0 if an earlier try had made
    the choice. The request of a boot is on the row itself.
    """

    at: datetime
    hosts: int
    qualified: int
    host: str
    alternates: tuple[str, ...]
    what: str = BOOT
    request_id: RequestId | None = None


class KeptRequest(Struct, frozen=True):
    """The request of a waiting instance, encoded, and the digest of its spec: a worker searches again with these. Instances
    of one spec fit on the same hosts.
    """

    digest: bytes
    build: bytes


class KeptMove(Struct, frozen=True, array_like=True):
    """The order of a move that waits for room, or has waited before its cell got it: a worker tries it again with this.

    Orders of one `digest` are for the same hosts. `number` is that of its entry in the instance's history: the move itself gets
    a new number when its cell gets it, since other messages may have been numbered meanwhile. `order` is encoded.
    """

    request_id: RequestId
    order: bytes
    digest: bytes
    number: int
    since: datetime
    until: datetime
    priority: int


class InstanceRow(Struct, frozen=True):
    """One instance as the scheduler's database keeps it.

    `told` is the state that clients are told. `issued_at` is the moment of acceptance; the claim carries it, so that a
    repeated claim is the same claim. `by` is who sent the request.

    Messages: `heard` is the highest sequence that the cell has sent. `unsaid` is set while the messages of the row's
    state may not have reached the broker. A placed row stays `unsaid` until its cell reports the instance: a write only
    because the order is confirmed would be a third of all writes. `order` is kept as long as the row is `unsaid`.

    Changes: `changes` has the requests of the last rebuilds and moves, the newest last, because each is done once,
    however often it is delivered; `change_digests` has the digest of each. `choices` are the hosts of a move that its cell has not reported yet, or further
    alternates that it has asked for.

    Needs: `spec` is what the request needs, encoded (`encoded`). After a resize `resized_spec` counts instead, and `next_spec` will when the present resize is confirmed. `resized_spec`
    counts, too, if the instance got another flavor than the first one that its request accepts.

    Written, but not read back: a row that begins to wait has `kept`, and a row that ends its wait has `has_waited`; by
    these two, the store writes its list of waiting instances, in which moves that wait are, too. `kept_move` is read back: it is
    that of the last move, if this has waited. `history` has entries that the store adds to the
    instance's history, or completes there.
    """

    told: InstanceState
    issued_at: datetime
    ends_by: datetime
    order: PlaceInCell | None = None
    heard: int = 0
    unsaid: bool = False
    changes: tuple[RequestId, ...] = ()
    change_digests: tuple[bytes, ...] = ()
    choices: tuple[Choice, ...] = ()
    spec: bytes = b""
    resized_spec: bytes = b""
    next_spec: bytes = b""
    # The choices for the boot, and for the last move for which a host was chosen.
    decision: HostDecision | None = None
    move_decision: HostDecision | None = None
    kept: KeptRequest | None = None
    has_waited: bool = False
    kept_move: KeptMove | None = None
    history: tuple[Change, ...] = ()
    by: str = ""
    # Taken over from another cloud; and then given back to it.
    adopted: bool = False
    given_back: bool = False

    @property
    def id(self) -> InstanceId:
        return self.told.id

    @property
    def current_spec(self) -> bytes:
        return self.resized_spec or self.spec

    @property
    def is_open(self) -> bool:
        """Is the request accepted or waiting, and nothing decided yet?"""
        return self.told.state in (ACCEPTED, WAITING)

    @property
    def move_waits(self) -> bool:
        """Is there an order to move it, which waits for room? Its state is the one from before."""
        return self.told.waiting is not None and self.told.state != WAITING

    @property
    def waited(self) -> KeptMove | None:
        """How its last move waits or has waited; None if it did not."""
        kept, move = self.kept_move, self.told.move
        return kept if kept is not None and move is not None and kept.request_id == move.request_id else None

    @property
    def due_at(self) -> datetime | None:
        """The moment at which this row is overdue, if nothing is decided until then."""
        waiting = self.told.waiting
        if waiting is not None and self.told.state != WAITING:
            return waiting.until
        return self.ends_by if self.told.state in (ACCEPTED, WAITING) else None

    @property
    def has_to_say(self) -> bool:
        """Does this row have messages to send? A placed row that was read without its order has none: the worker that
        wrote the order sends it.
        """
        return self.unsaid and (self.order is not None or self.told.state != PLACED)

    @property
    def is_in_cell(self) -> bool:
        """Does a cell decide what becomes of the instance?"""
        return self.told.cell not in ("", CELL0)

    def may_lose(self, *, is_new: bool) -> bool:
        """May the claim that a request got for this instance be released? Not while the instance is to have a claim, or
        has one. After the instance's end, the cell may still keep its share for a host that has not confirmed the
        destroy. Only a claim that was new (`is_new`) cannot be that share.
        """
        if self.told.state in (DELETED, ERROR) or not (self.is_open or self.is_in_cell):
            return is_new or not self.told.keeps_share
        return False


_LAST_80_BITS = (1 << 80) - 1
# The bits among these that say which kind of UUID it is, and their values in a uuid5.
_KIND = 0b1111 << 76 | 0b11 << 62
_UUID5 = 5 << 76 | 0b10 << 62


def instance_ids_of(build: BuildInstance) -> tuple[InstanceId, ...]:
    if build.instance_ids or build.request_id is None:
        return build.instance_ids
    return tuple([instance_id_of(build.request_id, index) for index in range(build.count)])


def instance_id_of(request: RequestId, index: int) -> InstanceId:
    """The id of a request's instance with this index. A client can compute it, and each delivery of the request gives
    the same id.

    Its first 48 bits are those of the request's id. If they are a time, as in a uuid7, then rows that are written
    together lie together in every index of the database.
    """
    # The end of uuid5(request, str(index)), whose other half would be made in vain: that takes twice as long.
    digest = sha1(request.bytes + str(index).encode(), usedforsecurity=False).digest()
    own = int.from_bytes(digest[6:16]) & ~_KIND | _UUID5
    # Half as dear as UUID(int=...).
    return InstanceId(convert((request.int & ~_LAST_80_BITS | own).to_bytes(16), UUID))


def is_of(row: InstanceRow, project: str) -> bool:
    """May a sender who names this project act on the instance? A sender without a project may act on all of them."""
    return project in ("", row.told.project)


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
    """The spec, its request and its flavor as bytes for a row. Two requests with equal needs and equal flavors give equal
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
    return InstanceDetails(
        id=row.id,
        size=size_in(_spec_that_counts(row)),
        accepted_at=row.issued_at,
        placed_at=None if row.decision is None else row.decision.at,
        move_placed_at=None if row.move_decision is None else row.move_decision.at,
        image=_image_name(row),
    )


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
    return Change(
        instance=row.id,
        number=1,
        what="boot",
        cell=told.cell,
        asked_at=row.issued_at,
        by=row.by,
        request_id=told.request_id,
        destination="" if decision is None else decision.host,
        outcome="" if row.is_open else "placed" if row.is_in_cell or decision is not None else told.state,
        failure="" if row.is_in_cell else told.reason,
        size=booted_size(row),
    )


def with_end(change: Change, row: InstanceRow) -> Change:
    """An entry of the history as it is shown. The stored entry of a delete has the moment of the order as its end, so
    that it counts as none of the changes that go on. When the delete really ended is read from the row.
    """
    if change.what != "delete":
        return change
    if row.told.state != DELETED:
        return structs.replace(change, ended_at=None)
    return structs.replace(change, ended_at=row.told.changed_at, outcome="deleted")


# The messages that a row has to send: they follow from the row alone, so a row stores no messages.


# Of an instance in one of these states, the API level only tells that its move waits, or waits no more.
_TOLD_BY_CELL = (ACTIVE, STOPPED, SHELVED, OFFLOADED, ERROR)


def messages_of(row: InstanceRow) -> tuple[Message, ...]:  # noqa: C901, PLR0911 - one for each state
    """The messages of the row's state; none if all of them have reached the broker."""
    if not row.unsaid:
        return ()
    told, order = row.told, row.order
    match told.state:
        case "placed" if order is not None:
            return (order, InstancePlaced(cell=order.cell, instance=told))
        case _ if told.state == WAITING or (told.state in _TOLD_BY_CELL and row.is_in_cell):
            return (InstanceWaiting(cell=told.cell or CELL0, instance=told),)
        case "building":
            more = MoreAlternates(
                cell=told.cell,
                instance=told.id,
                spent=row.heard,
                sequence=told.sequence,
                alternates=row.choices,
                reason=told.reason,
                flavor=told.flavor,
            )
            return (more,)
        case "rebuilding" if told.rebuild is not None:
            return (RebuildInCell(cell=told.cell, instance=told.id, rebuild=told.rebuild),)
        case "moving" if told.move is not None and told.move.asked:
            return (EndMoveInCell(cell=told.cell, instance=told.id, move=told.move, sequence=told.sequence),)
        case "moving" if told.move is not None:
            return (MoveInCell(cell=told.cell, instance=told.id, move=told.move, choices=row.choices),)
        case "deleting":
            return (remove_of(row),)
        case "deleted" if row.is_in_cell:
            return (remove_of(row),)
        case "error" | "deleted":
            event = InstanceFailed if told.state == "error" else InstanceDeleted
            # Another worker's claim for an ended instance may be on its way, in any cell: placement frees or refuses it. The
            # instance may have waited for longer than placement's horizon, so its claims and its release are as old as the
            # step that sends them.
            release = release_of(row.id, told.changed_at or row.issued_at, told.project)
            return (event(cell=CELL0, instance=told), release)
        case _:
            return ()


def remove_of(row: InstanceRow) -> RemoveFromCell:
    """The order to the instance's cell to delete it, or to give it back."""
    told = row.told
    kind = GiveBackInCell if row.given_back else RemoveFromCell
    return kind(
        cell=told.cell,
        instance=told.id,
        request_id=told.request_id,
        sequence=told.sequence,
        issued_at=row.issued_at,
    )


def release_of(instance: InstanceId, issued_at: datetime, project: str) -> ReleaseClaim:
    return ReleaseClaim(
        cell=CELL0, consumer=instance, attempt=FIRST_ATTEMPT, issued_at=issued_at, project=project
    )


def releases_of_ended(
    instances: Sequence[InstanceId],
    known: Mapping[InstanceId, InstanceRow],
    now: datetime,
    project: str,
    *,
    new: Collection[InstanceId] = (),
) -> list[ReleaseClaim]:
    """Releases of the claims that a request of this project may have made for these instances: of those that have no row,
    or whose row allows it (`InstanceRow.may_lose`).

    `new` are the instances for which the caller itself has just made the first claim. A claim of theirs is released even
    if an ended instance keeps its share, for it cannot be that share.
    """
    return [
        release_of(id_, now, project)
        for id_ in instances
        if (row := known.get(id_)) is None or row.may_lose(is_new=id_ in new)
    ]
