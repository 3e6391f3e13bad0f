"""An instance in its cell when a host is lost: silent, set down, draining or dead."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed
from bus.messages.cell import DestroyInstance, SpawnInstance
from bus.messages.hosts import HeldAttempt, SetHostInCell
from bus.messages.placement import Heir, ReleaseClaim
from cell_conductor.core.decide import HostsLost
from cell_conductor.core.rows import (
    ALL_UP,
    CellHost,
    HeldClaim,
    HostStates,
    Instance,
    concerns,
    foreign,
    newer,
)
from engine.hosts import NODE, HostMode, HostSetting
from engine.refusals import AlreadyClaimed
from tests.unit.conductor.cell import (
    CLAIMED,
    ONE,
    REMOVE,
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
from tests.unit.conductor.test_conductor_moves import move, stopped

if TYPE_CHECKING:
    from engine.flavors import InstanceId

LOST = HostsLost(ONE)


def set_(
    name: str, mode: HostMode, *, number: int = 1, must_clean: bool = False, cleaned: int = 0
) -> CellHost:
    setting = HostSetting(mode=mode, reason="smoke", number=number)
    word = SetHostInCell(cell="c1", host=host(name), name=name, setting=setting, must_clean=must_clean)
    return CellHost(word, cleaned)


def states(*known: CellHost, silent: Sequence[str] = ()) -> HostStates:
    return HostStates(
        {each.word.host.int: each for each in known}, frozenset(host(name).int for name in silent)
    )


SILENT = states(silent=("h1",))
DOWN = states(set_("h1", "down"))
DEAD = states(set_("h1", "dead"))


@pytest.mark.parametrize("hosts", [SILENT, DOWN], ids=["silent", "down"])
def test_an_attempt_on_a_lost_host_takes_its_alternate_at_once_and_the_host_keeps_its_share(
    hosts: HostStates,
) -> None:
    cell = Cell(place("h2"))

    assert concerns(cell.row, hosts)
    assert cell.hear(LOST, hosts=hosts) == [destroy(1, "h1")]
    assert kinds(cell.swap(CLAIMED)) == [SpawnInstance]

    assert (cell.row.host, cell.row.attempt) == (choice("h2"), 2)
    assert [each.release for each in cell.row.cleanups] == [(HeldClaim(cell.heir(1), 1),)]
    assert not concerns(cell.row, hosts)
    assert kinds(cell.hear(spawned(2, "h2"))) == [InstanceActive]
    assert released(cell.hear(destroyed(1, "h1"))) == [(cell.heir(1), 1)]


def test_an_attempt_on_a_dead_host_takes_its_alternate_and_nothing_is_kept_for_the_host() -> None:
    cell = Cell(place("h2"))

    assert cell.hear(LOST, hosts=DEAD) == []
    cell.hear_due(hosts=DEAD)
    swap = cell.swap_asked
    assert swap.heir is None
    assert kinds(cell.swap(CLAIMED)) == [SpawnInstance]
    assert (cell.row.host, cell.row.cleanups) == (choice("h2"), ())
    assert [each.reason for each in cell.row.failures] == ["the host is dead: smoke"]


def test_without_an_alternate_a_lost_host_ends_the_build_and_a_dead_one_frees_its_share_at_once() -> None:
    silent, dead = Cell(place()), Cell(place())

    assert kinds(silent.hear(LOST, hosts=SILENT)) == [DestroyInstance, InstanceFailed]
    assert kinds(dead.hear(LOST, hosts=DEAD)) == [ReleaseClaim, InstanceFailed]
    assert (silent.row.reason, dead.row.reason) == ("no alternate is left", "no alternate is left")


def test_a_delete_that_waits_for_a_host_ends_when_it_is_dead_and_not_when_it_is_down() -> None:
    cell = Cell(place(), spawned(1, "h1"), REMOVE)
    cell.confirm_all()

    assert cell.hear(LOST, hosts=DOWN) == []
    assert kinds(cell.hear(LOST, hosts=DEAD)) == [ReleaseClaim, InstanceDeleted]
    assert cell.row.reason == ""


def test_a_delete_on_a_host_that_is_dead_already_ends_at_once() -> None:
    cell = Cell(place(), spawned(1, "h1"))

    assert kinds(cell.hear(REMOVE, hosts=DEAD)) == [ReleaseClaim, InstanceDeleted]
    assert cell.row.remind_at is None


def test_the_share_that_is_held_for_a_silent_host_is_released_when_it_is_dead() -> None:
    cell = Cell(place("h2"))
    cell.after_s(60)
    cell.swap(CLAIMED)
    cell.hear(spawned(2, "h2"))

    assert concerns(cell.row, DEAD)
    assert released(cell.hear(LOST, hosts=DEAD)) == [(cell.heir(1), 1)]
    assert (cell.row.cleanups, cell.row.remind_at) == ((), None)
    assert cell.hear(LOST, hosts=DEAD) == []


def test_a_swap_under_way_from_a_host_that_dies_releases_what_was_kept_for_it() -> None:
    cell = Cell(place("h2"))
    cell.after_s(60)
    (swap,) = cell.last.swaps

    assert released(cell.hear(LOST, hosts=DEAD)) == [(cell.heir(1), 1)]
    assert not cell.row.must_clean_up
    assert kinds(cell.answer(swap, CLAIMED)) == [SpawnInstance]


def test_an_active_instance_stays_on_a_host_that_is_lost() -> None:
    cell = Cell(place("h2"), spawned(1, "h1"))
    before = cell.row

    assert not concerns(before, DEAD)
    assert cell.hear(LOST, hosts=DEAD) == []
    assert cell.row == before


@pytest.mark.parametrize("hosts", [SILENT, DOWN, DEAD], ids=["silent", "down", "dead"])
def test_nothing_is_ordered_from_a_chosen_host_that_is_lost(hosts: HostStates) -> None:
    cell = Cell()

    assert cell.hear(place("h2"), hosts=hosts) == []
    assert (cell.row.state, cell.row.cleanups) == ("swapping", ())
    cell.hear_due(hosts=hosts)
    swap = cell.swap_asked
    assert (swap.share.host, swap.heir) == (host("h2"), None)


def test_a_chosen_host_that_drains_still_builds_what_was_placed_on_it() -> None:
    assert kinds(Cell().hear(place("h2"), hosts=states(set_("h1", "draining")))) == [SpawnInstance]


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        (states(silent=("h2",)), "the host's heartbeats have stopped"),
        (states(set_("h2", "down")), "the host is set down: smoke"),
        (states(set_("h2", "dead")), "the host is dead: smoke"),
        (states(set_("h2", "draining")), "the host is draining: smoke"),
        (states(set_("h2", "up", must_clean=True)), "the host was dead, and has not cleaned up yet"),
    ],
    ids=["silent", "down", "dead", "draining", "unclean"],
)
def test_an_alternate_on_which_nothing_may_be_built_is_passed_over_and_told_among_the_reasons(
    hosts: HostStates, why: str
) -> None:
    cell = Cell(place("h2", "h3"), failed(1, "h1"))

    cell.hear_due(hosts=hosts)

    (swap,) = cell.last.swaps
    assert swap.share.host == host("h3")
    assert [(each.attempt, each.host, each.reason) for each in cell.row.failures][1:] == [(2, "h2", why)]


def test_when_every_alternate_is_lost_the_build_ends_with_all_reasons() -> None:
    cell = Cell(place("h2"), failed(1, "h1"))

    assert kinds(cell.hear_due(hosts=states(set_("h2", "down")))) == [ReleaseClaim, InstanceFailed]
    assert cell.last.swaps == ()
    assert [each.host for each in cell.row.failures] == ["h1", "h2"]


def test_an_alternate_that_drains_by_the_time_it_is_granted_is_left_at_once() -> None:
    cell = Cell(place("h2", "h3"), failed(1, "h1"))
    cell.hear_due()
    (swap,) = cell.last.swaps

    assert (
        cell.answer(
            swap, AlreadyClaimed(attempt=2, share=choice("h2").share), hosts=states(set_("h2", "draining"))
        )
        == []
    )
    cell.hear_due()
    swap = cell.swap_asked
    assert (swap.held_attempt, swap.share.host, swap.heir) == (2, host("h3"), None)


def test_a_node_is_not_lost_by_silence_and_is_when_it_is_set_down() -> None:
    node = structs.replace(choice("h1"), kind=NODE)

    assert SILENT.why_lost(node) == ""
    assert SILENT.why_lost(structs.replace(node, kind="")) != ""
    assert DOWN.why_lost(node) == "the host is set down: smoke"


def test_the_word_with_the_highest_number_counts() -> None:
    down, up = set_("h1", "down", number=2), set_("h1", "up", number=3)

    assert newer(None, down.word) == down
    assert newer(down, up.word) == up
    assert newer(up, down.word) is None
    assert newer(up, up.word) is None


def test_a_host_that_was_dead_must_clean_until_its_cell_has_found_it_clean_for_this_setting() -> None:
    assert set_("h1", "dead", must_clean=True, cleaned=1).must_clean
    assert set_("h1", "up", number=2, must_clean=True, cleaned=1).must_clean
    assert not set_("h1", "up", number=2, must_clean=True, cleaned=2).must_clean
    assert not set_("h1", "up", number=2).must_clean


def test_what_a_returned_host_has_is_its_own_only_by_the_current_attempt_on_this_host() -> None:
    building, active, gone = Cell(place()).row, Cell(place(), spawned(1, "h1")).row, Cell(place(), REMOVE).row
    held = HeldAttempt(instance=ONE, attempt=1)

    def are_foreign(row: Instance | None, name: str, attempt: int = 1) -> bool:
        rows: dict[InstanceId, Instance] = {} if row is None else {ONE: row}
        return (
            foreign(rows, host(name), [structs.replace(held, attempt=attempt)], destroys_unknown=True) != []
        )

    assert not are_foreign(building, "h1")
    assert not are_foreign(active, "h1")
    assert are_foreign(active, "h2")
    assert are_foreign(active, "h1", attempt=2)
    assert are_foreign(gone, "h1")
    assert are_foreign(None, "h1")


def test_lost_hosts_are_those_that_are_silent_or_set_down_or_dead() -> None:
    hosts = states(
        set_("h1", "down"), set_("h2", "dead"), set_("h3", "draining"), set_("h4", "up"), silent=("h5",)
    )

    assert hosts.lost() == {host(name).int for name in ("h1", "h2", "h5")}
    assert hosts.dead() == {host("h2").int}
    assert ALL_UP.lost() == frozenset()


def moving(*choices: str) -> Cell:
    cell = Cell(place(), spawned(1, "h1"))
    cell.confirm_all()
    cell.hear(move("migrate", *choices))
    return cell


def test_a_destination_that_is_lost_is_given_up_at_once_and_keeps_the_rest_until_it_has_cleaned_up() -> None:
    cell = moving("h2", "h3")
    cell.swap(CLAIMED)
    cell.hear(stopped(1, "h1"))
    silent = states(silent=("h2",))

    assert concerns(cell.row, silent)
    assert kinds(cell.hear(LOST, hosts=silent)) == [DestroyInstance]
    cell.hear_due(hosts=silent)
    back = cell.swap_asked
    assert (back.returns, back.heir) == (cell.heir(1), Heir(id=cell.heir(2), type="CLEANUP"))


def test_a_destination_on_which_nothing_may_be_built_is_passed_over() -> None:
    cell = moving("h2", "h3")

    cell.hear_due(hosts=states(set_("h2", "draining")))

    (swap,) = cell.last.swaps
    assert swap.share.host == host("h3")
    assert [each.reason for each in cell.row.failures] == ["the host is draining: smoke"]


def test_a_move_ends_when_every_destination_is_lost_and_the_instance_stays() -> None:
    cell = moving("h2")

    assert kinds(cell.hear_due(hosts=states(set_("h2", "down")))) == [InstanceActive]
    assert cell.row.moving is None
    assert cell.row.host == choice("h1")


def test_a_destination_that_was_lost_while_the_source_stopped_gets_no_order_and_keeps_nothing() -> None:
    cell = moving("h2", "h3")
    cell.swap(CLAIMED)
    silent = states(silent=("h2",))

    assert cell.hear(stopped(1, "h1"), hosts=silent) == []
    cell.hear_due(hosts=silent)

    back = cell.swap_asked
    assert (back.share.host, back.heir) == (host("h1"), None)
    assert [each.reason for each in cell.row.failures] == ["the host's heartbeats have stopped"]
    cell.answer(back, CLAIMED, hosts=silent)
    cell.hear_due(hosts=silent)
    assert cell.swap_asked.share.host == host("h3")


def test_a_source_that_was_lost_while_the_destination_was_claimed_is_not_waited_for() -> None:
    cell = moving("h2")
    cell.hear_due()
    (swap,) = cell.last.swaps
    silent = states(silent=("h1",))

    assert cell.answer(swap, CLAIMED, hosts=silent) == []
    cell.hear_due(hosts=silent)
    back = cell.swap_asked
    assert kinds(cell.answer(back, CLAIMED, hosts=silent)) == [InstanceActive]

    assert (cell.row.moving, cell.row.host) == (None, choice("h1"))
    assert [each.reason for each in cell.row.failures] == ["the host's heartbeats have stopped"]


def test_an_instance_whose_host_is_lost_is_not_shelved() -> None:
    cell = Cell(place(), spawned(1, "h1"))

    assert kinds(cell.hear(move("shelve"), hosts=SILENT)) == [InstanceActive]
    assert cell.row.move is not None
    assert cell.row.move.outcome == "failed"


def test_what_a_dead_source_held_is_released_when_its_instance_has_arrived_elsewhere() -> None:
    cell = Cell(place(), spawned(1, "h1"))
    cell.hear(move("evacuate", "h2"), hosts=DEAD)
    cell.hear_due(hosts=DEAD)
    (swap,) = cell.last.swaps
    cell.answer(swap, CLAIMED, hosts=DEAD)
    own = HeldAttempt(instance=ONE, attempt=1)
    assert foreign({ONE: cell.row}, host("h1"), [own], destroys_unknown=True) == [], "it may still come back"

    said = cell.hear(spawned(2, "h2"), hosts=DEAD)

    assert released(said) == [(cell.heir(1), 1)]
    assert (cell.row.state, cell.row.cleanups) == ("active", ())
    assert foreign({ONE: cell.row}, host("h1"), [own], destroys_unknown=True) == [own]


def test_a_delete_during_a_move_from_a_dead_host_waits_for_the_destination_alone() -> None:
    cell = moving("h2")
    cell.swap(CLAIMED)

    cell.hear(REMOVE, hosts=DEAD)
    assert [each.host for each in cell.row.cleanups] == [host("h2")]
    assert kinds(cell.hear(destroyed(2, "h2"), hosts=DEAD))[-1] is InstanceDeleted
