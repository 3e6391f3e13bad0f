"""An instance's row at API level: the state of the instance, and what a worker needs to go on with it; the row after each outcome
of a search, until the instance has a host or ends without one; and the messages that a row has to send.

The states that follow, and all of them in a picture: lifecycle.py. What a row keeps of its request, and its history: history.py.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple
from uuid import UUID

from msgspec import Struct, structs

from bus.message import Message
from bus.messages.build import (
    BuildInstance,
    ClaimRefused,
    InstanceDeleted,
    InstanceFailed,
    InstancePlaced,
    InstanceState,
    InstanceWaiting,
    Waiting,
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
from bus.messages.moves import Change
from bus.messages.placement import ReleaseClaim
from bus.topology import CELL0
from engine.choosing.verdicts import EndedElsewhere, FlavorFound, Holds, Outcome, SearchRefused
from engine.flavors import InstanceId, RequestId, instance_id_of
from engine.hosts import NODE
from engine.inventories import Choice, ServerGroup
from engine.refusals import NoValidHost
from engine.requests import priority_of_wait

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
    """The order of an instance that waits, encoded: a worker carries it out again when a host may have room. `needs` are those
    of the order, encoded too (scheduler_worker/waiting.py), and `digest` is made of them: what has one digest fits on the same hosts.
    """

    digest: bytes
    build: bytes
    needs: bytes = b""


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
    needs: bytes = b""


# Of what waits: the priority, negated, and since when. The lowest goes first.
Turn = tuple[int, datetime]


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
    # When it became active by its boot, once it has been something else since.
    active_at: datetime | None = None
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
    def turn(self) -> Turn:
        waiting = self.told.waiting
        return (
            (0, self.issued_at) if waiting is None else (-waiting.priority, waiting.since or self.issued_at)
        )

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


def instance_ids_of(build: BuildInstance) -> tuple[InstanceId, ...]:
    if build.instance_ids or build.request_id is None:
        return build.instance_ids
    return tuple([instance_id_of(build.request_id, index) for index in range(build.count)])


def is_on_host(row: InstanceRow) -> bool:
    """Is the instance on the host that its row names? In error, only one is there whose rebuild failed."""
    return row.told.state in LIVING and (row.told.state != ERROR or row.told.rebuild is not None)


def is_of(row: InstanceRow, project: str) -> bool:
    """May a sender who names this project act on the instance? A sender without a project may act on all of them."""
    return project in ("", row.told.project)


# An instance from its acceptance until it has a host, or ends without one.


def accepted(
    build: BuildInstance,
    instances: Sequence[InstanceId],
    now: datetime,
    ends_by: datetime,
    spec: bytes = b"",
    *,
    by: str = "",
) -> tuple[InstanceRow, ...]:
    """The rows of a new request."""
    assert build.request_id is not None, "a request without an id is rejected before it comes here"
    several = len(instances) > 1
    return tuple(
        InstanceRow(
            told=InstanceState(
                id=instance,
                request_id=build.request_id,
                sequence=1,
                state=ACCEPTED,
                name=f"{build.name}-{number}" if several and build.name else build.name,
                project=build.project,
                changed_at=now,
            ),
            issued_at=now,
            ends_by=ends_by,
            spec=spec,
            by=by,
        )
        for number, instance in enumerate(instances, start=1)
    )


class Timeouts(NamedTuple):
    """The seconds that a build without a deadline of its own may take, by the kind of its host."""

    hypervisor_s: int
    node_s: int


def after_search(
    row: InstanceRow,
    build: BuildInstance,
    outcome: Outcome | None,
    refusals: Sequence[ClaimRefused],
    now: datetime,
    *,
    timeouts: Timeouts,
    group: ServerGroup | None = None,
    kept: KeptRequest | None = None,
    found: FlavorFound | None = None,
) -> InstanceRow | None:
    """The row after its search had this outcome. None if the row was decided otherwise meanwhile, or if nothing changes.
    With `kept`, an instance for which there is no room now begins to wait; one that waits already waits on. `found` is given for
    a request that accepts several flavors.
    """
    after: InstanceRow | None
    match outcome:
        case Holds():
            order = _order(row, build, outcome, _ends_by(row, build, outcome, now, timeouts), group)
            host = outcome.choice.name
            # A host may be here several times, with other ways to take the amounts.
            others = tuple(dict.fromkeys([each.name for each in outcome.alternates]))
            decision = HostDecision(now, outcome.hosts, outcome.qualified, host, others)
            after = placed(row, order, host, now, refusals=tuple(refusals), decision=decision)
        case NoValidHost() | SearchRefused():
            why = _refused(outcome)
            if why.may_pass and row.told.state == WAITING:
                return _waits_on(row, why, refusals, found)
            after = (
                waits(
                    row,
                    now,
                    kept,
                    priority=priority_of_wait(build),
                    reason=why.reason,
                    no_valid_host=why.no_valid_host,
                )
                if kept is not None and build.wait is not None and why.may_pass
                else failed(
                    row,
                    now,
                    reason=why.reason,
                    no_valid_host=why.no_valid_host,
                    refusals=tuple(refusals),
                )
            )
        case EndedElsewhere(reason):
            after = deleted_outside_of_cells(row, now, reason) if row.is_open else None
        case None:
            after = None
    return after if after is None or found is None else _with_flavor(after, found)


def _with_flavor(row: InstanceRow, found: FlavorFound) -> InstanceRow:
    """The row of an instance that was decided, with what became of the flavors that its request accepts."""
    told = structs.replace(row.told, passed_over=found.passed_over)
    if told.state != PLACED:
        return structs.replace(row, told=told)
    return structs.replace(
        row,
        told=structs.replace(told, flavor=found.flavor),
        order=None if row.order is None else structs.replace(row.order, tells_flavor=True),
        resized_spec=found.spec if found.passed_over else b"",
    )


def _waits_on(
    row: InstanceRow, why: SearchRefused, refusals: Sequence[ClaimRefused], found: FlavorFound | None
) -> InstanceRow | None:
    """The row of an instance that goes on waiting after this search; None if it failed for the same reasons as the last one."""
    told = structs.replace(
        row.told,
        reason=why.reason,
        no_valid_host=why.no_valid_host,
        refusals=tuple(refusals),
        passed_over=() if found is None else found.passed_over,
    )
    # Clients see the reasons when they ask; no event tells them.
    return (
        None
        if told == row.told
        else structs.replace(row, told=structs.replace(told, sequence=told.sequence + 1))
    )


def _refused(why: NoValidHost | SearchRefused) -> SearchRefused:
    return SearchRefused("no valid host", why, may_pass=True) if isinstance(why, NoValidHost) else why


def _ends_by(
    row: InstanceRow, build: BuildInstance, holds: Holds, now: datetime, timeouts: Timeouts
) -> datetime:
    """The moment by which the cell must have built the instance. It is counted from the acceptance of the request; for
    a request that may wait for room, from now. A request without a deadline gets the longer time of nodes if one of the hosts
    chosen for it is a node.
    """
    may_get_node = NODE in [each.kind for each in (holds.choice, *holds.alternates)]
    if build.wait is None and (build.deadline_s is not None or not may_get_node):
        return row.ends_by
    seconds = build.deadline_s or (timeouts.node_s if may_get_node else timeouts.hypervisor_s)
    return (row.issued_at if build.wait is None else now) + timedelta(seconds=seconds)


def _order(
    row: InstanceRow, build: BuildInstance, holds: Holds, ends_by: datetime, group: ServerGroup | None
) -> PlaceInCell:
    assert build.flavor is not None, "a request without a flavor is rejected"
    return PlaceInCell(
        cell=holds.cell,
        instance=row.id,
        request_id=row.told.request_id,
        sequence=row.told.sequence + 1,
        attempt=holds.attempt,
        issued_at=row.issued_at,
        ends_by=ends_by,
        flavor=build.flavor,
        chosen=holds.choice,
        alternates=holds.alternates,
        name=row.told.name,
        project=build.project,
        user=build.user,
        image_properties=build.image_properties,
        group=group,
        image=build.image,
        config_drive=build.config_drive,
        ports=build.ports,
        other_flavors=dict(holds.other_flavors),
        may_ask=True,
    )


def waits(
    row: InstanceRow,
    now: datetime,
    kept: KeptRequest,
    *,
    priority: int,
    reason: str,
    no_valid_host: NoValidHost | None = None,
) -> InstanceRow | None:
    """The row of an instance that begins to wait for room, until its deadline. None if the row is no longer `accepted`."""
    if row.told.state != ACCEPTED:
        return None
    told = structs.replace(
        next_state(row, now, state=WAITING, reason=reason, no_valid_host=no_valid_host),
        waiting=Waiting(until=row.ends_by, priority=priority),
    )
    return structs.replace(row, told=told, unsaid=True, kept=kept)


def placed(
    row: InstanceRow,
    order: PlaceInCell,
    host: str,
    now: datetime,
    *,
    refusals: tuple[ClaimRefused, ...] = (),
    decision: HostDecision | None = None,
) -> InstanceRow | None:
    """The row with the host that was found, and with the order to its cell. None if it was decided before."""
    if not row.is_open:
        return None
    told = structs.replace(
        row.told,
        sequence=order.sequence,
        state=PLACED,
        cell=order.cell,
        host=host,
        attempt=order.attempt,
        refusals=refusals,
        changed_at=now,
        reason="",
        no_valid_host=None,
        waiting=None,
    )
    return structs.replace(
        row, told=told, order=order, unsaid=True, decision=decision, has_waited=row.told.state == WAITING
    )


def failed(
    row: InstanceRow,
    now: datetime,
    *,
    reason: str,
    no_valid_host: NoValidHost | None = None,
    refusals: tuple[ClaimRefused, ...] = (),
) -> InstanceRow | None:
    """The row of an instance that ends in error without a cell. None if it was decided before."""
    if not row.is_open:
        return None
    told = next_state(
        row, now, state=ERROR, cell=CELL0, reason=reason, no_valid_host=no_valid_host, refusals=refusals
    )
    return structs.replace(row, told=told, unsaid=True, has_waited=row.told.state == WAITING)


def deleted_outside_of_cells(row: InstanceRow, now: datetime, reason: str = "") -> InstanceRow:
    told = next_state(row, now, state=DELETED, cell=CELL0, reason=reason or row.told.reason)
    return structs.replace(row, told=told, unsaid=True, has_waited=row.told.state == WAITING)


def next_state(
    row: InstanceRow,
    now: datetime,
    *,
    state: str,
    cell: str | None = None,
    reason: str | None = None,
    no_valid_host: NoValidHost | None = None,
    refusals: tuple[ClaimRefused, ...] = (),
) -> InstanceState:
    told = row.told
    return structs.replace(
        told,
        sequence=told.sequence + 1,
        state=state,
        cell=told.cell if cell is None else cell,
        reason=told.reason if reason is None else reason,
        no_valid_host=no_valid_host or told.no_valid_host,
        refusals=refusals or told.refusals,
        changed_at=now,
        waiting=None,
    )


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
