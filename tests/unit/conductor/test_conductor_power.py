"""An instance is stopped, started and rebooted in its cell, and stays stopped when it moves: what is ordered, and what is told."""

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceFailed, InstanceMoved, InstanceState, MoveKind
from bus.messages.cell import InstanceStopped, ReceiveInstance, SpawnInstance, StartInstance, StopInstance
from cell_conductor.core.books import entry_of
from tests.unit.conductor.cell import (
    CLAIMED,
    FULL,
    ONE,
    REMOVE,
    RULES,
    Cell,
    destroyed,
    failed,
    host,
    kinds,
    place,
    spawned,
)
from tests.unit.conductor.test_conductor_hosts import SILENT
from tests.unit.conductor.test_conductor_moves import active, end, move, started, stopped
from tests.unit.conductor.test_conductor_rebuilds import rebuild

STOP = StopInstance(cell="c1", instance=ONE, attempt=1, host=host("h1"), number=50)
START = StartInstance(cell="c1", instance=ONE, attempt=1, host=host("h1"), number=50)


def switched_off() -> Cell:
    cell = active()
    cell.hear(move("stop", number=40))
    cell.hear(stopped(1, "h1", number=40))
    cell.confirm_all()
    return cell


def told_by(cell: Cell) -> InstanceState:
    return entry_of(cell.row, RULES.cell).instance


def outcome(cell: Cell) -> tuple[str, str]:
    assert cell.row.move is not None
    return cell.row.state, cell.row.move.outcome


def test_a_stopped_instance_keeps_its_host_and_its_claim() -> None:
    cell = active()
    assert cell.hear(move("stop")) == [STOP]
    assert told_by(cell).state == "moving"

    (told,) = cell.hear(stopped(1, "h1"))

    assert isinstance(told, InstanceMoved)
    assert (told.instance.state, told.instance.host, outcome(cell)) == ("stopped", "h1", ("stopped", "done"))
    entry = entry_of(cell.row, RULES.cell)
    assert [(each.consumer, each.attempt) for each in entry.claims] == [(ONE, 1)]
    assert [each.host for each in entry.on_hosts] == [host("h1")]
    assert cell.row.due_at is None


def test_started_it_runs_on_its_host() -> None:
    cell = switched_off()
    assert cell.hear(move("start")) == [START]

    (told,) = cell.hear(started("h1"))

    assert isinstance(told, InstanceActive)
    assert (told.instance.host, outcome(cell)) == ("h1", ("active", "done"))


def test_a_reboot_stops_and_starts_it() -> None:
    cell = active()
    assert cell.hear(move("reboot")) == [STOP]
    assert cell.hear(stopped(1, "h1")) == [START]

    (told,) = cell.hear(started("h1"))

    assert isinstance(told, InstanceActive)
    assert outcome(cell) == ("active", "done")


@pytest.mark.parametrize("kind", ["stop", "reboot"])
def test_one_that_cannot_be_stopped_runs_on(kind: MoveKind) -> None:
    cell = active()
    cell.hear(move(kind))
    cell.hear(stopped(1, "h1", "it hangs"))
    # The host is asked to run it, whatever it did before.
    cell.hear(started("h1"))

    told = told_by(cell)
    assert (told.state, outcome(cell)) == ("active", ("active", "failed"))
    assert told.move is not None
    assert told.move.failure == "h1 could not stop it"


def test_one_that_does_not_start_again_is_in_error_until_it_runs() -> None:
    cell = switched_off()
    cell.hear(move("start"))
    (told,) = cell.hear(structs.replace(failed(1, "h1"), number=50))
    assert isinstance(told, InstanceFailed)
    assert (told.instance.state, told.instance.keeps_share) == ("error", True)

    assert told.instance.move is not None
    assert (told.instance.move.outcome, told.instance.move.failure) == ("failed", told.instance.reason)

    cell.hear(started("h1"))

    # It runs by now, and a move ends once.
    assert outcome(cell) == ("active", "failed")


def test_an_order_that_comes_twice_or_about_another_state_changes_nothing() -> None:
    cell = switched_off()
    before = cell.row
    for late in (move("stop", number=40), move("stop", number=50), move("reboot", number=50), rebuild(80)):
        assert cell.hear(late) == []
        assert structs.replace(cell.row, sequence=0) == structs.replace(before, sequence=0)
    # A word about the order before counts for none that comes later.
    cell.hear(move("start", number=60))
    cell.confirm_all()
    assert cell.hear(stopped(1, "h1", number=40)) == []
    assert cell.row.state == "moving"


def test_a_stop_is_aborted_by_running_it_again() -> None:
    cell, order = active(), move("stop")
    cell.hear(order)
    assert cell.hear(end(order, "abort")) == [START]
    cell.hear(started("h1"))
    assert outcome(cell) == ("active", "aborted")


