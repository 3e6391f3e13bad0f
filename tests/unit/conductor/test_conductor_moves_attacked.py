"""Every row that a move can reach, and messages that nobody sends in order: old numbers, strange attempts, a delete at any step.

The rows are those of the table of the site's page moves-reference (tools/pages/moves_page.py).
"""

from collections.abc import Iterator

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceFailed
from bus.messages.cell import DestroyInstance, StartInstance
from cell_conductor.core.books import entry_of
from cell_conductor.core.rows import Instance
from engine.inventories import ConsumerId, ProviderId
from tests.unit.conductor.cell import (
    CLAIMED,
    ONE,
    REMOVE,
    RULES,
    Cell,
    destroy,
    destroyed,
    failed,
    host,
    kinds,
    released,
    spawned,
)
from tests.unit.conductor.test_conductor_hosts import DEAD, LOST, SILENT
from tests.unit.conductor.test_conductor_moves import active, end, move, started, stopped
from tests.unit.conductor.test_conductor_nodes import place_on_node
from tests.unit.conductor.test_conductor_rebuilds_on_hosts import REMIND_S, not_restarted
from tools.pages.moves_page import KINDS, heard, place_of

ENDS = ("deleting", "deleted")
NAMES = {host(name): name for name in ("h1", "h2", "h3")}


def rows() -> Iterator[Instance]:
    """One of several that differ in their numbers alone."""
    yield from {
        _likeness(each.after): each.after for each in heard() if each.after.state not in ENDS
    }.values()


def _likeness(row: Instance) -> tuple[object, ...]:
    moving = row.moving and structs.replace(
        row.moving, source_attempt=0, heir_attempt=min(row.moving.heir_attempt, 1)
    )
    cleanups = [(each.attempt - row.attempt, each.host, len(each.release)) for each in row.cleanups]
    is_kept = row.kept_attempt > 0
    kind = row.move and row.move.kind
    return (
        row.state,
        kind,
        repr(moving),
        str(cleanups),
        row.host,
        is_kept,
        row.was_silent,
        row.must_clean_up,
        row.tries,
    )


def places(row: Instance) -> set[tuple[int, ProviderId]]:
    """The attempts of which a host may have something, but for those that were given up before."""
    own = {(row.host_attempt, row.host.share.host)} if row.host is not None else set()
    moving = row.moving
    return own if moving is None else own | {(moving.source_attempt, moving.source.share.host)}


def may_hold(row: Instance) -> dict[ConsumerId, int]:
    """The consumers that may hold something, and by which attempt."""
    held = {each.consumer: each.attempt for cleanup in row.cleanups for each in cleanup.release}
    if row.state != "offloaded":
        held[ONE] = row.last_attempt
    moving = row.moving
    if moving is not None and moving.heir_attempt:
        held[moving.source_heir().consumer] = moving.heir_attempt
    elif moving is not None and moving.has_asked and row.heir is not None:
        held[row.heir] = row.attempt
    return held


def in_cell(row: Instance) -> Cell:
    cell = Cell()
    cell.rows = {ONE: row}
    return cell


def without_sequence(row: Instance) -> Instance:
    return structs.replace(row, sequence=0)


def test_orders_with_a_number_that_is_over_change_nothing_in_any_step() -> None:
    for row in rows():
        if row.move is None:
            continue
        for number in (row.move.number - 1, row.move.number):
            for kind in KINDS:
                cell = in_cell(row)
                assert cell.hear(move(kind, "h3", number=number)) == [], place_of(row)
                assert without_sequence(cell.row) == without_sequence(row), (place_of(row), kind)
        for how in ("confirm", "revert", "abort"):
            cell = in_cell(row)
            assert cell.hear(end(move(number=row.move.number - 1), how)) == [], place_of(row)
            assert without_sequence(cell.row) == without_sequence(row), (place_of(row), how)


def test_words_about_attempts_that_never_were_change_nothing_in_any_step() -> None:
    for row in rows():
        number = row.move.number if row.move is not None else 0
        cell = in_cell(row)
        said = cell.hear(
            stopped(90, "h1", number=number),
            structs.replace(failed(90, "h1"), number=number),
            destroyed(90, "h1"),
            structs.replace(spawned(90, "h1"), number=number),
        )
        assert [(each.attempt, each.host) for each in said] == [(90, host("h1"))], place_of(row)  # type: ignore[attr-defined]
        assert without_sequence(cell.row) == without_sequence(row), place_of(row)


