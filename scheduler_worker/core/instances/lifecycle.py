"""What becomes of an instance at API level: the arbiter between placing it and ending it.

Pure: plain functions over frozen values; the store locks a row before it is judged here and writes what comes out, so
that each step is a compare-and-set.

    accepted ──▶ placed ──▶ building, active, error      the cell's word, the latest counts
       │            │         └─▶ rebuilding ─▶ active, error   another image, in place: the cell's word (rebuilds.py)
       │            └─────────┴──▶ deleting ──▶ deleted   once the cell has said so
       ├──▶ error    no host, no right, or no time: kept in cell0
       └──▶ deleted  before it was placed

What is to be said of a step follows from the row alone, so a row keeps no messages, only whether it may have to say them.
"""

from collections.abc import Sequence
from datetime import datetime
from uuid import UUID

from msgspec import Struct, structs

from bus.message import Message
from bus.messages.build import (
    BuildInstance,
    ClaimRefused,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceId,
    InstancePlaced,
    InstanceState,
    NoValidHost,
    RequestId,
)
from bus.messages.cell import PlaceInCell, RebuildInCell, RemoveFromCell
from bus.messages.placement import ReleaseClaim
from bus.topology import CELL0

FIRST_ATTEMPT = 1
# That of a delete which came before its request: no client's uuid is all zeros.
NO_REQUEST = RequestId(UUID(int=0))

ACCEPTED = "accepted"
PLACED = "placed"
ACTIVE = "active"
REBUILDING = "rebuilding"
ERROR = "error"
DELETING = "deleting"
DELETED = "deleted"

_STATES = {InstanceActive: ACTIVE, InstanceFailed: ERROR, InstanceDeleted: DELETED}
CellsWord = InstanceActive | InstanceFailed | InstanceDeleted


class InstanceRow(Struct, frozen=True):
    """One instance: what is told of it, and what is needed to go on with it.

    `issued_at` is when it was accepted, and goes with its claim, so that the claim is the same however often it is
    asked. `heard` is the highest sequence that its cell has said. `unsaid`: the messages of its state may not have
    reached the broker. A row that is placed is so until its cell speaks of it: to write it before, only because its order
    is confirmed, would be a third of all writes. `order` is kept only as long as the row is unsaid. `rebuilds` are the
    requests of its last rebuilds, the newest last: each is done once, however often it is asked.
    """

    told: InstanceState
    issued_at: datetime
    ends_by: datetime
    order: PlaceInCell | None = None
    heard: int = 0
    unsaid: bool = False
    rebuilds: tuple[RequestId, ...] = ()

    @property
    def id(self) -> InstanceId:
        return self.told.id

    @property
    def is_open(self) -> bool:
        """Accepted, and nothing decided yet."""
        return self.told.state == ACCEPTED

    @property
    def has_to_say(self) -> bool:
        """An order that was not read with its row is another's to say."""
        return self.unsaid and (self.order is not None or self.told.state != PLACED)

    @property
    def is_in_cell(self) -> bool:
        """It is its cell's to say what becomes of it."""
        return self.told.cell not in ("", CELL0)

    def may_lose(self, *, is_new: bool) -> bool:
        """May a claim that its request got be released? Not while it is to have one, or has one. After its end its cell may
        still keep the share for a host that has not confirmed, and a claim that was not new may be that one.
        """
        if self.told.state in (DELETED, ERROR) or not (self.is_open or self.is_in_cell):
            return is_new or not self.told.keeps_share
        return False


def accepted(
    build: BuildInstance, instances: Sequence[InstanceId], now: datetime, ends_by: datetime
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
        )
        for number, instance in enumerate(instances, start=1)
    )


def deleted_unseen(instance: InstanceId, now: datetime, project: str = "") -> InstanceRow:
    """A delete overtook its request, or there never was one: what comes later finds it deleted. With `project`, only a
    request of that project finds it so.
    """
    told = InstanceState(
        id=instance,
        request_id=NO_REQUEST,
        sequence=1,
        state=DELETED,
        cell=CELL0,
        project=project,
        changed_at=now,
    )
    return InstanceRow(told=told, issued_at=now, ends_by=now)


def adopted(unseen: InstanceRow, new: InstanceRow) -> InstanceRow:
    """The request that a delete had overtaken: it is known now whose it was, and it stays deleted; unless the delete was
    by another project, which had no right to it.
    """
    if unseen.told.project not in ("", new.told.project):
        return new
    told = structs.replace(
        new.told,
        sequence=unseen.told.sequence + 1,
        state=DELETED,
        cell=CELL0,
        host="",
        attempt=0,
        reason=_DELETED_FIRST,
    )
    return structs.replace(new, told=told, order=None, unsaid=True)


def placed(
    row: InstanceRow,
    order: PlaceInCell,
    host: str,
    now: datetime,
    *,
    refusals: tuple[ClaimRefused, ...] = (),
) -> InstanceRow | None:
    """Its cell shall have it; None if it was decided otherwise meanwhile."""
    if not row.is_open:
        return None
    told = structs.replace(
        row.told,
        sequence=row.told.sequence + 1,
        state=PLACED,
        cell=order.cell,
        host=host,
        attempt=order.attempt,
        refusals=refusals,
        changed_at=now,
    )
    return structs.replace(row, told=told, order=order, unsaid=True)