def test_deleted_it_is_destroyed_where_it_is() -> None:
    cell = switched_off()
    cell.hear(REMOVE)
    cell.hear(destroyed(1, "h1"))
    assert cell.row.state == "deleted"


# Moves of a stopped instance


def test_a_stopped_instance_stays_stopped_when_it_is_migrated() -> None:
    cell, order = switched_off(), move("migrate")
    cell.hear(order)
    # Its source has nothing to do for this, and says so.
    assert cell.swap(CLAIMED) == [STOP]
    (take_over,) = cell.hear(stopped(1, "h1"))
    assert isinstance(take_over, ReceiveInstance)
    assert take_over.stopped

    (arrived,) = cell.hear(stopped(2, "h2", number=0))
    assert isinstance(arrived, InstanceMoved)
    assert arrived.instance.state == "moved"
    cell.hear(end(order, "confirm"))

    told = told_by(cell)
    assert (told.state, told.host, outcome(cell)) == ("stopped", "h2", ("stopped", "confirmed"))
    # It is started by the attempt that its new host knows.
    (start,) = [each for each in cell.hear(move("start", number=70)) if isinstance(each, StartInstance)]
    assert (start.attempt, start.host) == (2, host("h2"))


def test_reverted_it_is_stopped_on_its_first_host() -> None:
    cell, order = switched_off(), move("resize")
    cell.hear(order)
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1"))
    cell.hear(stopped(2, "h2", number=0))
    cell.hear(end(order, "revert"))
    cell.hear(destroyed(2, "h2"))
    said = cell.swap(CLAIMED)

    assert kinds(said) == [InstanceMoved]
    assert (told_by(cell).host, outcome(cell)) == ("h1", ("stopped", "reverted"))


def test_without_a_host_that_takes_it_it_is_stopped_where_it_was() -> None:
    cell = switched_off()
    cell.hear(move("migrate"))
    cell.swap(FULL)
    # Its share is claimed anew, so that no copy of the refused question is granted later.
    cell.swap(CLAIMED)

    assert outcome(cell) == ("stopped", "failed")


def test_evacuated_it_is_built_and_not_run() -> None:
    cell = switched_off()
    cell.hear(move("evacuate"), hosts=SILENT)
    (spawn,) = [each for each in cell.swap(CLAIMED) if isinstance(each, SpawnInstance)]
    assert spawn.stopped

    cell.hear(stopped(2, "h2", number=0))

    assert (told_by(cell).host, outcome(cell)) == ("h2", ("stopped", "confirmed"))


def test_a_running_instance_is_received_and_built_to_run() -> None:
    cell = active()
    cell.hear(move("migrate"))
    cell.swap(CLAIMED)
    (take_over,) = cell.hear(stopped(1, "h1"))
    assert isinstance(take_over, ReceiveInstance)
    assert not take_over.stopped
    # A word that it is stopped there is not the arrival.
    cell.confirm_all()
    assert cell.hear(stopped(2, "h2", number=0)) == []
    cell.hear(spawned(2, "h2"))
    assert cell.row.state == "moved"


def died(attempt: int = 1, name: str = "h1") -> InstanceStopped:
    return InstanceStopped(
        cell="c1", instance=ONE, attempt=attempt, host=host(name), by_itself="its guest was killed"
    )


def test_an_active_instance_that_stops_by_itself_is_stopped_for_that_reason_and_can_be_started() -> None:
    cell = active()

    (told,) = cell.hear(died())

    assert isinstance(told, InstanceMoved)
    assert (told.instance.state, told.instance.host, told.instance.reason) == (
        "stopped",
        "h1",
        "its guest was killed",
    )
    cell.confirm_all()
    assert cell.hear(died()) == []
    assert cell.hear(move("start")) == [START]
    (started_again,) = cell.hear(started("h1"))
    assert isinstance(started_again, InstanceActive)
    assert started_again.instance.reason == ""


def test_a_guest_that_ended_before_its_start_was_told_was_built() -> None:
    cell = Cell(place())

    told = cell.hear(died())

    assert kinds(told) == [InstanceActive, InstanceMoved]
    assert cell.row.state == "stopped"


def test_an_attempt_that_no_longer_counts_changes_nothing_when_its_guest_ends() -> None:
    cell = active()

    cell.hear(died(attempt=7))

    assert cell.row.state == "active"


def test_an_instance_that_stops_on_the_destination_of_its_move_ends_the_move_as_stopped() -> None:
    cell = active()
    cell.hear(move("migrate", "h2", confirm_s=600))
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1"))
    cell.hear(spawned(2, "h2"))
    assert told_by(cell).state == "moved"

    cell.hear(died(2, "h2"))
    cell.hear(end(move("migrate", "h2", confirm_s=600), "confirm"))

    assert told_by(cell).state == "stopped"
