"""Moves in a cell, step by step: what is held, what is ordered, what is told."""

from datetime import timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceFailed, InstanceMoved, Move, MoveKind
from bus.messages.cell import (
    DestroyInstance,
    EndMoveInCell,
    InstanceSpawned,
    InstanceStopped,
    MoveInCell,
    ReceiveInstance,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from bus.messages.placement import Heir, ReleaseClaim
from engine.flavors import Flavor, RequestId
from engine.inventories import GroupId, ServerGroup
from engine.refusals import AlreadyClaimed
from tests.unit.conductor.cell import (
    CLAIMED,
    FULL,
    NOON,
    ONE,
    REMOVE,
    Cell,
    choice,
    destroyed,
    failed,
    host,
    kinds,
    place,
    released,
    spawned,
)


def move(kind: MoveKind = "migrate", *choices: str, confirm_s: int = 100, number: int = 50) -> MoveInCell:
    waits = kind in ("migrate", "resize")
    return MoveInCell(
        cell="c1",
        instance=ONE,
        move=Move(
            request_id=RequestId(UUID(int=500)),
            number=number,
            kind=kind,
            source="h1",
            ends_by=NOON + timedelta(seconds=1000),
            confirm_s=confirm_s if waits else 0,
        ),
        choices=tuple(choice(each) for each in choices or ("h2",)),
    )


def end(order: MoveInCell, how: str) -> EndMoveInCell:
    return EndMoveInCell(cell="c1", instance=ONE, move=structs.replace(order.move, asked=how), sequence=60)


def stopped(attempt: int, name: str, failure: str = "", number: int = 50) -> InstanceStopped:
    return InstanceStopped(
        cell="c1", instance=ONE, attempt=attempt, host=host(name), failure=failure, number=number
    )


def started(name: str, number: int = 50) -> InstanceSpawned:
    """The first host runs it again."""
    return structs.replace(spawned(1, name), number=number)


def active() -> Cell:
    cell = Cell(place())
    cell.hear(spawned(1, "h1"))
    cell.confirm_all()
    return cell


def arrived() -> tuple[Cell, MoveInCell]:
    cell, order = active(), move()
    cell.hear(order)
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1"))
    cell.hear(spawned(2, "h2"))
    return cell, order


def test_a_cold_migration_stops_the_source_and_waits_to_be_confirmed() -> None:
    cell, order = active(), move()
    assert cell.hear(order) == []
    stop = cell.swap(CLAIMED)
    assert cell.last.swaps == ()
    assert stop == [StopInstance(cell="c1", instance=ONE, attempt=1, host=host("h1"), number=50)]
    (take_over,) = cell.hear(stopped(1, "h1"))
    assert isinstance(take_over, ReceiveInstance)
    assert (take_over.attempt, take_over.host, take_over.source, take_over.source_attempt) == (
        2,
        host("h2"),
        host("h1"),
        1,
    )
    (told,) = cell.hear(spawned(2, "h2"))
    assert isinstance(told, InstanceMoved)
    assert (told.instance.state, told.instance.host, told.instance.attempt) == ("moved", "h2", 2)

    said = cell.hear(end(order, "confirm"))
    assert kinds(said) == [DestroyInstance, InstanceActive]
    assert said[-1].instance.move.outcome == "confirmed"  # type: ignore[attr-defined]
    assert released(cell.hear(destroyed(1, "h1"))) == [(cell.heir(1), 1)]
    assert cell.row.moving is None


def test_the_claim_moves_with_the_rest_to_a_migration() -> None:
    cell = active()
    cell.hear(move())
    cell.after_s(0)
    swap = cell.swap_asked
    assert (swap.held_attempt, swap.attempt, swap.returns) == (1, 2, None)
    assert swap.heir == Heir(id=cell.heir(1), type="MIGRATION")


def test_a_move_confirms_itself_after_a_time() -> None:
    cell, _ = arrived()
    assert cell.after_s(99) == []
    assert kinds(cell.after_s(1)) == [DestroyInstance, InstanceActive]


def test_a_reverted_move_runs_again_where_it_was() -> None:
    cell, order = arrived()
    assert kinds(cell.hear(end(order, "revert"))) == [DestroyInstance]
    assert cell.hear(destroyed(2, "h2")) == []
    cell.after_s(0)
    back = cell.swap_asked
    assert (back.held_attempt, back.attempt, back.share) == (2, 3, choice("h1").share)
    assert (back.heir, back.returns) == (None, cell.heir(1))
    start = cell.swap(CLAIMED)
    assert start == [StartInstance(cell="c1", instance=ONE, attempt=1, host=host("h1"), number=50)]
    (told,) = cell.hear(started("h1"))
    assert isinstance(told, InstanceActive)
    assert told.instance.move is not None
    assert (told.instance.host, told.instance.attempt, told.instance.move.outcome) == ("h1", 3, "reverted")
    # Deleted now, the host is told of the attempt that it knows, and the claim of the last one is released.
    cell.confirm_all()
    assert cell.hear(REMOVE) == [DestroyInstance(cell="c1", instance=ONE, attempt=1, host=host("h1"))]
    assert released(cell.hear(destroyed(1, "h1"))) == [(ONE, 3)]


def test_a_failed_destination_is_left_for_the_next_choice() -> None:
    cell = active()
    cell.hear(move("migrate", "h2", "h3"))
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1"))
    assert cell.hear(failed(2, "h2")) == []
    cell.swap(CLAIMED)
    assert cell.row.attempt == 3
    assert kinds(cell.swap(CLAIMED)) == [StopInstance]
    (take_over,) = cell.hear(stopped(1, "h1"))
    assert isinstance(take_over, ReceiveInstance)
    assert (take_over.attempt, take_over.host, take_over.source_attempt) == (4, host("h3"), 1)


def test_when_no_choice_is_left_it_runs_again_and_the_move_has_failed() -> None:
    cell = active()
    cell.hear(move())
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1"))
    cell.hear(failed(2, "h2"))
    assert kinds(cell.swap(CLAIMED)) == [StartInstance]
    (told,) = cell.hear(started("h1"))
    assert isinstance(told, InstanceActive)
    assert told.instance.move is not None
    assert (told.instance.move.outcome, told.instance.move.failure) == ("failed", "no other host took it")
    assert [each.reason for each in told.instance.failures] == ["no image"]


def test_a_refused_swap_leaves_the_instance_as_it_was() -> None:
    cell = active()
    cell.hear(move())
    assert cell.swap(FULL) == []
    (told,) = cell.swap(CLAIMED)
    assert isinstance(told, InstanceActive)
    assert told.instance.host == "h1"
    assert cell.row.host_attempt == 1


def test_after_a_refusal_late_copies_of_the_question_are_made_worthless() -> None:
    """The broker may deliver a question twice. The way back takes the attempt that it asks for."""
    cell = active()
    cell.hear(move())
    cell.swap(FULL)
    cell.after_s(0)
    back = cell.swap_asked
    assert (back.held_attempt, back.attempt, back.share) == (1, 2, choice("h1").share)
    assert back.returns == cell.heir(1)
    # Deleted now, whatever placement grants is released.
    assert [each.attempt for each in cell.hear(REMOVE)] == [1]  # type: ignore[attr-defined]
    assert released(cell.hear(destroyed(1, "h1"))) == [(ONE, 2), (cell.heir(1), 1)]


def test_a_late_copy_that_was_granted_after_the_refusal_comes_back() -> None:
    cell = active()
    cell.hear(move())
    cell.swap(FULL)
    assert cell.swap(AlreadyClaimed(attempt=2, share=choice("h2").share)) == []
    cell.after_s(0)
    back = cell.swap_asked
    assert (back.held_attempt, back.attempt, back.returns) == (2, 3, cell.heir(1))
    # Words of the source change nothing meanwhile.
    assert cell.hear(spawned(1, "h1")) == []
    (told,) = cell.answer(back, CLAIMED)
    assert isinstance(told, InstanceActive)
    assert (told.instance.host, told.instance.attempt, cell.row.host_attempt) == ("h1", 3, 1)


@pytest.mark.parametrize("provider", ["h1", "a cell of h1, since a reshape"])
def test_a_way_back_that_was_granted_and_not_answered_is_not_taken_for_a_late_copy(provider: str) -> None:
    cell = active()
    cell.hear(move())
    cell.swap(FULL)
    assert cell.swap(None) == []
    cell.after_s(1)
    there = choice("h1").share
    held = structs.replace(there, amounts=(structs.replace(there.amounts[0], provider=host(provider)),))
    (told,) = cell.swap(AlreadyClaimed(attempt=2, share=held))
    assert isinstance(told, InstanceActive)
    assert (told.instance.attempt, cell.row.host_attempt, cell.row.moving) == (2, 1, None)


def test_a_move_that_has_asked_nothing_just_ends() -> None:
    cell, order = active(), move()
    cell.hear(order)
    assert kinds(cell.hear(end(order, "abort"))) == [InstanceActive]
    assert (cell.last.swaps, cell.row.attempt) == ((), 1)


def test_a_silent_destination_keeps_its_rest_until_it_has_cleaned_up() -> None:
    cell = active()
    cell.hear(move("live-migrate"))
    assert kinds(cell.swap(CLAIMED)) == [ReceiveInstance]
    assert kinds(cell.after_s(60)) == [DestroyInstance]
    cell.after_s(0)
    back = cell.swap_asked
    assert back.heir == Heir(id=cell.heir(2), type="CLEANUP")
    # It was never stopped: it just stays where it is.
    assert kinds(cell.swap(CLAIMED)) == [InstanceActive]
    assert released(cell.hear(destroyed(2, "h2"))) == [(cell.heir(2), 2)]


def test_what_a_silent_destination_has_leaves_the_affinity_group_when_the_instance_is_back() -> None:
    cell = Cell(structs.replace(place(), group=ServerGroup(id=GroupId(ONE), policy="affinity")))
    cell.hear(spawned(1, "h1"))
    cell.confirm_all()
    cell.hear(move("live-migrate"))
    cell.swap(CLAIMED)
    cell.after_s(60)
    cell.after_s(0)
    left = [each for each in cell.swap(CLAIMED) if isinstance(each, ReleaseClaim) and each.leaves_group]
    assert [(each.consumer, each.attempt) for each in left] == [(cell.heir(2), 2)]


def test_an_evacuation_builds_it_anew_and_the_dead_host_keeps_its_share() -> None:
    cell = active()
    cell.hear(move("evacuate"))
    (spawn,) = cell.swap(CLAIMED)
    assert isinstance(spawn, SpawnInstance)
    said = cell.hear(spawned(2, "h2"))
    assert kinds(said) == [DestroyInstance, InstanceActive]
    assert [(each.host, each.attempt) for each in cell.row.cleanups] == [(host("h1"), 1)]
    assert released(cell.hear(destroyed(1, "h1"))) == [(cell.heir(1), 1)]


@pytest.mark.parametrize("how", ["live-migrate", "migrate"])
def test_a_move_that_is_aborted_while_it_is_received_comes_back(how: MoveKind) -> None:
    cell, order = active(), move(how, "h2", "h3")
    cell.hear(order)
    cell.swap(CLAIMED)
    if how == "migrate":
        cell.hear(stopped(1, "h1"))
    assert kinds(cell.hear(end(order, "abort"))) == [DestroyInstance]
    cell.hear(destroyed(2, "h2"))
    said = cell.swap(CLAIMED)
    if how == "migrate":
        assert kinds(said) == [StartInstance]
        said = cell.hear(started("h1"))
    assert kinds(said) == [InstanceActive]
    assert cell.row.move is not None
    assert cell.row.move.outcome == "aborted"


def test_an_abort_that_comes_first_undoes_the_move_that_comes_later() -> None:
    cell, order = active(), move()
    (told,) = cell.hear(end(order, "abort"))
    assert isinstance(told, InstanceActive)
    cell.confirm_all()
    assert cell.hear(order) == []
    assert cell.row.state == "active"


def test_a_delete_while_it_moves_frees_both_hosts() -> None:
    cell = active()
    cell.hear(move("live-migrate"))
    cell.swap(CLAIMED)
    assert sorted(each.attempt for each in cell.hear(REMOVE)) == [1, 2]  # type: ignore[attr-defined]
    assert released(cell.hear(destroyed(1, "h1"))) == [(cell.heir(1), 1)]
    assert released(cell.hear(destroyed(2, "h2"))) == [(ONE, 2)]
    assert cell.row.state == "deleted"


def test_a_delete_while_placement_is_asked_ends_the_next_attempt_and_its_heir() -> None:
    cell = active()
    cell.hear(move("live-migrate"))
    cell.after_s(0)
    assert [each.attempt for each in cell.hear(REMOVE)] == [1]  # type: ignore[attr-defined]
    assert released(cell.hear(destroyed(1, "h1"))) == [(ONE, 2), (cell.heir(1), 1)]
    assert cell.row.state == "deleted"


def test_a_source_that_does_not_run_it_again_is_asked_until_it_does() -> None:
    cell = active()
    cell.hear(move())
    cell.swap(CLAIMED)
    assert cell.after_s(60) == []
    assert kinds(cell.swap(CLAIMED)) == [StartInstance]
    said = cell.after_s(60)
    assert kinds(said) == [InstanceFailed, StartInstance]
    assert cell.row.state == "broken"
    assert kinds(cell.after_s(100)) == [StartInstance]
    assert kinds(cell.hear(started("h1"))) == [InstanceActive]


def test_a_source_that_may_run_it_again_by_now_is_stopped_before_another_host_receives_it() -> None:
    cell = active()
    cell.hear(move())
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1", "it hangs"))
    assert kinds(cell.swap(CLAIMED)) == [StartInstance]
    cell.after_s(60)
    assert cell.row.state == "broken"

    cell.hear(move("migrate", "h3", number=70))
    assert cell.swap(CLAIMED) == [
        StopInstance(cell="c1", instance=ONE, attempt=1, host=host("h1"), number=70)
    ]


def test_a_late_word_of_the_source_about_its_build_or_an_earlier_move_answers_no_move() -> None:
    cell = active()
    cell.hear(move())
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1", "it hangs"))
    cell.swap(CLAIMED)
    cell.confirm_all()
    assert cell.hear(spawned(1, "h1")) == []
    late = structs.replace(failed(1, "h1"), number=40)
    assert cell.hear(late) == []
    assert (cell.row.state, cell.row.moving is not None) == ("moving", True)
    assert kinds(cell.hear(started("h1"))) == [InstanceActive]
    cell.confirm_all()

    cell.hear(move(number=70))
    cell.swap(CLAIMED)
    cell.confirm_all()
    assert cell.hear(stopped(1, "h1", number=50)) == []
    assert kinds(cell.hear(stopped(1, "h1", number=70))) == [ReceiveInstance]


def test_a_late_word_of_the_source_destroys_nothing() -> None:
    cell, _ = arrived()
    cell.confirm_all()
    assert cell.hear(spawned(1, "h1")) == []


def test_nothing_is_released_when_a_host_repeats_its_word() -> None:
    cell, order = arrived()
    cell.hear(end(order, "confirm"))
    cell.hear(destroyed(1, "h1"))
    cell.confirm_all()
    assert not any(isinstance(each, ReleaseClaim) for each in cell.hear(destroyed(1, "h1")))


def test_after_a_confirmed_resize_everything_has_the_new_size() -> None:
    cell, resize = active(), move("resize", confirm_s=0)
    large = Flavor(name="large", vcpus=8)
    resize = structs.replace(resize, move=structs.replace(resize.move, flavor=large))
    cell.hear(resize)
    cell.swap(CLAIMED)
    (take_over,) = cell.hear(stopped(1, "h1"))
    assert isinstance(take_over, ReceiveInstance)
    assert take_over.flavor == large
    cell.hear(spawned(2, "h2"))
    cell.confirm_all()
    cell.hear(move("evacuate", "h3", number=70))
    (spawn,) = cell.swap(CLAIMED)
    assert isinstance(spawn, SpawnInstance)
    assert spawn.flavor == large


def test_a_shelved_instance_keeps_its_host_and_runs_there_again() -> None:
    cell = active()
    assert kinds(cell.hear(move("shelve"))) == [StopInstance]
    (told,) = cell.hear(stopped(1, "h1"))
    assert isinstance(told, InstanceMoved)
    assert (told.instance.state, told.instance.host) == ("shelved", "h1")
    cell.confirm_all()
    assert cell.hear(move("migrate", number=60)) == []
    assert kinds(cell.hear(move("unshelve", number=70))) == [StartInstance]
    (again,) = cell.hear(started("h1", number=70))
    assert isinstance(again, InstanceActive)
    assert again.instance.move is not None
    assert again.instance.move.outcome == "done"


def test_a_shelved_instance_is_deleted_where_it_is() -> None:
    cell = active()
    cell.hear(move("shelve"))
    cell.hear(stopped(1, "h1"))
    cell.confirm_all()
    assert kinds(cell.hear(REMOVE)) == [DestroyInstance]
    assert released(cell.hear(destroyed(1, "h1"))) == [(ONE, 1)]


def test_an_instance_that_cannot_be_stopped_is_not_shelved() -> None:
    cell = active()
    cell.hear(move("shelve"))
    assert kinds(cell.hear(stopped(1, "h1", "it hangs"))) == [StartInstance]
    (told,) = cell.hear(started("h1"))
    assert isinstance(told, InstanceActive)
    assert told.instance.move is not None
    assert (told.instance.move.outcome, told.instance.move.failure) == ("failed", "h1 could not stop it")


def test_a_destination_that_was_left_and_builds_again_is_ordered_to_destroy_it() -> None:
    cell = active()
    cell.hear(move("live-migrate"))
    cell.swap(CLAIMED)
    cell.hear(failed(2, "h2"))
    assert cell.hear(spawned(2, "h2")) == [
        DestroyInstance(cell="c1", instance=ONE, attempt=2, host=host("h2"))
    ]


def test_a_move_without_hosts_fails_and_changes_nothing() -> None:
    cell = active()
    (told,) = cell.hear(structs.replace(move(), choices=()))
    assert isinstance(told, InstanceActive)
    assert told.instance.move is not None
    assert (told.instance.move.outcome, told.instance.move.failure) == ("failed", "no other host took it")
