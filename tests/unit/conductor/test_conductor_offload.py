"""An instance is offloaded from its host, and unshelved on another one: what is held, what is ordered, what is told."""

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceDeleted, InstanceMoved, InstanceState, Move
from bus.messages.cell import (
    DestroyInstance,
    InstanceStopped,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from bus.messages.placement import ClaimResources, Heir, SwapClaim
from cell_conductor.core.books import entry_of
from cell_conductor.core.rows import HostStates, Saves
from engine.flavors import Image
from engine.refusals import AlreadyClaimed, Superseded
from tests.unit.conductor.cell import (
    CLAIMED,
    FULL,
    ONE,
    REMOVE,
    RULES,
    Cell,
    choice,
    destroy,
    destroyed,
    failed,
    host,
    kinds,
    place,
    released,
    spawned,
)
from tests.unit.conductor.test_conductor_hosts import DEAD, LOST, SILENT, set_, states
from tests.unit.conductor.test_conductor_moves import active, end, move, started, stopped
from tests.unit.conductor.test_conductor_rebuilds import NEW, rebuild, redeployed

IMAGE = f"{ONE}-50"


def saved(attempt: int = 1, name: str = "h1", image: str = IMAGE) -> InstanceStopped:
    return structs.replace(stopped(attempt, name), saved=image)


def shelved() -> Cell:
    cell = active()
    cell.hear(move("shelve", number=40))
    cell.hear(stopped(1, "h1", number=40))
    cell.confirm_all()
    return cell


def offloaded() -> Cell:
    cell = active()
    cell.hear(move("offload"))
    cell.hear(saved())
    cell.hear(destroyed(1, "h1"))
    cell.confirm_all()
    return cell


def saved_by(name: str) -> Cell:
    """It is offloaded, and this host has saved it."""
    cell = offloaded()
    cell.rows[ONE] = structs.replace(cell.row, saves=Saves(50, host(name)))
    return cell


def told_by(cell: Cell) -> InstanceState:
    return entry_of(cell.row, RULES.cell).instance


def move_of(cell: Cell) -> Move:
    assert cell.row.move is not None
    return cell.row.move


def assert_holds_nothing(cell: Cell) -> None:
    entry = entry_of(cell.row, RULES.cell)
    assert (entry.claims, entry.on_hosts, cell.row.host) == ((), (), None)
    assert (entry.instance.state, entry.instance.host, entry.instance.keeps_share) == ("offloaded", "", False)


# Offloading


@pytest.mark.parametrize("begin", [active, shelved])
def test_an_instance_is_saved_then_destroyed_and_only_then_it_holds_nothing(begin: type[Cell]) -> None:
    cell = begin()
    (stop,) = cell.hear(move("offload"))
    assert stop == StopInstance(cell="c1", instance=ONE, attempt=1, host=host("h1"), number=50, save_as=IMAGE)
    assert cell.hear(saved()) == [destroy(1, "h1")]
    assert cell.row.state == "moving"
    said = cell.hear(destroyed(1, "h1"))
    assert released(said) == [(ONE, 1)]
    (told,) = [each for each in said if isinstance(each, InstanceMoved)]
    assert (told.instance.state, told.instance.host) == ("offloaded", "")
    assert move_of(cell).outcome == "done"
    assert_holds_nothing(cell)


def test_a_host_that_does_not_say_that_it_has_destroyed_it_is_reminded_and_keeps_the_share() -> None:
    cell = active()
    cell.hear(move("offload"))
    cell.hear(saved())
    assert cell.after_s(100) == [destroy(1, "h1")]
    assert cell.after_s(5000) == [destroy(1, "h1")]
    assert cell.row.state == "moving"
    assert [claim.consumer for claim in entry_of(cell.row, RULES.cell).claims if claim.type != "CLEANUP"] == [
        ONE
    ]


def test_nobody_waits_for_a_dead_host_to_destroy_it() -> None:
    cell = active()
    cell.hear(move("offload"))
    cell.hear(saved())
    assert released(cell.hear(LOST, hosts=DEAD)) == [(ONE, 1)]
    assert_holds_nothing(cell)


def test_a_late_word_of_an_earlier_stop_is_not_taken_for_a_saved_image() -> None:
    cell = shelved()
    stop = cell.hear(move("offload"))
    before = cell.row
    # The order that is not answered yet is sent again.
    assert cell.hear(stopped(1, "h1")) == stop
    assert cell.hear(saved(image=f"{ONE}-45")) == stop
    assert cell.row == before
    assert cell.hear(saved()) == [destroy(1, "h1")]


def test_an_active_instance_that_cannot_be_saved_runs_again() -> None:
    cell = active()
    cell.hear(move("offload"))
    assert kinds(cell.hear(stopped(1, "h1", "no room for the image"))) == [StartInstance]
    (told,) = cell.hear(started("h1"))
    assert isinstance(told, InstanceActive)
    assert (move_of(cell).outcome, move_of(cell).failure) == ("failed", "h1 could not stop and save it")


def test_a_shelved_instance_that_cannot_be_saved_stays_shelved() -> None:
    cell = shelved()
    cell.hear(move("offload"))
    (told,) = cell.hear(stopped(1, "h1", "no room for the image"))
    assert isinstance(told, InstanceMoved)
    assert (told.instance.state, told.instance.host) == ("shelved", "h1")
    assert (move_of(cell).outcome, cell.row.moving) == ("failed", None)


@pytest.mark.parametrize(("begin", "after"), [(active, "active"), (shelved, "shelved")])
def test_a_host_that_is_silent_about_saving_is_given_up(begin: type[Cell], after: str) -> None:
    cell = begin()
    cell.hear(move("offload"))
    said = cell.after_s(60)
    if after == "active":
        assert kinds(said) == [StartInstance]
        cell.hear(started("h1"))
    assert (cell.row.state, move_of(cell).outcome) == (after, "failed")
    # It may have saved it all the same: it is not destroyed for that.
    assert DestroyInstance not in kinds(cell.hear(saved()))


def test_a_host_that_is_lost_while_it_saves_is_given_up_at_once() -> None:
    cell = shelved()
    cell.hear(move("offload"))
    assert kinds(cell.hear(LOST, hosts=SILENT)) == [InstanceMoved]
    assert (cell.row.state, move_of(cell).outcome) == ("shelved", "failed")


@pytest.mark.parametrize(("begin", "after"), [(active, "active"), (shelved, "shelved")])
def test_an_abort_before_the_destroy_brings_it_back_as_it_was(begin: type[Cell], after: str) -> None:
    cell, order = begin(), move("offload")
    cell.hear(order)
    said = cell.hear(end(order, "abort"))
    if after == "active":
        assert kinds(said) == [StartInstance]
        cell.hear(started("h1"))
    assert (cell.row.state, move_of(cell).outcome) == (after, "aborted")


def test_an_abort_after_the_destroy_was_ordered_comes_too_late() -> None:
    cell, order = active(), move("offload")
    cell.hear(order)
    cell.hear(saved())
    cell.confirm_all()
    assert cell.hear(end(order, "abort")) == []
    cell.hear(destroyed(1, "h1"))
    assert (cell.row.state, move_of(cell).outcome) == ("offloaded", "done")


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_delete_while_it_is_offloaded_frees_its_share_once(*, is_saved: bool) -> None:
    cell = active()
    cell.hear(move("offload"))
    if is_saved:
        cell.hear(saved())
        cell.confirm_all()
    image = destroy(2, "h1", saved_until=50)
    assert cell.hear(REMOVE) == ([image] if is_saved else [image, destroy(1, "h1")])
    cell.confirm_all()
    assert cell.hear(saved()) == []
    assert released(cell.hear(destroyed(1, "h1"))) == [(ONE, 1)]
    assert cell.row.state == "deleted"


def test_an_offloaded_instance_is_deleted_at_once_and_its_image_with_it() -> None:
    cell = offloaded()
    remove, told = cell.hear(REMOVE)
    assert (remove, kinds([told])) == (destroy(2, "h1", saved_until=50), [InstanceDeleted])
    assert cell.row.state == "deleted"
    # Its host is reminded, until it has removed the image.
    cell.confirm_all()
    assert cell.after_s(100) == [remove]
    cell.hear(destroyed(2, "h1"))
    assert cell.row.cleanups == ()


@pytest.mark.parametrize("lost", [states(set_("h9", "dead")), states(silent=("h9",))], ids=["dead", "silent"])
def test_if_the_host_that_has_saved_it_is_lost_another_one_removes_the_image(lost: HostStates) -> None:
    cell = saved_by("h9")
    remove, *_ = cell.hear(REMOVE, hosts=lost)
    assert remove == destroy(2, "h1", saved_until=50)


def test_if_a_host_dies_before_it_has_removed_the_image_another_one_does_so() -> None:
    cell = saved_by("h9")
    remove, *_ = cell.hear(REMOVE)
    assert remove == destroy(2, "h9", saved_until=50)
    cell.confirm_all()
    assert cell.hear(LOST, hosts=states(set_("h9", "dead"))) == [destroy(2, "h1", saved_until=50)]
    cell.hear(destroyed(2, "h1"))
    assert cell.row.cleanups == ()


def test_if_all_hosts_are_dead_nobody_is_waited_for() -> None:
    cell = saved_by("h1")
    cell.hear(REMOVE)
    cell.confirm_all()
    cell.hear(LOST, hosts=states(*[set_(each, "dead") for each in ("h1", "h2", "h3")]))
    assert cell.row.cleanups == ()


def test_a_delete_removes_what_an_offload_that_failed_may_have_saved() -> None:
    cell = active()
    cell.hear(move("offload"))
    cell.hear(stopped(1, "h1", "the disk is full"))
    cell.hear(started("h1"))
    assert cell.row.state == "active"
    assert cell.hear(REMOVE) == [destroy(2, "h1", saved_until=50), destroy(1, "h1")]


def test_late_words_of_the_attempt_that_was_offloaded_change_nothing() -> None:
    cell = offloaded()
    before = cell.row
    assert cell.hear(saved(), stopped(1, "h1", "it hangs"), failed(1, "h1"), destroyed(1, "h1")) == []
    assert cell.hear(spawned(1, "h1")) == [destroy(1, "h1")]
    assert cell.row == before


def test_the_share_of_a_host_that_must_destroy_an_older_attempt_is_freed_with_that() -> None:
    cell = active()
    resize = structs.replace(move("resize", "h1", confirm_s=0, number=30))
    cell.hear(resize)
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1", number=30))
    cell.hear(spawned(2, "h1"))
    assert [each.attempt for each in cell.row.cleanups] == [1]
    cell.hear(move("offload"))
    cell.hear(saved(2))
    assert released(cell.hear(destroyed(2, "h1"))) == []
    assert cell.row.state == "moving"
    assert (ONE, 2) in released(cell.hear(destroyed(1, "h1")))
    assert_holds_nothing(cell)


# Unshelving


def claim_asked(cell: Cell) -> ClaimResources:
    if not cell.last.swaps:
        cell.after_s(0)
    (claim,) = cell.last.swaps
    assert isinstance(claim, ClaimResources)
    return claim


def test_an_offloaded_instance_is_claimed_anew_and_built_from_its_image() -> None:
    cell = offloaded()
    assert cell.hear(move("unshelve", "h2", "h3", number=60)) == []
    claim = claim_asked(cell)
    assert (claim.consumer, claim.attempt, claim.share) == (ONE, 2, choice("h2").share)
    (spawn,) = cell.swap(CLAIMED)
    assert isinstance(spawn, SpawnInstance)
    assert (spawn.host, spawn.attempt, spawn.image) == (host("h2"), 2, Image(source=IMAGE))
    remove, told = cell.hear(spawned(2, "h2"))
    assert isinstance(told, InstanceActive)
    assert (told.instance.host, told.instance.attempt) == ("h2", 2)
    assert (move_of(cell).outcome, move_of(cell).destination) == ("done", "h2")
    assert cell.row.saved == ""
    # Nothing needs the image any more, and no attempt of the instance is concerned. A later image is not either.
    assert remove == destroy(1, "h2", saved_until=50)
    cell.hear(destroyed(1, "h2"))
    assert (cell.row.state, cell.row.cleanups) == ("active", ())
    assert cell.hear(REMOVE) == [destroy(2, "h2")]


def test_a_refused_claim_is_asked_for_the_next_choice() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", "h2", "h3", number=60))
    cell.swap(FULL)
    claim = claim_asked(cell)
    assert (claim.attempt, claim.share) == (2, choice("h3").share)


def test_a_host_that_fails_is_left_for_the_next_choice_by_a_swap() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", "h2", "h3", number=60))
    cell.swap(CLAIMED)
    assert cell.hear(failed(2, "h2")) == []
    cell.after_s(0)
    swap = cell.swap_asked
    assert (swap.held_attempt, swap.attempt, swap.share) == (2, 3, choice("h3").share)
    (spawn,) = cell.swap(CLAIMED)
    assert isinstance(spawn, SpawnInstance)
    assert spawn.image == Image(source=IMAGE)


def test_a_silent_host_keeps_its_share_by_a_cleanup_while_the_next_one_builds() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", "h2", "h3", number=60))
    cell.swap(CLAIMED)
    assert cell.after_s(60) == [destroy(2, "h2")]
    assert cell.swap_asked.heir == Heir(id=cell.heir(2), type="CLEANUP")
    cell.swap(CLAIMED)
    cell.hear(spawned(3, "h3"))
    assert cell.row.state == "active"
    assert released(cell.hear(destroyed(2, "h2"))) == [(cell.heir(2), 2)]


def test_when_no_host_takes_it_it_is_offloaded_again_and_the_reasons_are_told() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", "h2", "h3", number=60))
    cell.swap(FULL)
    said = cell.swap(FULL)
    # A claim that was granted late, and its answer lost, is ended, too.
    assert released(said) == [(ONE, 2)]
    (told,) = [each for each in said if isinstance(each, InstanceMoved)]
    assert told.instance.state == "offloaded"
    assert (move_of(cell).outcome, move_of(cell).failure) == ("failed", "no alternate is left")
    assert [each.host for each in told.instance.failures] == ["h2", "h3"]
    assert_holds_nothing(cell)
    cell.hear(move("unshelve", "h2", number=70))
    # Attempt 2 is over in placement.
    assert claim_asked(cell).attempt == 3
    cell.swap(CLAIMED)
    assert cell.row.attempt == 3


def test_when_the_last_host_fails_its_claim_is_released() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", number=60))
    cell.swap(CLAIMED)
    assert released(cell.hear(failed(2, "h2"))) == [(ONE, 2)]
    assert_holds_nothing(cell)
    cell.hear(move("unshelve", number=70))
    assert claim_asked(cell).attempt == 3


def test_after_the_deadline_of_the_move_it_is_offloaded_again() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", "h2", "h3", number=60))
    claim_asked(cell)
    said = cell.after_s(1000)
    assert released(said) == [(ONE, 2)]
    assert (cell.row.state, move_of(cell).failure) == ("offloaded", "the time of the request is up")


def test_an_order_after_its_deadline_or_without_hosts_leaves_it_offloaded() -> None:
    cell = offloaded()
    assert kinds(cell.hear(structs.replace(move("unshelve", number=60), choices=()))) == [InstanceMoved]
    assert (cell.row.state, move_of(cell).failure) == ("offloaded", "there is no host for it")
    cell.after_s(1001)
    cell.hear(move("unshelve", number=70))
    assert (cell.row.state, move_of(cell).outcome) == ("offloaded", "failed")


def test_a_last_host_that_is_silent_keeps_the_share_and_the_next_try_swaps_it_away() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", number=60))
    cell.swap(CLAIMED)
    assert cell.after_s(60)[0] == destroy(2, "h2")
    told = told_by(cell)
    assert (told.state, told.host, told.keeps_share) == ("offloaded", "", True)
    cell.confirm_all()
    cell.hear(move("unshelve", "h3", number=70))
    cell.after_s(0)
    swap = cell.swap_asked
    assert (swap.held_attempt, swap.attempt) == (2, 3)
    assert swap.heir == Heir(id=cell.heir(2), type="CLEANUP")
    cell.swap(CLAIMED)
    cell.hear(spawned(3, "h3"))
    assert released(cell.hear(destroyed(2, "h2"))) == [(cell.heir(2), 2)]
    assert cell.row.state == "active"


def test_each_silent_host_frees_its_own_share_after_the_next_try_has_taken_over() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", "h2", "h3", number=60))
    cell.swap(CLAIMED)
    cell.after_s(60)
    cell.swap(CLAIMED)
    cell.after_s(60)
    cell.confirm_all()
    cell.hear(move("unshelve", "h4", number=70))
    assert [(each.host, [held.consumer for held in each.release]) for each in cell.row.cleanups] == [
        (host("h2"), [cell.heir(2)]),
        (host("h3"), [cell.heir(3)]),
    ]
    cell.swap(CLAIMED)
    assert released(cell.hear(destroyed(3, "h3"))) == [(cell.heir(3), 3)]
    assert released(cell.hear(destroyed(2, "h2"))) == [(cell.heir(2), 2)]


def test_a_try_that_ends_while_the_last_silent_host_keeps_the_share_hands_it_over_once() -> None:
    cell, order = offloaded(), move("unshelve", number=60)
    cell.hear(order)
    cell.swap(CLAIMED)
    cell.after_s(60)
    second = move("unshelve", "h3", number=70)
    cell.hear(second)
    cell.after_s(0)
    # Placement may have granted the swap: what the host keeps is the heir's, or still the instance's.
    cell.hear(end(second, "abort"))
    (cleanup,) = cell.row.cleanups
    assert [held.consumer for held in cleanup.release] == [cell.heir(2), ONE]
    cell.hear(move("unshelve", "h4", number=80))
    (cleanup,) = cell.row.cleanups
    assert [held.consumer for held in cleanup.release] == [cell.heir(2)]


def test_a_last_host_that_was_silent_frees_its_share_when_it_has_cleaned_up() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", number=60))
    cell.swap(CLAIMED)
    cell.after_s(60)
    assert released(cell.hear(destroyed(2, "h2"))) == [(ONE, 2)]
    assert_holds_nothing(cell)
    cell.hear(move("unshelve", "h3", number=70))
    assert claim_asked(cell).attempt == 3


def test_while_the_release_of_the_last_attempt_is_on_its_way_the_claim_is_repeated() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", number=60))
    claim = claim_asked(cell)
    assert cell.swap(AlreadyClaimed(attempt=1, share=choice("h1").share)) == []
    assert cell.row.state == "swapping"
    cell.after_s(1)
    assert claim_asked(cell) == claim


def test_a_repeated_claim_is_told_what_is_held() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", "h2", "h3", number=60))
    cell.swap(FULL)
    (spawn,) = cell.swap(AlreadyClaimed(attempt=2, share=choice("h2").share))
    assert isinstance(spawn, SpawnInstance)
    assert (spawn.host, spawn.attempt) == (host("h2"), 2)


def test_a_claim_that_was_taken_away_leaves_it_offloaded_and_not_deleted() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", number=60))
    cell.swap(Superseded(attempt=2, ended=True))
    assert cell.row.state == "offloaded"


def test_a_delete_while_it_is_claimed_ends_the_attempt_that_is_asked_for() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", number=60))
    claim = claim_asked(cell)
    assert released(cell.hear(REMOVE)) == [(ONE, 2)]
    assert cell.row.state == "deleted"
    assert cell.answer(claim, CLAIMED) == []


def test_a_delete_while_it_is_built_frees_its_share() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", number=60))
    cell.swap(CLAIMED)
    assert cell.hear(REMOVE) == [destroy(3, "h2", saved_until=50), destroy(2, "h2")]
    assert released(cell.hear(destroyed(3, "h2"), destroyed(2, "h2"))) == [(ONE, 2)]
    assert (cell.row.state, cell.row.cleanups) == ("deleted", ())


@pytest.mark.parametrize("is_built", [False, True])
def test_an_aborted_unshelve_is_offloaded_again(*, is_built: bool) -> None:
    cell, order = offloaded(), move("unshelve", number=60)
    cell.hear(order)
    claim_asked(cell)
    if is_built:
        cell.swap(CLAIMED)
        assert kinds(cell.hear(end(order, "abort"))) == [DestroyInstance, InstanceMoved]
        assert told_by(cell).keeps_share
        cell.hear(destroyed(2, "h2"))
    else:
        assert released(cell.hear(end(order, "abort"))) == [(ONE, 2)]
    assert move_of(cell).outcome == "aborted"
    assert_holds_nothing(cell)


def test_an_abort_before_its_order_to_unshelve_undoes_that() -> None:
    cell, order = offloaded(), move("unshelve", number=60)
    assert kinds(cell.hear(end(order, "abort"))) == [InstanceMoved]
    cell.confirm_all()
    assert cell.hear(order) == []
    assert cell.row.state == "offloaded"


def test_what_was_unshelved_is_offloaded_again_as_another_image() -> None:
    cell = offloaded()
    cell.hear(move("unshelve", number=60))
    cell.swap(CLAIMED)
    cell.hear(spawned(2, "h2"))
    cell.confirm_all()
    (stop,) = cell.hear(move("offload", number=70))
    assert isinstance(stop, StopInstance)
    assert (stop.host, stop.attempt, stop.save_as) == (host("h2"), 2, f"{ONE}-70")


@pytest.mark.parametrize("is_rebuilt", [False, True])
def test_after_an_unshelve_an_evacuation_builds_with_the_last_image_that_was_ordered(
    *, is_rebuilt: bool
) -> None:
    boot = Image(source="http://images/debian")
    cell = Cell(structs.replace(place(), image=boot), spawned(1, "h1"))
    if is_rebuilt:
        cell.hear(rebuild(10))
        cell.hear(redeployed(10, name="h1"))
    cell.hear(move("offload"), saved(), destroyed(1, "h1"))
    cell.hear(move("unshelve", number=60))
    cell.swap(CLAIMED)
    cell.hear(spawned(2, "h2"))
    cell.confirm_all()
    cell.hear(move("evacuate", "h3", number=70))
    (spawn,) = cell.swap(CLAIMED)
    assert isinstance(spawn, SpawnInstance)
    assert spawn.image == (NEW if is_rebuilt else boot)


def test_nothing_else_moves_an_offloaded_instance() -> None:
    cell = offloaded()
    for kind in ("migrate", "live-migrate", "resize", "evacuate", "shelve", "offload"):
        assert cell.hear(move(kind, number=60)) == []


# Evacuating what is shelved


def test_a_shelved_instance_is_evacuated_and_runs_at_its_destination() -> None:
    cell = shelved()
    cell.hear(move("evacuate"), hosts=SILENT)
    cell.after_s(0)
    assert isinstance(cell.last.swaps[0], SwapClaim)
    assert kinds(cell.swap(CLAIMED)) == [SpawnInstance]
    cell.hear(spawned(2, "h2"))
    assert cell.row.state == "active"
    assert [(each.host, each.attempt) for each in cell.row.cleanups] == [(host("h1"), 1)]


def test_a_shelved_instance_that_no_host_takes_stays_shelved() -> None:
    cell = shelved()
    cell.hear(move("evacuate"), hosts=SILENT)
    cell.swap(FULL)
    (told,) = cell.swap(CLAIMED)
    assert isinstance(told, InstanceMoved)
    assert (told.instance.state, told.instance.host, move_of(cell).outcome) == ("shelved", "h1", "failed")