def test_late_words_about_attempts_that_are_over_change_nothing_in_any_step() -> None:
    for row in rows():
        known = places(row) | {(each.attempt, each.host) for each in row.cleanups}
        for attempt in range(1, row.attempt + 1):
            for name in ("h1", "h2", "h3"):
                if (attempt, host(name)) in known:
                    continue
                cell = in_cell(row)
                said = cell.hear(
                    stopped(attempt, name),
                    failed(attempt, name),
                    destroyed(attempt, name),
                    spawned(attempt, name),
                )
                assert set(kinds(said)) <= {DestroyInstance}, place_of(row)
                assert without_sequence(cell.row) == without_sequence(row), place_of(row)


def test_a_question_is_repeated_in_equal_words_whatever_is_ordered_meanwhile() -> None:
    cell, order = active(), move("migrate", "h2", "h3")
    cell.hear(order)
    cell.after_s(0)
    asked = cell.swap_asked
    cell.swap(None)
    cell.hear(end(order, "abort"))
    cell.after_s(1)
    assert cell.swap_asked == asked
    cell.after_s(1000)
    assert cell.swap_asked == asked


def test_an_evacuated_instance_is_deleted_and_the_rest_stays_until_the_source_has_cleaned_up_or_is_dead() -> (
    None
):
    for is_dead in (False, True):
        cell = active()
        cell.hear(move("evacuate"))
        cell.swap(CLAIMED)
        cell.hear(spawned(2, "h2"))
        cell.confirm_all()
        cell.hear(REMOVE)
        assert released(cell.hear(destroyed(2, "h2"))) == [(ONE, 2)]
        assert cell.row.state == "deleted"
        cell.after_s(5000)
        said = cell.hear(LOST, hosts=DEAD) if is_dead else cell.hear(destroyed(1, "h1"))
        assert released(said) == [(cell.heir(1), 1)]


def test_a_source_that_returns_while_it_is_evacuated_changes_nothing_and_is_cleaned_up_in_the_end() -> None:
    cell = active()
    cell.hear(move("evacuate"), hosts=SILENT)
    cell.swap(CLAIMED)
    before = cell.row
    assert released(cell.hear(spawned(1, "h1"), stopped(1, "h1"), failed(1, "h1"), destroyed(1, "h1"))) == []
    assert without_sequence(cell.row) == without_sequence(before)
    assert destroy(1, "h1") in cell.hear(spawned(2, "h2"))
    assert cell.row.state == "active"


def test_an_instance_on_a_node_does_not_move() -> None:
    cell = Cell(place_on_node(), spawned(1, "n1"))
    cell.confirm_all()
    (told,) = cell.hear(move("migrate", "h2"))
    assert isinstance(told, InstanceActive)
    assert told.instance.move is not None
    assert (told.instance.host, told.instance.move.outcome, told.instance.move.failure) == (
        "n1",
        "failed",
        "an instance on a bare-metal node has its disk there, and cannot move",
    )


def test_a_row_that_waits_is_due_at_some_time() -> None:
    for row in rows():
        if row.state not in ("active", "stopped", "shelved", "offloaded", "broken"):
            assert row.due_at is not None, place_of(row)


@pytest.mark.parametrize("is_backwards", [False, True])
def test_a_delete_in_any_step_releases_every_claim_once_and_none_before_its_hosts_have_cleaned_up(
    *, is_backwards: bool
) -> None:
    for row in rows():
        held = may_hold(row)
        has_hosts = bool(entry_of(row, RULES.cell).on_hosts)
        cell = in_cell(row)
        free = released(cell.hear(REMOVE))
        assert not (free and has_hosts and row.state != "swapping"), place_of(row)
        for each in cell.row.cleanups[:: -1 if is_backwards else 1]:
            said = cell.hear(destroyed(each.attempt, NAMES[each.host]))
            if ONE in dict(released(said)):
                left = {(each.attempt, each.host) for each in cell.row.cleanups}
                assert not left & places(row), place_of(row)
            free += released(said)
        assert (cell.row.state, cell.row.cleanups) == ("deleted", ()), place_of(row)
        assert len({consumer for consumer, _ in free}) == len(free), (place_of(row), free)
        for consumer, attempt in held.items():
            assert dict(free).get(consumer, 0) >= attempt, (place_of(row), row)


def test_an_abort_that_overtakes_an_evacuation_undoes_it_while_the_source_is_asked_to_run_it_again() -> None:
    cell, order = not_restarted(), move("evacuate", number=300)
    (told,) = cell.hear(end(order, "abort"))
    assert isinstance(told, InstanceFailed)
    assert told.instance.move is not None
    assert (told.instance.move.number, told.instance.move.outcome) == (300, "aborted")
    cell.confirm_all()
    assert cell.hear(order) == []
    (start,) = cell.after_s(REMIND_S)
    assert isinstance(start, StartInstance)
    (active,) = cell.hear(started("h1", number=start.number))
    assert isinstance(active, InstanceActive)
    assert active.instance.move is not None
    assert active.instance.move.outcome == "aborted"