def failed(
    row: InstanceRow, now: datetime, *, reason: str, no_valid_host: NoValidHost | None = None
) -> InstanceRow | None:
    """It ends in error without a cell; None if it was decided otherwise meanwhile."""
    if not row.is_open:
        return None
    told = _next(row, now, state=ERROR, cell=CELL0, reason=reason, no_valid_host=no_valid_host)
    return structs.replace(row, told=told, unsaid=True)


def deleted(row: InstanceRow, now: datetime, reason: str = "") -> InstanceRow | None:
    """Nobody wants it any more; None if that was known. Where a cell has it, it is the cell's to say when it is gone."""
    told = row.told
    if told.state in (DELETING, DELETED):
        return None
    if row.is_in_cell:
        return structs.replace(row, told=_next(row, now, state=DELETING), order=None, unsaid=True)
    return structs.replace(
        row, told=_next(row, now, state=DELETED, cell=CELL0, reason=reason or told.reason), unsaid=True
    )


def overdue(row: InstanceRow, now: datetime) -> InstanceRow | None:
    """It was never placed, and its time is up; None if that is not so."""
    if not row.is_open or now < row.ends_by:
        return None
    waited_s = (row.ends_by - row.issued_at).total_seconds()
    return failed(
        row,
        now,
        reason=f"not placed within {waited_s:.0f} s of its acceptance: its request may be among the dead letters",
    )


def heard(row: InstanceRow, word: CellsWord, now: datetime) -> InstanceRow | None:
    """What its cell says of it; None if that is no news."""
    said, told = word.instance, row.told
    if told.cell != word.cell or said.sequence <= row.heard:
        return None
    sequence, state = max(told.sequence + 1, said.sequence), _STATES[type(word)]
    if told.state == DELETED or (told.state == REBUILDING and state != DELETED and _is_before(said, told)):
        return structs.replace(row, heard=said.sequence)
    now_told = structs.replace(
        said,
        request_id=told.request_id,
        sequence=sequence,
        # Once deleting, only its end is news; the host and the attempt are still worth knowing.
        state=DELETING if told.state == DELETING and state != DELETED else state,
        cell=word.cell,
        name=told.name,
        project=told.project,
        refusals=told.refusals,
        changed_at=said.changed_at or now,
    )
    still_to_say = row.unsaid and now_told.state == DELETING
    # Whoever speaks of it has had its order.
    return structs.replace(row, told=now_told, order=None, heard=said.sequence, unsaid=still_to_say)


def _is_before(said: InstanceState, told: InstanceState) -> bool:
    """Was it said before its cell had heard of the rebuild?"""
    last = said.rebuild.number if said.rebuild else 0
    return told.rebuild is not None and last < told.rebuild.number


def is_of(row: InstanceRow, project: str) -> bool:
    """May a sender who names this project have to do with it? With none, the sender has the right to all."""
    return project in ("", row.told.project)


def is_whole(word: CellsWord) -> bool:
    """Does what becomes of an instance that is placed follow from this word alone, whatever else is on its row?"""
    said = word.instance
    is_plain = not (said.failures or said.reason or said.no_valid_host or said.rebuild)
    return isinstance(word, InstanceActive) and is_plain and said.changed_at is not None


def confirmed(row: InstanceRow, sequence: int) -> InstanceRow:
    """What it said up to this sequence has reached the broker, and no word of its cell will say so."""
    return row if row.told.sequence > sequence else structs.replace(row, unsaid=False)


def messages_of(row: InstanceRow) -> tuple[Message, ...]:  # noqa: PLR0911 - one for each state
    """What this row says, if nobody can be sure that it was said."""
    if not row.unsaid:
        return ()
    told, order = row.told, row.order
    match told.state:
        case "placed" if order is not None:
            return (order, InstancePlaced(cell=order.cell, instance=told))
        case "rebuilding" if told.rebuild is not None:
            return (RebuildInCell(cell=told.cell, instance=told.id, rebuild=told.rebuild),)
        case "deleting":
            return (
                RemoveFromCell(
                    cell=told.cell, instance=told.id, request_id=told.request_id, issued_at=row.issued_at
                ),
            )
        case "error":
            return (InstanceFailed(cell=CELL0, instance=told), released(row))
        case "deleted":
            return (InstanceDeleted(cell=CELL0, instance=told), released(row))
        case _:
            return ()


def released(row: InstanceRow) -> ReleaseClaim:
    """A claim that may be on its way, by whoever asked it and in whatever cell, is to be freed or refused."""
    return release_of(row.id, row.issued_at)


def release_of(instance: InstanceId, issued_at: datetime) -> ReleaseClaim:
    return ReleaseClaim(cell=CELL0, consumer=instance, attempt=FIRST_ATTEMPT, issued_at=issued_at)


_DELETED_FIRST = "deleted before its request was seen"


def _next(
    row: InstanceRow,
    now: datetime,
    *,
    state: str,
    cell: str | None = None,
    reason: str | None = None,
    no_valid_host: NoValidHost | None = None,
) -> InstanceState:
    told = row.told
    return structs.replace(
        told,
        sequence=told.sequence + 1,
        state=state,
        cell=told.cell if cell is None else cell,
        reason=told.reason if reason is None else reason,
        no_valid_host=no_valid_host or told.no_valid_host,
        changed_at=now,
    )
