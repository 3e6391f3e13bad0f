"""Moves at API level: an order is checked, gets a number, and goes to the cell with the hosts that were chosen.

    active ─▶ moving ─▶ moved ─▶ moving ─▶ active       confirmed or reverted; or confirmed in the cell, after a time
    active ─▶ moving ─▶ stopped ─▶ moving ─▶ active     switched off on its host, and started again
    active ─▶ moving ─▶ shelved ─▶ moving ─▶ active     the same, by an order to shelve it
    active, shelved ─▶ moving ─▶ offloaded              saved as an image; unshelved, it is built on any host
    active ─▶ moving ─▶ active, error                   it failed or was aborted; in error it keeps its host

The cell does the moves, one at a time for an instance. The row is locked for each step here, so of two orders that exclude
each other one wins, and the other gets the reason.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from msgspec import structs

from bus.messages.build import (
    IN_PLACE,
    POWER,
    STOPPED_MEANWHILE,
    BuildRejected,
    InstanceState,
    Move,
    MoveKind,
    Waiting,
)
from bus.messages.moves import MOVES_PER_CELL, MOVES_PER_HOST, Change, EndMove, MoveInstance, is_to_wait_again
from engine.flavors import InstanceId, RequestId
from engine.hosts import cell_and_name
from engine.inventories import Choice, ProviderId
from engine.refusals import NoValidHost
from engine.requests.reading import DEADLINE_S_MAX, PRIORITY_MAX, WAIT_S_MAX
from scheduler_worker.core.instances.history import flavor_of
from scheduler_worker.core.instances.resizes import (
    problem_with_repeat,
    problem_with_resize,
    refused,
    what_goes_on,
    with_order,
)
from scheduler_worker.core.instances.rows import (
    ACTIVE,
    DELETED,
    ERROR,
    MOVED,
    MOVING,
    NO_REQUEST,
    OFFLOADED,
    SHELVED,
    STOPPED,
    HostDecision,
    InstanceRow,
    KeptMove,
    KeptRequest,
    is_of,
)

# Moves that wait for room: the row of an instance from the order until its cell gets the move, or until the wait ends.
#
#     active, stopped, shelved, offloaded, error   no host has room: the state stays, `waiting` is set, and the move has no outcome
#        ├─▶ moving           there is room: the move gets a new number and goes to the cell
#        ├─▶ the same state   the move ends: it was aborted, its time is up, or it is not possible any more
#        └─▶ deleting         a delete ends it, too
#
# While a move waits, the instance takes no other order but a delete. Events of its cell are taken, and leave the wait as it is.
# If other instances get the room before the cell has asked placement, the move waits again.


# What is lost comes before what is new.
EVACUATION_PRIORITY = PRIORITY_MAX + 1


# An evacuation that does not say how long it waits for room waits a day: an instance on a lost host runs nowhere.
EVACUATION_WAIT_S = 24 * 3600


class MoveWaits(NamedTuple):
    """How long the move of an order may wait for room, and with which priority."""

    for_s: int
    priority: int


def wait_of(order: MoveInstance) -> MoveWaits | None:
    """How the order waits if there is no room; None if it does not."""
    is_evacuation = order.kind == "evacuate"
    for_s = None if order.wait is None else order.wait.for_s
    priority = None if order.wait is None else order.wait.priority
    if for_s is None:
        for_s = EVACUATION_WAIT_S if is_evacuation else 0
    if priority is None:
        priority = EVACUATION_PRIORITY if is_evacuation else 0
    return MoveWaits(for_s, priority) if for_s else None


def problem_with_wait(order: MoveInstance) -> BuildRejected | None:
    wait = order.wait
    if wait is None:
        return None
    if order.kind != "evacuate" and wait.for_s is None:
        return refused(order, "wait.for_s", "", "say how many seconds the move waits for room")
    if wait.for_s is not None and not 0 <= wait.for_s <= WAIT_S_MAX:
        reason = f"a move waits 0 to {WAIT_S_MAX} seconds for room"
        return refused(order, "wait.for_s", wait.for_s, reason)
    most = EVACUATION_PRIORITY if order.kind == "evacuate" else PRIORITY_MAX
    if wait.priority is not None and not 0 <= wait.priority <= most:
        reason = f"a priority is 0 to {most}, the highest first"
        return refused(order, "wait.priority", wait.priority, reason)
    return None


def move_waits(
    row: InstanceRow,
    order: MoveInstance,
    wait: MoveWaits,
    now: datetime,
    *,
    kept: KeptRequest,
    reason: str,
    no_valid_host: NoValidHost,
    together: tuple[InstanceId, ...] = (),
) -> InstanceRow:
    """The row of an instance whose move begins to wait. The order was checked before; `kept` is what it is tried again with."""
    told = row.told
    number = told.sequence + 1
    until = now + timedelta(seconds=wait.for_s)
    move = Move(
        request_id=order.request_id,
        number=number,
        kind=order.kind,
        source=told.host,
        ends_by=until,
        confirm_s=order.confirm_s or 0 if order.kind in STOPPED_MEANWHILE and not together else 0,
        flavor=order.flavor,
        together=together,
        waits_until=until,
    )
    waiting = Waiting(until=until, priority=wait.priority, since=now, reason=reason)
    return structs.replace(
        with_order(row, order),
        told=structs.replace(
            told, sequence=number, move=move, waiting=waiting, no_valid_host=no_valid_host, changed_at=now
        ),
        order=None,
        unsaid=True,
        kept=kept,
        kept_move=KeptMove(
            order.request_id, kept.build, kept.digest, number, now, until, wait.priority, kept.needs
        ),
    )


def may_wait(row: InstanceRow, wait: MoveWaits, now: datetime, kept: KeptRequest) -> InstanceRow:
    """The row of a move that begins at once, and that waits if others get the room before its cell has asked placement."""
    move = row.told.move
    assert move is not None, "a row that moves has a move"
    until = now + timedelta(seconds=wait.for_s)
    return structs.replace(
        row,
        told=structs.replace(row.told, move=structs.replace(move, waits_until=until)),
        kept_move=KeptMove(
            move.request_id, kept.build, kept.digest, move.number, now, until, wait.priority, kept.needs
        ),
    )


def move_waits_on(row: InstanceRow, reason: str, no_valid_host: NoValidHost | None) -> InstanceRow:
    """The row of a move that waits on after another try, with the new reasons; the same row if they are the same as before.
    Clients see the reasons when they ask; no event tells them.
    """
    told = row.told
    assert told.waiting is not None, "a move that waits says until when"
    waiting = structs.replace(told.waiting, reason=reason)
    if (waiting, no_valid_host) == (told.waiting, told.no_valid_host):
        return row
    told = structs.replace(told, waiting=waiting, no_valid_host=no_valid_host, sequence=told.sequence + 1)
    return structs.replace(row, told=told)


def wait_ended(row: InstanceRow, outcome: str, why: str, now: datetime) -> InstanceRow:
    """The row of an instance whose move ends while it waits. The instance is what it was before the order."""
    told = row.told
    assert told.move is not None, "what waits is a move"
    told = structs.replace(
        told,
        sequence=told.sequence + 1,
        waiting=None,
        no_valid_host=None,
        move=structs.replace(told.move, outcome=outcome, failure=why),
        changed_at=now,
    )
    return structs.replace(row, told=told, order=None, unsaid=True, has_waited=True)


def overdue_wait(row: InstanceRow, now: datetime) -> InstanceRow | None:
    """The row whose move has failed, if it has waited until its time is up; otherwise None."""
    waiting = row.told.waiting
    if not row.move_waits or waiting is None or now < waiting.until:
        return None
    begun = waiting.since or row.issued_at
    waited_s = (waiting.until - begun).total_seconds()
    why = f"no valid host: it waited {waited_s:.0f} s for room, until {waiting.until}: {waiting.reason}"
    return wait_ended(row, "failed", why, now)


def waits_by(row: InstanceRow | None, order: MoveInstance) -> bool:
    """Does the instance's move wait by this order?"""
    if row is None or not row.move_waits:
        return False
    return row.told.move is not None and row.told.move.request_id == order.request_id


