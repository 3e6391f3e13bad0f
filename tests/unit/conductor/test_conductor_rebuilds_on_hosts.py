"""Rebuilds of an instance on a hypervisor: its disk is built anew in place, and each of its hosts' failures is decided."""

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed
from bus.messages.cell import (
    DestroyInstance,
    InstanceRedeployed,
    RespawnInstance,
    SpawnInstance,
    StartInstance,
)
from cell_conductor.core.decide import HostsLost
from cell_conductor.core.rows import ALL_UP, HostStates, concerns
from cell_conductor.store_sql import assemble_row, decode_body, encode_body
from engine.flavors import Image
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
    host,
    kinds,
    place,
    released,
    spawned,
)
from tests.unit.conductor.test_conductor_hosts import DEAD, DOWN, SILENT
from tests.unit.conductor.test_conductor_moves import arrived, end, move, started, stopped
from tests.unit.conductor.test_conductor_rebuilds import NEW, rebuild, redeployed, state_in

FIRST, OTHER = Image(source="http://images/debian"), Image(source="http://images/arch")
REMIND_S = RULES.remind_every.total_seconds()
LOST = HostsLost(ONE)


def active() -> Cell:
    cell = Cell(structs.replace(place(), name="web", image=FIRST), spawned(1, "h1"))
    cell.confirm_all()
    return cell


def done(number: int = 150, failure: str = "", *, attempt: int = 1) -> InstanceRedeployed:
    return redeployed(number, failure=failure, is_active=not failure, attempt=attempt, name="h1")


def silent() -> Cell:
    """Its host has not answered a rebuild in time."""
    cell = active()
    cell.hear(rebuild())
    cell.confirm_all()
    cell.after_s(RULES.attempt_timeout.total_seconds())
    cell.confirm_all()
    return cell


def not_restarted() -> Cell:
    """A move failed, and its source has not run it again since."""
    cell = active()
    cell.hear(rebuild(10), done(10), move())
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1"), failed(2, "h2"))
    cell.swap(CLAIMED)
    cell.hear(structs.replace(failed(1, "h1"), number=50))
    cell.confirm_all()
    assert cell.row.state == "broken"
    return cell


def evacuated(cell: Cell) -> SpawnInstance:
    """The order to build it on another host."""
    cell.hear(move("evacuate", number=300))
    (spawn,) = cell.swap(CLAIMED)
    assert isinstance(spawn, SpawnInstance)
    return spawn


def test_the_host_of_the_attempt_is_ordered_to_build_it_anew_and_placement_is_not_asked() -> None:
    cell, order = active(), place()

    (said,) = cell.hear(rebuild())

    assert isinstance(said, RespawnInstance)
    assert (said.host, said.attempt, said.number, said.image) == (host("h1"), 1, 150, NEW)
    assert (said.flavor, said.share, said.name) == (order.flavor, order.chosen.share, "web")
    assert (cell.row.state, cell.last.swaps) == ("rebuilding", ())


def test_a_rebuilt_instance_is_active_with_its_host_and_attempt() -> None:
    cell = active()
    cell.hear(rebuild())

    (said,) = cell.hear(done())

    told = state_in(said)
    assert isinstance(said, InstanceActive)
    assert (told.host, told.attempt, told.rebuild, told.reason) == ("h1", 1, rebuild().rebuild, "")
    assert cell.row.cleanups == ()


def test_after_a_resize_it_is_rebuilt_with_its_new_flavor_and_after_a_revert_as_the_attempt_that_its_host_knows() -> (
    None
):
    cell, order = arrived()
    cell.hear(end(order, "revert"), destroyed(2, "h2"))
    cell.swap(CLAIMED)
    cell.hear(started("h1"))
    cell.confirm_all()

    (said,) = cell.hear(rebuild())

    assert isinstance(said, RespawnInstance)
    assert (said.attempt, cell.row.attempt) == (1, 3)
    assert isinstance(cell.hear(done())[-1], InstanceActive)


def test_a_failed_rebuild_is_an_error_that_keeps_its_host_and_the_next_one_makes_it_active() -> None:
    cell = active()
    cell.hear(rebuild())

    (said,) = cell.hear(done(failure="no disk"))

    told = state_in(said)
    assert isinstance(said, InstanceFailed)
    assert (told.state, told.host, told.keeps_share, told.reason) == (
        "error",
        "h1",
        True,
        "its rebuild failed: no disk",
    )
    assert cell.row.due_at is None
    assert kinds(cell.hear(rebuild(160))) == [RespawnInstance]
    assert state_in(cell.hear(done(160))[-1]).state == "active"


