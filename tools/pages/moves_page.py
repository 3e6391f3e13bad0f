"""The site's page moves-reference: the state machine of moves and rebuilds, from the code. The picture is the docstring of the conductor's
module, and the table is what its decisions lead to.

The table is found by trying: every message that is about the current attempts is heard in every row that can be reached.
"""

from collections.abc import Iterator
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING
from uuid import UUID

from msgspec import Struct, structs

from bus.messages.build import MoveKind
from bus.messages.cell import EndMoveInCell
from cell_conductor.core import moving
from cell_conductor.core.decide import Due, HostsLost, Input, decide
from cell_conductor.core.moving import image_of
from cell_conductor.core.rows import ALL_UP, DrawId, HostStates, Instance, SwapAnswered
from engine.inventories import ConsumerId
from engine.refusals import NotAllowed
from tests.unit.conductor.cell import (
    CLAIMED,
    FULL,
    NOON,
    ONE,
    REMOVE,
    RULES,
    Cell,
    choice,
    destroyed,
    failed,
    move,
    place,
    rebuild,
    redeployed,
    spawned,
    stopped,
)

if TYPE_CHECKING:
    from engine.flavors import InstanceId
    from engine.refusals import ClaimVerdict

HEAD = """# The steps of moves

The drawing is the docstring of `cell_conductor/core/moving.py`. The table is made by trying every message in every row that a move
can reach; a message of an attempt that is over changes nothing anywhere. [moves.md](moves.md) explains moves.
"""
KINDS: tuple[MoveKind, ...] = (
    "migrate",
    "live-migrate",
    "resize",
    "evacuate",
    "shelve",
    "offload",
    "unshelve",
    "stop",
    "start",
    "reboot",
)
# An instance that was offloaded is unshelved once more if that failed.
TRIES_MAX = 2
# How a rebuild ends: its failure, and whether the instance runs.
REBUILT = (("rebuilt", "", True), ("not rebuilt", "no image", False), ("not begun", "refused", True))
LATER = timedelta(days=1)
# In these a move is over, and another one begins it all again.
ENDS = ("deleting", "deleted")


class Heard(Struct, frozen=True):
    """One message in one row, and the row after it; `after` is the same object if nothing changed."""

    before: Instance
    name: str
    after: Instance


def page() -> str:
    assert moving.__doc__ is not None, "the module draws its moves"
    return "\n".join((HEAD, "```", moving.__doc__.strip(), "```", "", *_table(), ""))


@cache
def heard() -> list[Heard]:
    """Every message in every row that a move can reach."""
    begun = _plain(Cell(place(), spawned(1, "h1")).row)
    waiting = [begun, structs.replace(begun, state="broken")]
    seen, found = {repr(row) for row in waiting}, []
    while waiting:
        row = waiting.pop()
        for each in _heard_by(row):
            found.append(each)
            if each.after.state not in ENDS and repr(each.after) not in seen:
                seen.add(repr(each.after))
                waiting.append(each.after)
    return found


def place_of(row: Instance) -> str:
    if row.is_unshelving:
        return f"unshelving: {row.state}"
    if row.moving is not None and row.state != "moved":
        return f"{row.state}: {row.moving.step}"
    return "broken: host is asked" if row.state == "broken" and row.state_ends_at is not None else row.state


def _table() -> Iterator[str]:
    leads: dict[str, dict[str, set[str]]] = {}
    for each in heard():
        after = leads.setdefault(place_of(each.before), {}).setdefault(each.name, set())
        after.add(place_of(each.after))
    yield "| in | what comes, and where it leads | it stays there |"
    yield "|---|---|---|"
    for where, names in sorted(leads.items()):
        lines = [
            f"{name} → {' or '.join(sorted(after))}" for name, after in names.items() if after != {where}
        ]
        stays = [name for name, after in names.items() if after == {where}]
        yield f"| {where} | {'<br>'.join(lines)} | {', '.join(stays)} |"


def _plain(row: Instance) -> Instance:
    """The row without what does not decide where it goes: sent messages, times, and how often something was asked."""
    return structs.replace(
        row,
        changed_at=NOON,
        sequence=0,
        outbox=(),
        failures=(),
        reason="",
        tries=min(row.tries, 1),
        state_ends_at=None if row.state_ends_at is None else NOON,
        remind_at=None if row.remind_at is None else NOON + LATER * 2,
        move=row.move
        and structs.replace(row.move, number=50, asked="", destination="", confirm_by=None, failure=""),
        saved=row.saved and "its image",
        moving=row.moving and structs.replace(row.moving, reason=""),
        rebuild=row.rebuild and structs.replace(row.rebuild, failure=""),
    )


def _heard_by(row: Instance) -> Iterator[Heard]:
    for name, inputs in _messages(row):
        yield _hear(row, name, *inputs)
    for name, host in _hosts(row).items():
        silent = HostStates(silent=frozenset({choice(host).share.host.int}))
        yield _hear(row, f"{name} is lost", HostsLost(ONE), hosts=silent)
    if row.state_ends_at is not None:
        yield from _due(row)


