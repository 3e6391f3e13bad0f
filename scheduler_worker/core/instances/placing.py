"""An instance from its acceptance until it has a host, or ends without one: its row after each outcome of a search.

The states that follow, and all of them in a picture: lifecycle.py.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import structs

from bus.messages.audit import AdoptInstance
from bus.messages.build import BuildInstance, ClaimRefused, InstanceState, Move, Waiting
from bus.messages.cell import AdoptInCell, PlaceInCell
from bus.topology import CELL0
from engine.choosing.verdicts import EndedElsewhere, FlavorFound, Holds, Outcome, SearchRefused
from engine.flavors import FlavorPassedOver, InstanceId
from engine.hosts import NODE
from engine.inventories import Choice, ServerGroup
from engine.refusals import NoValidHost
from scheduler_worker.core.instances.rows import (
    ACCEPTED,
    ACTIVE,
    DELETED,
    DELETING,
    ERROR,
    FIRST_ATTEMPT,
    PLACED,
    SHELVED,
    STOPPED,
    WAITING,
    HostDecision,
    InstanceRow,
    KeptRequest,
)


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
    """The row after its search had this outcome. None if the row was decided otherwise meanwhile, or if there is no
    outcome. With `kept`, an instance for which there is no room now begins to wait. `found` is given for a request that
    accepts several flavors.
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
            after = _without_host(row, build, why, refusals, now, kept=kept if why.may_pass else None)
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


def after_failed_wake(
    row: InstanceRow,
    outcome: NoValidHost | SearchRefused,
    refusals: Sequence[ClaimRefused],
    found: FlavorFound | None = None,
) -> InstanceRow | None:
    """The row of an instance that goes on waiting after this search; None if it failed for the same reasons as the last one."""
    why = _refused(outcome)
    return waits_on(
        row,
        reason=why.reason,
        no_valid_host=why.no_valid_host,
        refusals=tuple(refusals),
        passed_over=() if found is None else found.passed_over,
    )


def _refused(why: NoValidHost | SearchRefused) -> SearchRefused:
    return SearchRefused("no valid host", why, may_pass=True) if isinstance(why, NoValidHost) else why


def _without_host(
    row: InstanceRow,
    build: BuildInstance,
    why: SearchRefused,
    refusals: Sequence[ClaimRefused],
    now: datetime,
    *,
    kept: KeptRequest | None,
) -> InstanceRow | None:
    if kept is None or build.wait is None:
        return failed(row, now, reason=why.reason, no_valid_host=why.no_valid_host, refusals=tuple(refusals))
    priority = build.wait.priority
    return waits(row, now, kept, priority=priority, reason=why.reason, no_valid_host=why.no_valid_host)


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


def waits_on(
    row: InstanceRow,
    *,
    reason: str,
    no_valid_host: NoValidHost | None,
    refusals: tuple[ClaimRefused, ...],
    passed_over: tuple[FlavorPassedOver, ...] = (),
) -> InstanceRow | None:
    """The row of a waiting instance after another search that found no host, with the new reasons; None if they are the
    same as before. Clients see the reasons when they ask; no event tells them.
    """
    told = structs.replace(
        row.told, reason=reason, no_valid_host=no_valid_host, refusals=refusals, passed_over=passed_over
    )
    if told == row.told:
        return None
    return structs.replace(row, told=structs.replace(told, sequence=told.sequence + 1))


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


# The rows of instances that are taken over from another cloud, and given back to it.
#
# Their hosts have them already. So such a row begins as `placed`, with the order to its cell to take the instance over.


# Moves after which the other cloud would still find its instance as it left it.
_HARMLESS = ("shelve", "stop", "start", "reboot", "unshelve")


def attempt_of(known: InstanceRow | None) -> int | None:
    """The attempt by which an instance is taken over; None if it is here already. One that was given back comes again by a later
    attempt.
    """
    if known is None:
        return FIRST_ATTEMPT
    if known.given_back and known.told.state == DELETED:
        return known.told.attempt + 1
    return None


def adopted_row(
    order: AdoptInstance,
    known: InstanceRow | None,
    attempt: int,
    now: datetime,
    timeout: timedelta,
    *,
    spec: bytes,
    group: ServerGroup | None,
    by: str,
) -> InstanceRow:
    sequence = 2 if known is None else known.told.sequence + 1
    told = InstanceState(
        id=order.instance,
        request_id=order.request_id if known is None else known.told.request_id,
        sequence=sequence,
        state=PLACED,
        cell=order.of_cell,
        host=order.host,
        attempt=attempt,
        name=order.name,
        project=order.project,
        changed_at=now,
    )
    to_cell = AdoptInCell(
        cell=order.of_cell,
        instance=order.instance,
        request_id=told.request_id,
        sequence=sequence,
        attempt=attempt,
        issued_at=now,
        ends_by=now + timeout,
        flavor=order.flavor,
        chosen=Choice(name=order.host, share=order.share),
        name=order.name,
        project=order.project,
        user=order.user,
        image_properties=order.image_properties,
        group=group,
        image=order.image,
        state=order.state,
        reason=order.reason,
    )
    row = InstanceRow(
        told=told,
        issued_at=order.created_at,
        ends_by=now + timeout,
        order=to_cell,
        unsaid=True,
        spec=spec,
        by=by,
        adopted=True,
    )
    if known is None:
        return row
    # What was written with its first row stays there; so a flavor that has changed since counts like a resize.
    return structs.replace(
        row, heard=known.heard, issued_at=known.issued_at, spec=known.spec, resized_spec=spec
    )


def why_not_given_back(row: InstanceRow) -> str:
    """Why the instance cannot go back to the cloud that it came from; empty if it can."""
    told = row.told
    if not row.adopted:
        return "it was built here"
    if told.state not in (ACTIVE, STOPPED, SHELVED, ERROR, PLACED):
        return f"it is {told.state}"
    if told.rebuild is not None:
        return "it was rebuilt here"
    if told.move is not None and not _is_harmless(told.move):
        return f"it has moved here ({told.move.kind})"
    return ""


def _is_harmless(move: Move) -> bool:
    return bool(move.outcome) and (move.kind in _HARMLESS or move.outcome in ("reverted", "aborted"))


def given_back(row: InstanceRow, now: datetime) -> InstanceRow:
    """The row whose cell is told to give the instance back; the same row if that was done before."""
    if row.given_back and row.told.state in (DELETING, DELETED):
        return row
    told = next_state(row, now, state=DELETING)
    return structs.replace(row, told=told, order=None, unsaid=True, given_back=True)


def why_other(known: InstanceRow, order: AdoptInstance) -> str:
    """What the row of an instance that is here already has otherwise than the order; empty if nothing."""
    told = known.told
    if told.state == DELETED:
        return "it was deleted here"
    if not known.adopted:
        return "an instance with this id was built here"
    if (told.cell, told.host) != (order.of_cell, order.host):
        return f"it is on {told.cell}/{told.host} here"
    return ""