def test_an_evacuation_builds_with_the_image_of_the_last_rebuild_that_was_done() -> None:
    never, rebuilt, failed_since = active(), active(), active()
    rebuilt.hear(rebuild(), done())
    failed_since.hear(rebuild(), done(), rebuild(160, image=OTHER), done(160, "no disk"))

    assert evacuated(never).image == FIRST
    assert evacuated(rebuilt).image == NEW
    assert evacuated(failed_since).image == NEW


def test_a_host_is_told_the_properties_of_a_stored_image_at_the_rebuild_and_at_later_builds() -> None:
    cell, order = active(), rebuild()
    properties = {"hw_disk_bus": "virtio"}
    named = structs.replace(order.rebuild, image_name="new", image_properties=properties)

    (said,) = cell.hear(structs.replace(order, rebuild=named))
    assert isinstance(said, RespawnInstance)
    assert said.image_properties == properties

    cell.hear(done())
    cell.hear(rebuild(160, image=OTHER), done(160, "no disk"))
    spawn = evacuated(cell)
    assert (spawn.image, spawn.image_properties) == (NEW, properties)


def test_a_rebuild_that_says_no_properties_has_those_of_the_boot_also_after_one_that_has_its_own() -> None:
    boot = {"hw_disk_bus": "scsi"}
    cell = Cell(structs.replace(place(), image=FIRST, image_properties=boot), spawned(1, "h1"))
    named = rebuild()
    own = structs.replace(named.rebuild, image_name="new", image_properties={"hw_disk_bus": "virtio"})
    cell.hear(structs.replace(named, rebuild=own), done())

    cell.hear(rebuild(160, image=OTHER), done(160))

    assert evacuated(cell).image_properties == boot


def test_a_host_that_is_silent_about_a_rebuild_is_given_up_and_asked_until_it_says_how_it_ended() -> None:
    cell = active()
    (order,) = cell.hear(rebuild())
    cell.confirm_all()

    (said,) = cell.after_s(RULES.attempt_timeout.total_seconds())

    assert isinstance(said, InstanceFailed)
    assert "its rebuild failed: no message from the host within" in state_in(said).reason
    for _ in range(2):
        assert cell.after_s(REMIND_S - 1) == []
        assert cell.after_s(1) == [order]
    told = state_in(cell.hear(done())[-1])
    assert (told.state, told.reason, told.keeps_share) == ("active", "", False)
    assert not any(isinstance(each.message, RespawnInstance) for each in cell.row.outbox)
    cell.after_s(REMIND_S)
    assert cell.row.state_ends_at is None


def test_a_host_that_was_silent_and_says_that_it_failed_is_not_asked_any_more() -> None:
    cell = silent()

    (said,) = cell.hear(done(failure="no disk"))

    assert state_in(said).reason == "its rebuild failed: no disk"
    assert cell.row.due_at is None
    cell.confirm_all()
    assert cell.hear(done(failure="no disk")) == []


@pytest.mark.parametrize("hosts", [SILENT, DOWN, DEAD], ids=["silent", "down", "dead"])
def test_a_rebuild_on_a_host_that_is_lost_has_failed_at_once(hosts: HostStates) -> None:
    cell = active()
    cell.hear(rebuild())

    assert concerns(cell.row, hosts)
    assert not concerns(cell.row, ALL_UP)
    (said,) = cell.hear(LOST, hosts=hosts)

    assert isinstance(said, InstanceFailed)
    why = hosts.why_lost(choice("h1"))
    assert why
    assert state_in(said).reason == f"its rebuild failed: {why}"
    assert not concerns(cell.row, hosts)
    assert isinstance(cell.hear(done())[-1], InstanceActive)


def test_a_rebuild_that_comes_to_its_cell_when_its_host_is_lost_is_not_begun() -> None:
    cell = active()

    (said,) = cell.hear(rebuild(), hosts=DOWN)

    told = state_in(said)
    assert isinstance(said, InstanceActive)
    assert told.rebuild is not None
    assert "the host is set down" in told.rebuild.failure