def before_wait(row: InstanceRow) -> InstanceRow:
    """The row as it would be without the order that waits: it is tried like a new one."""
    told = structs.replace(row.told, waiting=None, no_valid_host=None)
    return structs.replace(
        row, told=told, changes=row.changes[:-1], change_digests=row.change_digests[:-1], kept_move=None
    )


def as_new(row: InstanceRow, requests: Collection[RequestId]) -> InstanceRow:
    """The row as it would be without the order by which its move waits, if that has one of these request ids."""
    move = row.told.move
    return before_wait(row) if row.move_waits and move and move.request_id in requests else row


def begun(row: InstanceRow, waited: InstanceRow) -> InstanceRow:
    """The row of a move that has waited, and that its cell gets now."""
    move, kept = row.told.move, waited.kept_move
    assert move is not None, "a row that moves has a move"
    assert kept is not None, "a move that waited is kept"
    told = structs.replace(row.told, move=structs.replace(move, waits_until=kept.until))
    return structs.replace(row, told=told, has_waited=True, kept_move=kept)


def waits_through(row: InstanceRow, said: InstanceState) -> InstanceState:
    """The state that a cell has told, of an instance whose last move waits, or has ended while it waited: its cell does not know
    of this move. While it waits, the wait goes on.
    """
    told, kept = row.told, row.waited
    if kept is None or told.move is None or (said.move is not None and said.move.number >= told.move.number):
        return said
    said = structs.replace(said, move=told.move)
    if not row.move_waits or said.state == DELETED:
        return said
    return structs.replace(said, waiting=told.waiting, no_valid_host=told.no_valid_host)