def _messages(row: Instance) -> Iterator[tuple[str, tuple[Input, ...]]]:
    if (first := _next_number(row)) is not None:
        for number, kind in enumerate(KINDS, first):
            yield kind, (move(kind, "h2", "h3", number=number),)
        in_place = move("resize", number=first + len(KINDS))
        yield "resize in place", (structs.replace(in_place, choices=(choice("h1"),)),)
    if row.move is not None:
        for how in ("confirm", "revert", "abort"):
            asked = structs.replace(row.move, asked=how)
            yield how, (EndMoveInCell(cell="c1", instance=ONE, move=asked, sequence=60),)
    if row.rebuild is None:
        yield "rebuild", (rebuild(80),)
    else:
        for name, failure, is_active in REBUILT:
            word = redeployed(
                80,
                failure=failure,
                is_active=is_active,
                attempt=row.host_attempt,
                name=_host(row) if row.host is not None else "h1",
            )
            yield f"the host: {name}", (word,)
    yield "delete", (REMOVE,)
    source, at_source = _source(row)
    number = row.move.number if row.move is not None else 0
    yield "the source: stopped", (stopped(source, at_source, number=number),)
    if row.move is not None:
        saved = structs.replace(stopped(source, at_source, number=number), saved=image_of(ONE, row.move))
        yield "the source: saved", (saved,)
    yield "the source: not stopped", (stopped(source, at_source, "it hangs", number=number),)
    yield "the source: it runs", (structs.replace(spawned(source, at_source), number=number),)
    yield "the source: it does not start", (structs.replace(failed(source, at_source), number=number),)
    yield "the source: destroyed", (destroyed(source, at_source),)
    if row.host is not None and row.host_attempt != source:
        yield "the destination: it runs", (spawned(row.host_attempt, _host(row)),)
        yield "the destination: it is stopped", (stopped(row.host_attempt, _host(row)),)
        yield "the destination: it failed", (failed(row.host_attempt, _host(row)),)
        yield "the destination: destroyed", (destroyed(row.host_attempt, _host(row)),)


def _next_number(row: Instance) -> int | None:
    """The number of a further move; None if none is tried."""
    if row.move is None:
        return 50
    if (row.state, row.move.kind) in (("shelved", "shelve"), ("stopped", "stop")):
        return 60
    return 60 if row.state == "offloaded" and row.attempt <= TRIES_MAX else None


def _source(row: Instance) -> tuple[int, str]:
    """The attempt and the host from which it moves, or was offloaded."""
    if row.moving is not None:
        return row.moving.source_attempt, row.moving.source.name
    return (1, "h1") if row.saved or row.host is None else (row.host_attempt, _host(row))


def _hosts(row: Instance) -> dict[str, str]:
    source, at_source = _source(row)
    if row.host is None or row.host_attempt == source:
        return {"the source": at_source}
    return {"the source": at_source, "the destination": _host(row)}


def _host(row: Instance) -> str:
    assert row.host is not None
    return row.host.name


def _due(row: Instance) -> Iterator[Heard]:
    """Time passes: placement answers what it is asked then, or a timeout comes."""
    asked = decide({ONE: row}, [Due(ONE)], NOON, RULES, draw=_drawing(row))
    if not asked.swaps:
        yield _hear(row, "its time is up", Due(ONE))
    verdicts: tuple[tuple[str, ClaimVerdict], ...] = (("claimed", CLAIMED), ("refused", FULL))
    if row.moving is not None and row.moving.step == "returning":
        verdicts = (*verdicts, ("refused for ever", TAKEN))
    for name, verdict in verdicts if asked.swaps else ():
        yield _hear(row, f"placement: {name}", Due(ONE), SwapAnswered(ONE, asked.swaps[0], verdict))
    if asked.swaps:
        yield _hear(row, "placement: no answer", Due(ONE))
    if row.move is not None and (row.state == "moving" or row.is_unshelving):
        yield _hear(row, "the move's deadline", Due(ONE), later=LATER)


# Of the consumer itself: the same answer comes to each repetition.
TAKEN = NotAllowed(field="consumer", reason="the id is taken")


def _drawing(row: Instance) -> DrawId:
    """Draws the same heir for the same attempt, so that equal rows are found to be equal."""
    return lambda: ConsumerId(UUID(int=1_000_000 + row.attempt))


def _hear(
    row: Instance, name: str, *inputs: Input, later: timedelta = timedelta(0), hosts: HostStates = ALL_UP
) -> Heard:
    rows: dict[InstanceId, Instance] = {ONE: row}
    for each in inputs:
        draw = _drawing(rows[ONE])
        decided = decide(rows, [each], NOON + later, RULES, hosts, draw=draw)
        rows |= {changed.id: changed for changed in decided.rows}
    after = _plain(rows[ONE])
    return Heard(row, name, row if after == row else after)