@pytest.mark.parametrize("make", [active, silent], ids=["under way", "given up"])
def test_a_delete_ends_a_rebuild_and_its_share_is_held_until_the_host_has_cleaned_up(make: object) -> None:
    cell = active() if make is active else silent()
    cell.hear(rebuild())

    assert kinds(cell.hear(REMOVE)) == [DestroyInstance]
    assert not any(isinstance(each.message, RespawnInstance) for each in cell.row.outbox)
    before = cell.row
    for late in (done(), done(failure="no disk"), rebuild(170)):
        cell.hear(late)
        assert cell.row == before
    said = cell.hear(destroyed(1, "h1"))
    assert released(said) == [(ONE, 1)]
    assert kinds(said)[-1] is InstanceDeleted


def test_a_word_of_before_the_rebuild_changes_nothing() -> None:
    cell = active()
    cell.hear(rebuild(10), done(10), rebuild())
    cell.confirm_all()
    before = cell.row

    for late in (
        done(10),
        done(10, "no disk"),
        done(attempt=2),
        spawned(1, "h1"),
        failed(1, "h1"),
        stopped(1, "h1"),
        stopped(1, "h1", "it hangs"),
        rebuild(10),
    ):
        assert cell.hear(late) == []
    assert cell.row == before


def test_an_instance_that_moves_has_moved_or_is_shelved_is_not_rebuilt() -> None:
    moving, (moved, _), shelved = active(), arrived(), active()
    moving.hear(move())
    shelved.hear(move("shelve"), stopped(1, "h1"))
    assert shelved.row.state == "shelved"

    for cell in (moving, moved, shelved):
        before = cell.row
        cell.hear(rebuild())
        assert cell.row == before


def test_a_rebuild_takes_the_place_of_the_restart_that_a_failed_move_waits_for() -> None:
    cell = not_restarted()

    said = cell.hear(rebuild())

    assert kinds(said) == [RespawnInstance]
    assert cell.row.moving is None
    cell.confirm_all()
    assert cell.hear(spawned(1, "h1")) == []
    assert isinstance(cell.hear(done())[-1], InstanceActive)


def test_a_word_about_the_last_rebuild_does_not_end_the_restart_after_a_failed_move() -> None:
    cell = not_restarted()

    assert cell.hear(done(10)) == []

    assert cell.row.state == "broken"
    assert isinstance(cell.hear(started("h1"))[-1], InstanceActive)


def test_a_rebuild_that_comes_too_late_leaves_the_restart_after_a_failed_move_as_it_was() -> None:
    cell = not_restarted()

    (said,) = cell.hear(rebuild(ends_in_s=0))

    assert "after the deadline" in state_in(said).reason
    assert kinds(cell.after_s(REMIND_S)) == [StartInstance]
    assert isinstance(cell.hear(started("h1"))[-1], InstanceActive)


def test_an_evacuation_of_what_a_silent_host_rebuilds_goes_its_way_whatever_that_host_says() -> None:
    cell = silent()
    evacuated(cell)
    cell.confirm_all()
    before = cell.row

    assert cell.hear(done()) == []
    assert cell.row == before
    assert kinds(cell.hear(spawned(2, "h2")))[-1] is InstanceActive
    cell.confirm_all()
    assert cell.hear(done()) == []
    assert cell.row.host == choice("h2")


def test_a_host_that_was_silent_is_asked_again_after_an_evacuation_that_no_host_took() -> None:
    cell = silent()
    cell.hear(move("evacuate", number=300))
    cell.swap(FULL)
    # Its word is lost: the instance moves.
    cell.hear(done())
    cell.swap(CLAIMED)
    cell.confirm_all()
    assert cell.row.state == "broken"

    assert kinds(cell.after_s(REMIND_S)) == [RespawnInstance]
    assert state_in(cell.hear(done())[-1]).state == "active"


def test_a_host_that_was_silent_is_asked_further_when_an_abort_overtakes_its_move() -> None:
    cell = silent()
    cell.hear(end(move("evacuate", number=300), "abort"))
    cell.confirm_all()

    assert kinds(cell.after_s(REMIND_S)) == [RespawnInstance]


def test_the_image_survives_the_row_as_it_is_written() -> None:
    cell = active()
    cell.hear(rebuild(), done())
    row = cell.row

    assert row.image == NEW
    assert row.changed_at == NOON
    assert assemble_row(decode_body(encode_body(row)), row.order) == row