def cut_short(told: InstanceState) -> InstanceState:
    """The state of an instance that is deleted while its move waits."""
    assert told.move is not None, "what waits is a move"
    move = structs.replace(told.move, outcome="aborted", failure="the instance was deleted")
    return structs.replace(told, move=move, waiting=None, no_valid_host=None)


def waits_again(row: InstanceRow, now: datetime) -> InstanceRow:
    """The row after an event of its cell: its move waits again, if it is to."""
    told, move, kept = row.told, row.told.move, row.waited
    if move is None or kept is None or not is_to_wait_again(told, now):
        return row
    last = told.failures[-1]
    waiting = Waiting(
        until=kept.until,
        priority=kept.priority,
        since=kept.since,
        reason=f"others got the room: {last.host}: {last.reason}",
    )
    told = structs.replace(
        told,
        sequence=told.sequence + 1,
        move=structs.replace(move, ends_by=kept.until, outcome="", failure="", destination="", asked=""),
        waiting=waiting,
    )
    return structs.replace(row, told=told, unsaid=True, kept=KeptRequest(kept.digest, kept.order, kept.needs))


# These do not count as moves of their hosts.
_BESIDE_HOSTS = (*IN_PLACE, "unshelve", "evacuate")
# The states in which these moves begin; others need an active instance.
_BEGIN_IN: dict[MoveKind, tuple[str, ...]] = {
    "migrate": (ACTIVE, STOPPED),
    "resize": (ACTIVE, STOPPED),
    "unshelve": (SHELVED, OFFLOADED),
    "offload": (ACTIVE, SHELVED),
    "evacuate": (ACTIVE, STOPPED, SHELVED),
    "start": (STOPPED,),
}
# In these states an order to switch the power has nothing to do.
_DONE_IN: dict[MoveKind, str] = {"stop": STOPPED, "start": ACTIVE}
CONFIRM_S_MAX = 30 * 86_400
_ENDS = {"confirm": "confirmed", "revert": "reverted", "abort": "aborted"}


def problem_with(row: InstanceRow | None, order: MoveInstance) -> BuildRejected | None:
    """Why the order to move cannot be done; None if it can, or if it was taken before (`is_taken`)."""
    if row is None or row.told.request_id == NO_REQUEST or not is_of(row, order.project):
        return refused(order, "instance", order.instance, "there is no such instance")
    told, last = row.told, row.told.move
    if is_taken(row, order):
        if last is not None and last.request_id == order.request_id and last.kind != order.kind:
            reason = f"duplicate id: a move with this id was taken before, to {last.kind}"
            return refused(order, "request_id", order.request_id, reason)
        return problem_with_repeat(row, order)
    if (problem := _problem_with_values(row, order)) is not None:
        return problem
    may_begin = told.state in _BEGIN_IN.get(order.kind, (ACTIVE,)) or (
        order.kind == "evacuate" and told.state == ERROR and told.keeps_share and told.host
    )
    if is_done(row, order) or (may_begin and not row.move_waits):
        return None
    return refused(order, "instance", order.instance, _why_not_now(row, order))


def why_busy(row: InstanceRow, kind: MoveKind) -> str:
    """Why the instance cannot leave its host now, whatever room there is; empty if it can, by this kind of move or by another one."""
    told = row.told
    may_leave = told.state in _BEGIN_IN[kind] or (told.state == ERROR and told.keeps_share)
    return (
        "" if may_leave and told.host and not row.move_waits else what_goes_on(told) or f"it is {told.state}"
    )


