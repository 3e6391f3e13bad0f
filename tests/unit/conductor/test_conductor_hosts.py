"""An instance in its cell when a host is lost: silent, set down, draining or dead."""

import pytest

from bus.messages.hosts import HeldAttempt
from cell_conductor.core.rows import ALL_UP, CellHost, foreign, newer
from engine.hosts import NODE
from tests.unit.conductor.cell import (
    ACTIVE,
    CLAIMED,
    DEAD,
    DOWN,
    LOST,
    ONE,
    REMOVE,
    SILENT,
    Case,
    Cell,
    check,
    choice,
    destroyed,
    failed,
    granted,
    host,
    move,
    place,
    set_,
    spawned,
    states,
    stopped,
)

CASES: dict[str, Case] = {
    "an attempt on a lost host takes its alternate at once and the host keeps its share: silent": [
        (place("h2"), "spawn h1/1"),
        SILENT,
        (LOST, "destroy h1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        ALL_UP,
        (CLAIMED, "spawn h2/2"),
        (spawned(2, "h2"), "active h2/2; h1: the host's heartbeats have stopped"),
        (destroyed(1, "h1"), "release heir1/1"),
        "active | one/2 h2 | h2/2",
    ],
    "an attempt on a dead host takes its alternate and nothing is kept for the host": [
        (place("h2"), "spawn h1/1"),
        DEAD,
        (LOST, "swap 1 to h2/2"),
        ALL_UP,
        (CLAIMED, "spawn h2/2"),
        "building | one/2 h2 | h2/2",
    ],
    "without an alternate a lost host ends the build and a dead one frees its share at once": [
        (place(), "spawn h1/1"),
        SILENT,
        (
            LOST,
            (
                "destroy h1/1, error: the host's heartbeats have stopped; no alternate is left (keeps its share); h1: "
                "the host's heartbeats have stopped"
            ),
        ),
        "error | one/1 | h1/1",
    ],
    "without an alternate a lost host ends the build and a dead one frees its share at once (2)": [
        (place(), "spawn h1/1"),
        DEAD,
        (
            LOST,
            "release one/1, error: the host is dead: smoke; no alternate is left; h1: the host is dead: smoke",
        ),
        "error | holds nothing | on no host",
    ],
    "a delete that waits for a host ends when it is dead and not when it is down": [
        *ACTIVE,
        (REMOVE, "destroy h1/1"),
        DOWN,
        (LOST, ""),
        DEAD,
        (LOST, "release one/1, deleted"),
        "deleted | holds nothing | on no host",
    ],
    "a delete on a host that is dead already ends at once": [
        *ACTIVE,
        DEAD,
        (REMOVE, "release one/1, deleted"),
        "deleted | holds nothing | on no host",
    ],
    "the share that is held for a silent host is released when it is dead": [
        (place("h2"), "spawn h1/1"),
        (60, "destroy h1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        (CLAIMED, "spawn h2/2"),
        (spawned(2, "h2"), "active h2/2; h1: no message from the host within 60 s"),
        DEAD,
        (LOST, "release heir1/1"),
        (LOST, ""),
        "active | one/2 h2 | h2/2",
    ],
    "a swap under way from a host that dies releases what was kept for it": [
        (place("h2"), "spawn h1/1"),
        (60, "destroy h1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        DEAD,
        (LOST, "release heir1/1"),
        ALL_UP,
        (CLAIMED, "spawn h2/2"),
        "building | one/2 h2 | h2/2",
    ],
    "an active instance stays on a host that is lost": [
        (place("h2"), "spawn h1/1"),
        (spawned(1, "h1"), "active h1/1"),
        DEAD,
        (LOST, ""),
        "active | one/1 h1 | h1/1",
    ],
    "nothing is ordered from a chosen host that is lost: silent": [
        SILENT,
        (place("h2"), "swap 1 to h2/2"),
        "swapping | one/1 | h1/1",
    ],
    "nothing is ordered from a chosen host that is lost: dead": [
        DEAD,
        (place("h2"), "swap 1 to h2/2"),
        "swapping | one/1 | h1/1",
    ],
    "a chosen host that drains still builds what was placed on it": [
        states(set_("h1", "draining")),
        (place("h2"), "spawn h1/1"),
        "building | one/1 h1 | h1/1",
    ],
    "an alternate on which nothing may be built is passed over and told among the reasons: silent": [
        (place("h2", "h3"), "spawn h1/1"),
        states(silent=("h2",)),
        (failed(1, "h1"), "swap 1 to h3/2"),
        "swapping | one/1 | h1/1",
    ],
    "an alternate on which nothing may be built is passed over and told among the reasons: down": [
        (place("h2", "h3"), "spawn h1/1"),
        states(set_("h2", "down")),
        (failed(1, "h1"), "swap 1 to h3/2"),
        "swapping | one/1 | h1/1",
    ],
    "an alternate on which nothing may be built is passed over and told among the reasons: dead": [
        (place("h2", "h3"), "spawn h1/1"),
        states(set_("h2", "dead")),
        (failed(1, "h1"), "swap 1 to h3/2"),
        "swapping | one/1 | h1/1",
    ],
    "an alternate on which nothing may be built is passed over and told among the reasons: draining": [
        (place("h2", "h3"), "spawn h1/1"),
        states(set_("h2", "draining")),
        (failed(1, "h1"), "swap 1 to h3/2"),
        "swapping | one/1 | h1/1",
    ],
    "an alternate on which nothing may be built is passed over and told among the reasons: unclean": [
        (place("h2", "h3"), "spawn h1/1"),
        states(set_("h2", "up", must_clean=True)),
        (failed(1, "h1"), "swap 1 to h3/2"),
        "swapping | one/1 | h1/1",
    ],
    "when every alternate is lost the build ends with all reasons": [
        (place("h2"), "spawn h1/1"),
        states(set_("h2", "down")),
        (
            failed(1, "h1"),
            (
                "release one/2, error: no image; no alternate is left; h1: no image; h2: the host is set down: smoke"
            ),
        ),
        "error | holds nothing | on no host",
    ],
    "an alternate that drains by the time it is granted is left at once": [
        (place("h2", "h3"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        states(set_("h2", "draining")),
        (granted(2, choice("h2")), "swap 2 to h3/3"),
        "swapping | one/2 | h2/2",
    ],
    "a destination that is lost is given up at once and keeps the rest until it has cleaned up": [
        *ACTIVE,
        (move("migrate", "h2", "h3"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1"),
        states(silent=("h2",)),
        (LOST, "destroy h2/2, swap 2 to h1/3 for heir2 CLEANUP back from heir1"),
        "moving | one/2, heir2/2, heir1/1 | h1/1, h2/2",
    ],
    "a destination on which nothing may be built is passed over": [
        *ACTIVE,
        states(set_("h2", "draining")),
        (move("migrate", "h2", "h3"), "swap 1 to h3/2 for heir1 MIGRATION"),
        "moving | one/1, heir1/1 | h1/1",
    ],
    "a move ends when every destination is lost and the instance stays": [
        *ACTIVE,
        states(set_("h2", "down")),
        (move(), "active h1/1; migrate failed no other host took it; h2: the host is set down: smoke"),
        "active | one/1 h1 | h1/1",
    ],
    "a destination that was lost while the source stopped gets no order and keeps nothing": [
        *ACTIVE,
        (move("migrate", "h2", "h3"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        states(silent=("h2",)),
        (stopped(1, "h1"), "swap 2 to h1/3 back from heir1"),
        (CLAIMED, "swap 3 to h3/4 for heir2 MIGRATION"),
        "moving | one/3, heir2/3 | h1/1",
    ],
    "a destination that was set draining since it was claimed gets no order and keeps nothing": [
        *ACTIVE,
        (move("migrate", "h2", "h3"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        states(set_("h2", "draining")),
        (stopped(1, "h1"), "swap 2 to h1/3 back from heir1"),
        (CLAIMED, "swap 3 to h3/4 for heir2 MIGRATION"),
        "moving | one/3, heir2/3 | h1/1",
    ],
    "a source that was lost while the destination was claimed is not waited for": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        SILENT,
        (CLAIMED, "swap 2 to h1/3 back from heir1"),
        (CLAIMED, ("active h1/3; migrate failed h1 cannot stop it; h1: the host's heartbeats have stopped")),
        "active | one/3 h1 | h1/1",
    ],
    "an instance whose host is lost is not shelved": [
        *ACTIVE,
        SILENT,
        (
            move("shelve"),
            "active h1/1; shelve failed h1 cannot stop it; h1: the host's heartbeats have stopped",
        ),
        "active | one/1 h1 | h1/1",
    ],
    "what a dead source held is released when its instance has arrived elsewhere": [
        *ACTIVE,
        DEAD,
        (move("evacuate"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "spawn h2/2 from h1/1"),
        (spawned(2, "h2"), "active h2/2; evacuate confirmed, release heir1/1"),
        "active | one/2 h2 | h2/2",
    ],
    "an evacuation as of a setting is made while that is the setting": [
        *ACTIVE,
        DEAD,
        (move("evacuate", source_epoch=1), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "spawn h2/2 from h1/1"),
        (spawned(2, "h2"), "active h2/2; evacuate confirmed, release heir1/1"),
        "active | one/2 h2 | h2/2",
    ],
    "nothing is spawned for an evacuation whose source was set up meanwhile, whatever it is now": [
        *ACTIVE,
        DEAD,
        (move("evacuate", source_epoch=1), "swap 1 to h2/2 for heir1 MIGRATION"),
        states(set_("h1", "dead", number=3)),
        (CLAIMED, "swap 2 to h1/3 back from heir1"),
        (
            CLAIMED,
            (
                "active h1/3; evacuate failed host h1 was set since: it is dead by setting 3, "
                "and the order is as of setting 1"
            ),
        ),
        "active | one/3 h1 | h1/1",
    ],
    "nor as of a setting that its cell does not know": [
        *ACTIVE,
        SILENT,
        (move("evacuate", source_epoch=1), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "swap 2 to h1/3 back from heir1"),
        (
            CLAIMED,
            (
                "active h1/3; evacuate failed host h1 was set since: it is up by setting 0, "
                "and the order is as of setting 1"
            ),
        ),
        "active | one/3 h1 | h1/1",
    ],
    "a delete during a move from a dead host waits for the destination alone": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        DEAD,
        (REMOVE, "destroy h2/2, release heir1/1"),
        (destroyed(2, "h2"), "release one/2, deleted"),
        "deleted | holds nothing | on no host",
    ],
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_said_and_held(case: Case) -> None:
    check(case)


@pytest.mark.parametrize(
    ("row", "name", "attempt", "destroys_unknown", "is_foreign"),
    [
        (Cell(place()), "h1", 1, True, False),
        (Cell(place(), spawned(1, "h1")), "h1", 1, True, False),
        (Cell(place(), spawned(1, "h1")), "h2", 1, True, True),
        (Cell(place(), spawned(1, "h1")), "h1", 2, True, True),
        (Cell(place(), REMOVE), "h1", 1, True, True),
        (Cell(), "h1", 1, True, True),
        # After a restore of its database, a cell does not know what was built since.
        (Cell(), "h1", 1, False, False),
        (Cell(place(), spawned(1, "h1")), "h1", 2, False, False),
    ],
)
def test_what_a_host_has_is_destroyed_unless_it_is_its_own_or_may_be(
    row: Cell,
    name: str,
    attempt: int,
    *,
    destroys_unknown: bool,
    is_foreign: bool,
) -> None:
    held = HeldAttempt(instance=ONE, attempt=attempt)
    found = foreign(row.rows, host(name), [held], destroys_unknown=destroys_unknown)
    assert found == ([held] if is_foreign else [])


def test_the_latest_mode_of_a_host_counts_and_a_dead_one_must_clean_up_until_it_was_found_clean() -> None:
    down, up = set_("h1", "down", number=2), set_("h1", "up", number=3)
    assert (newer(None, down.word), newer(down, up.word)) == (down, up)
    assert newer(up, down.word) is newer(up, up.word) is None

    returned = set_("h1", "up", number=2, must_clean=True)
    assert returned.must_clean
    assert not CellHost(returned.word, cleaned=2).must_clean


def test_a_node_is_lost_when_it_is_set_down_and_not_by_silence() -> None:
    node = choice("h1", kind=NODE)
    assert (SILENT.why_lost(node), DOWN.why_lost(node)) == ("", "the host is set down: smoke")
