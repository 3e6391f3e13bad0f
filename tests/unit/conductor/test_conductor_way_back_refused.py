"""A way back that placement refuses: what cannot succeed ends, with its reason, and is not tried for ever."""

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceFailed
from bus.messages.cell import DestroyInstance, StartInstance
from cell_conductor.core.books import entry_of
from engine.refusals import ClaimVerdict, NotAllowed, Released, Superseded, TooOld
from tests.unit.conductor.cell import (
    CLAIMED,
    FULL,
    ONE,
    REMOVE,
    RULES,
    Cell,
    choice,
    destroyed,
    host,
    kinds,
    released,
)
from tests.unit.conductor.test_conductor_moves import active, arrived, end, move, started, stopped
from tests.unit.conductor.test_conductor_rebuilds import rebuild

REMIND_S = RULES.remind_every.total_seconds()
FINAL: tuple[ClaimVerdict, ...] = (
    NotAllowed(field="consumer", reason="the id is taken"),
    Superseded(attempt=2, ended=True),
    Released(freed=False),
)


def reverting() -> Cell:
    """It has arrived, and is to go back: the destination has nothing of it any more."""
    cell, order = arrived()
    cell.hear(end(order, "revert"))
    cell.hear(destroyed(2, "h2"))
    return cell


def stranded() -> Cell:
    cell = reverting()
    cell.swap(FINAL[0])
    return cell


@pytest.mark.parametrize("refused", FINAL)
def test_a_refusal_that_does_not_change_ends_the_move_with_its_reason(refused: ClaimVerdict) -> None:
    cell = reverting()
    (told,) = cell.swap(refused)

    assert isinstance(told, InstanceFailed)
    assert (told.instance.state, told.instance.host) == ("error", "h1")
    assert told.instance.reason.startswith("placement refuses its way back: ")
    assert told.instance.move is not None
    assert (told.instance.move.outcome, told.instance.move.failure) == ("failed", told.instance.reason)
    assert cell.row.due_at is None
    cell.after_s(10_000)
    assert cell.last.swaps == ()


@pytest.mark.parametrize("refused", [FULL, TooOld(horizon_s=10)])
def test_a_refusal_that_may_change_is_told_at_the_end_of_the_moves_time_and_asked_again(
    refused: ClaimVerdict,
) -> None:
    cell = reverting()
    assert cell.swap(refused) == []
    assert cell.row.state == "moving"
    cell.after_s(1000)
    (told,) = cell.swap(refused)
    assert isinstance(told, InstanceFailed)
    for _ in range(3):
        cell.after_s(REMIND_S)
        # It is told once.
        assert cell.swap(refused) == []
    cell.after_s(REMIND_S)

    assert kinds(cell.swap(CLAIMED)) == [StartInstance]
    (told,) = cell.hear(started("h1"))
    assert isinstance(told, InstanceActive)
    assert (told.instance.host, cell.row.attempt, cell.row.host_attempt) == ("h1", 3, 1)


def test_a_move_that_never_left_its_host_ends_there() -> None:
    """It was refused everywhere, and then its own share, too."""
    cell = active()
    cell.hear(move("live-migrate"))
    cell.swap(FULL)
    (told,) = cell.swap(FINAL[1])

    assert isinstance(told, InstanceActive)
    assert told.instance.move is not None
    assert told.instance.move.outcome == "failed"
    assert (cell.row.moving, cell.row.attempt) == (None, 1)


def test_an_instance_that_waits_for_its_way_back_is_deleted_on_both_hosts() -> None:
    cell = stranded()
    assert kinds(cell.hear(REMOVE)) == [DestroyInstance, DestroyInstance]
    free = [*released(cell.hear(destroyed(1, "h1"))), *released(cell.hear(destroyed(2, "h2")))]

    assert sorted(free) == sorted([(cell.heir(1), 1), (ONE, 3)])
    assert cell.row.state == "deleted"


def test_a_further_order_is_refused_and_has_the_way_back_asked_for_once_more() -> None:
    cell = stranded()
    (told,) = cell.hear(move("evacuate", "h3", number=70))
    assert isinstance(told, InstanceFailed)
    assert told.instance.move is not None
    assert told.instance.move.outcome == "failed"
    assert cell.swap(FINAL[0]) == []
    assert cell.row.due_at is None

    (told,) = cell.hear(rebuild(90))
    assert isinstance(told, InstanceFailed)
    assert told.instance.rebuild is not None
    assert "way back" in str(told.instance.rebuild.failure)
    assert kinds(cell.swap(CLAIMED)) == [StartInstance]


def test_an_abort_that_crosses_the_end_is_answered_and_asks_once_more() -> None:
    cell = stranded()
    order = move()
    (told,) = cell.hear(structs.replace(end(order, "abort"), sequence=500))
    assert isinstance(told, InstanceFailed)
    assert told.instance.sequence > 500

    assert kinds(cell.swap(CLAIMED)) == [StartInstance]
    assert kinds(cell.hear(started("h1"))) == [InstanceActive]


def test_an_abort_while_a_refusal_is_asked_again_does_not_change_what_is_told() -> None:
    cell, order = active(), move()
    cell.hear(order)
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1"))
    cell.hear(end(order, "abort"))
    cell.hear(destroyed(2, "h2"))
    (told,) = cell.swap(FINAL[0])

    assert isinstance(told, InstanceFailed)
    assert told.instance.move is not None
    assert told.instance.move.outcome == "failed"


def test_an_audit_finds_the_claim_at_the_destination_and_the_instance_at_the_source() -> None:
    cell = stranded()
    entry = entry_of(cell.row, "c1")
    (own,) = [each for each in entry.claims if each.consumer == ONE]

    assert own.share == choice("h2").share
    assert [each.host for each in entry.on_hosts] == [host("h1")]
    assert [each.consumer for each in entry.claims if each.consumer != ONE] == [cell.heir(1)]