def is_on(told: InstanceState, name: str) -> bool:
    """Is this the name of the host that the instance is on? A name without a cell means a host of the instance's cell."""
    cell, plain = cell_and_name(name)
    return cell in ("", told.cell) and plain.lower() == told.host.lower()


def stays_on_host(row: InstanceRow, kind: MoveKind) -> bool:
    """Does this kind of move leave the instance on its host, so that no host is chosen?"""
    return kind in IN_PLACE or (kind == "unshelve" and row.told.state != OFFLOADED)


def why_stays_on_node(host: str, kind: MoveKind) -> str:
    if kind in POWER:
        return f"it is on bare-metal node {host}, whose power Ironic switches: `moor node power on|off|reboot {host}`"
    return f"it is on bare-metal node {host}: its disk is there, so it cannot move or be shelved"


def _problem_with_values(row: InstanceRow, order: MoveInstance) -> BuildRejected | None:
    if order.source and not is_on(row.told, order.source):
        return refused(order, "source", order.source, f"it is on {row.told.host or 'no host'}")
    if order.deadline_s is not None and not 1 <= order.deadline_s <= DEADLINE_S_MAX:
        reason = f"a deadline is 1 to {DEADLINE_S_MAX} seconds away"
        return refused(order, "deadline_s", order.deadline_s, reason)
    if order.confirm_s is not None and not 0 <= order.confirm_s <= CONFIRM_S_MAX:
        reason = f"a move is confirmed by itself after 0 to {CONFIRM_S_MAX} seconds"
        return refused(order, "confirm_s", order.confirm_s, reason)
    if (problem := problem_with_resize(order) or problem_with_wait(order)) is not None:
        return problem
    if order.hosts and stays_on_host(row, order.kind):
        reason = f"it stays on its host, or leaves it for none: to {order.kind} it, name none"
        return refused(order, "hosts", ", ".join(order.hosts), reason)
    return None


def is_taken(row: InstanceRow, order: MoveInstance) -> bool:
    return order.request_id in row.changes


def is_done(row: InstanceRow, order: MoveInstance) -> bool:
    """Is the instance as the order wants it, so that there is nothing to do? The row remembers such an order, too: a late copy of it
    must not switch the instance after the next one.
    """
    return _DONE_IN.get(order.kind) == row.told.state and not row.move_waits


def _why_not_now(row: InstanceRow, order: MoveInstance) -> str:
    told = row.told
    if reason := what_goes_on(told):
        return reason
    *others_first, last = _BEGIN_IN.get(order.kind, (ACTIVE,))
    needed = " or ".join(filter(None, (", ".join(others_first), last)))
    others = ", or in error with its host" if order.kind == "evacuate" else ""
    return f"it is {told.state}: to {order.kind}, it must be {needed}{others}"


def moved(
    row: InstanceRow,
    order: MoveInstance,
    choices: Sequence[Choice],
    now: datetime,
    *,
    timeout_s: int,
    confirm_s: int,
    next_spec: bytes = b"",
    of: tuple[int, int] = (0, 0),
    together: tuple[InstanceId, ...] = (),
    leaves: tuple[ProviderId, ...] = (),
) -> InstanceRow:
    """The row with a new move, which is on its way to the cell. The order to move was checked before. `next_spec` is for a
    resize: the needs and the flavor that the instance gets. `of` says how many hosts there were when the choices were
    made, and how many qualified.
    """
    told = row.told
    number = told.sequence + 1
    move = Move(
        request_id=order.request_id,
        number=number,
        kind=order.kind,
        source=told.host,
        ends_by=now + timedelta(seconds=timeout_s if order.deadline_s is None else order.deadline_s),
        confirm_s=(confirm_s if order.confirm_s is None else order.confirm_s)
        if order.kind in STOPPED_MEANWHILE and not together
        else 0,
        flavor=flavor_of(next_spec) or order.flavor,
        together=together,
        leaves=leaves,
        source_epoch=order.source_epoch,
    )
    return structs.replace(
        with_order(row, order),
        told=structs.replace(
            told, sequence=number, state=MOVING, reason="", keeps_share=False, move=move, changed_at=now
        ),
        order=None,
        choices=tuple(choices),
        move_decision=_decision(order, choices, now, of) if choices else row.move_decision,
        next_spec=next_spec,
        kept_move=None,
        unsaid=True,
    )


