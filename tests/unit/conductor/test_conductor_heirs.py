"""Heirs hold what an instance leaves on a host. Nobody can foresee their ids, so nobody can occupy them."""

from collections.abc import Callable
from uuid import uuid5

import pytest
from msgspec import structs

from bus.messages.placement import SwapClaim
from cell_conductor.core.books import entry_of
from engine.refusals import NotAllowed
from tests.unit.conductor.cell import (
    CLAIMED,
    ONE,
    REMOVE,
    RULES,
    Cell,
    destroyed,
    place,
    released,
    spawned,
)
from tests.unit.conductor.test_conductor_moves import active, end, move, stopped
from tests.unit.conductor.test_conductor_offload import offloaded

TAKEN = NotAllowed(field="heir.id", reason="the id is taken")
ATTEMPT_S = RULES.attempt_timeout.total_seconds()


def moving() -> Cell:
    cell = active()
    cell.hear(move())
    cell.hear_due()
    return cell


def silent() -> Cell:
    """The host keeps silent, and the claim is to go to the alternate."""
    cell = Cell(place("h2"))
    cell.after_s(ATTEMPT_S)
    return cell


def going_back() -> Cell:
    """The destination keeps silent: its share beyond the source's is for a cleanup."""
    cell = active()
    cell.hear(move())
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1"))
    cell.after_s(ATTEMPT_S)
    cell.hear_due()
    return cell


def received_where_it_was_given_up() -> Cell:
    """The first host kept silent, and keeps the share of attempt 1. The instance moves from the second host to it."""
    cell = silent()
    cell.swap(CLAIMED)
    cell.hear(spawned(2, "h2"))
    cell.hear(move("live-migrate", "h1"))
    cell.swap(CLAIMED)
    return cell


BEGINS: tuple[Callable[[], Cell], ...] = (moving, silent, going_back)


def test_the_two_heirs_of_one_move_are_drawn_and_kept_on_the_row() -> None:
    cell = going_back()

    back = cell.swap_asked
    assert back.heir is not None
    assert (back.returns, back.heir.id) == (cell.row.moving and cell.row.moving.heir, cell.row.heir)
    # Nobody can foresee them.
    assert {back.returns, back.heir.id}.isdisjoint(uuid5(ONE, str(attempt)) for attempt in range(5))
    assert back.returns != back.heir.id


@pytest.mark.parametrize("begin", BEGINS)
def test_a_question_that_is_repeated_names_the_same_heir(begin: Callable[[], Cell]) -> None:
    cell = begin()
    first = cell.swap_asked
    cell.swap(None)
    cell.after_s(10)

    assert cell.swap_asked == first


def test_a_boot_without_a_silent_host_draws_nothing() -> None:
    cell = Cell(place("h2", "h3"))
    cell.hear(spawned(1, "h1"))
    cell.hear(REMOVE)
    cell.hear(destroyed(1, "h1"))

    assert cell.heirs == {}
    assert cell.draw() == Cell().draw()


@pytest.mark.parametrize("begin", [moving, silent])
def test_an_id_that_is_taken_ends_the_try_with_the_reason(begin: Callable[[], Cell]) -> None:
    cell = begin()
    while cell.row.state in ("moving", "swapping"):
        if not cell.last.swaps:
            cell.hear_due()
        # A move that was refused everywhere claims its own share anew, without an heir.
        cell.answer(cell.swap_asked, TAKEN if cell.swap_asked.heir is not None else CLAIMED)

    assert [each.reason for each in cell.row.failures][-1] == "not allowed: heir.id: the id is taken"
    assert cell.row.state == ("active" if begin is moving else "error")


@pytest.mark.parametrize("how", ["aborted", "silent"])
def test_a_host_that_must_destroy_two_attempts_frees_the_shares_of_both_in_the_end(how: str) -> None:
    cell = received_where_it_was_given_up()
    if how == "aborted":
        cell.hear(end(move("live-migrate", "h1"), "abort"))
    else:
        cell.after_s(ATTEMPT_S)
    # Of the first attempt nothing is left, and its heir's share waits for the other one.
    assert released(cell.hear(destroyed(1, "h1"))) == []
    cell.after_s(RULES.destroy_timeout.total_seconds())
    cell.swap(CLAIMED)

    assert released(cell.hear(destroyed(3, "h1"))) == [(cell.heir(3), 3), (cell.heir(1), 1)]
    assert cell.row.state == "active"


@pytest.mark.parametrize("how", ["aborted", "silent"])
def test_an_instance_that_is_deleted_while_a_host_must_destroy_two_attempts_frees_all_its_shares(
    how: str,
) -> None:
    cell = received_where_it_was_given_up()
    if how == "aborted":
        cell.hear(end(move("live-migrate", "h1"), "abort"))
    else:
        cell.after_s(ATTEMPT_S)
    cell.hear(destroyed(1, "h1"))
    cell.hear(REMOVE)

    free = released(cell.hear(destroyed(3, "h1"), destroyed(2, "h2")))
    assert (cell.heir(1), 1) in free
    assert {consumer for consumer, _ in free} == {ONE, *cell.heirs.values()}
    assert cell.row.state == "deleted"


def test_an_instance_that_is_not_built_again_where_it_was_given_up_frees_both_shares_there() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", "h2", "h3", number=60))
    cell.swap(CLAIMED)
    cell.after_s(ATTEMPT_S)
    cell.swap(CLAIMED)
    cell.hear(spawned(3, "h3"))
    cell.hear(move("offload", number=70))
    cell.hear(structs.replace(stopped(3, "h3", number=70), saved=f"{ONE}-70"))
    cell.hear(destroyed(3, "h3"))
    again = move("unshelve", "h2", "h4", number=80)
    cell.hear(again)
    cell.swap(CLAIMED)
    cell.after_s(ATTEMPT_S)
    cell.hear(destroyed(2, "h2"))
    cell.hear(end(again, "abort"))

    assert {*released(cell.hear(destroyed(4, "h2")))} == {(cell.heir(4), 4), (ONE, 5), (cell.heir(2), 2)}
    assert cell.row.state == "offloaded"


def test_an_audit_learns_which_consumers_a_cell_has_just_freed() -> None:
    cell = going_back()
    back = cell.swap_asked
    cell.answer(back, CLAIMED)
    cell.hear(destroyed(2, "h2"))

    assert back.heir is not None
    assert entry_of(cell.row, "c1").freed == (back.heir.id,)
    assert isinstance(back, SwapClaim)