def _decision(
    order: MoveInstance, choices: Sequence[Choice], now: datetime, of: tuple[int, int]
) -> HostDecision:
    # A host may be here several times, with other ways to take the amounts.
    host, *others = dict.fromkeys([each.name for each in choices])
    return HostDecision(now, *of, host, tuple(others), what=order.kind, request_id=order.request_id)


class MoveRoom:
    """Counts the moves that go on, by host and by cell, and refuses those beyond the limits. A limit of 0 allows any
    number.
    """

    def __init__(self, going: Iterable[Change], host_max: int, cell_max: int) -> None:
        self._host_max = host_max
        self._cell_max = cell_max
        # A name counts only inside its cell.
        self._hosts: Counter[tuple[str, str]] = Counter()
        self._cells: Counter[str] = Counter()
        for each in going:
            self._count(each.what, each.cell, (each.source, each.destination))

    def take(self, row: InstanceRow, order: MoveInstance) -> BuildRejected | None:
        """Count the row's new move against the limits of its cell and its hosts; or return why it must wait. Instances that move
        together count as one move.
        """
        told, move = row.told, row.told.move
        assert move is not None, "a row that moves has a move"
        hosts = (move.source, *(choice.name for choice in row.choices[:1]))
        if self._cell_max and self._cells[told.cell] >= self._cell_max:
            why = f"cell {told.cell} has {self._cells[told.cell]} moves under way, at most {self._cell_max}: ask again later"
            return refused(order, MOVES_PER_CELL, self._cell_max, why)
        if self._host_max and move.kind not in _BESIDE_HOSTS:
            for host in hosts:
                if (going := self._hosts[told.cell, host]) >= self._host_max:
                    why = (
                        f"host {host} has {going} moves under way, at most {self._host_max}: ask again later"
                    )
                    return refused(order, MOVES_PER_HOST, self._host_max, why)
        self._count(move.kind, told.cell, hosts)
        return None

    def _count(self, kind: str, cell: str, hosts: Iterable[str]) -> None:
        self._cells[cell] += 1
        self._hosts.update({(cell, host) for host in hosts if host and kind not in _BESIDE_HOSTS})


def move_ended(
    row: InstanceRow | None, order: EndMove, now: datetime, is_up: Callable[[str, str], bool]
) -> InstanceRow | BuildRejected:
    """The row after an order to confirm, revert or abort its move, or why the order is refused. The same object if that
    end was asked before. `is_up` tells of a cell and a host's name whether the host is up.
    """
    if row is None or row.told.request_id == NO_REQUEST or not is_of(row, order.project):
        return refused(order, "instance", order.instance, "there is no such instance")
    told, move = row.told, row.told.move
    if move is None or move.request_id != order.request_id:
        last = f": its last move is by request {move.request_id}" if move else ""
        return refused(order, "request_id", order.request_id, f"the instance has no such move{last}")
    if order.how == move.asked or move.outcome == _ENDS[order.how]:
        return row
    reason = _why_not_end(row, move, order)
    if not reason and order.how == "revert" and not is_up(told.cell, move.source):
        reason = f"its first host {move.source} is down, and the instance would be destroyed where it runs now: confirm the move"
    if reason:
        return refused(order, "how", order.how, reason)
    if row.move_waits:
        return wait_ended(row, "aborted", "", now)
    told = structs.replace(
        told,
        sequence=told.sequence + 1,
        state=MOVING,
        move=structs.replace(move, asked=order.how),
        changed_at=now,
    )
    return structs.replace(row, told=told, order=None, unsaid=True)


def _why_not_end(row: InstanceRow, move: Move, order: EndMove) -> str:
    if row.move_waits:
        return "" if order.how == "abort" else "the move waits for room, and has not begun: abort it, or wait"
    return _why_not_end_in_cell(row.told.state, move, order)


def _why_not_end_in_cell(state: str, move: Move, order: EndMove) -> str:
    if move.outcome:
        return f"the move is {move.outcome}"
    if move.asked:
        return f"the move is about to be {_ENDS[move.asked]}"
    if state not in (MOVING, MOVED):
        return f"the move is over: the instance is {state}"
    if order.how == "abort" and state == MOVED:
        return "the instance has arrived already: confirm or revert the move"
    if order.how != "abort" and state == MOVING:
        return "the instance has not arrived yet: abort the move, or wait"
    return ""
