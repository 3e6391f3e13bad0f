"""An instance is stopped, started and rebooted in its cell, and stays stopped when it moves."""

import pytest

from cell_conductor.core.rows import ALL_UP
from tests.unit.conductor.cell import (
    ACTIVE,
    CLAIMED,
    FULL,
    REMOVE,
    SILENT,
    Case,
    check,
    destroyed,
    end,
    failed,
    move,
    place,
    rebuild,
    spawned,
    stopped,
)

STOPPED: Case = [*ACTIVE, move("stop", number=40), stopped(1, "h1", number=40)]

CASES: dict[str, Case] = {
    "a stopped instance keeps its host and its claim": [
        *ACTIVE,
        (move("stop"), "stop h1/1 #50"),
        (stopped(1, "h1"), "stopped h1/1; stop done"),
        "stopped | one/1 h1 | h1/1",
    ],
    "started it runs on its host": [
        *STOPPED,
        (move("start"), "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/1; start done"),
        "active | one/1 h1 | h1/1",
    ],
    "a reboot stops and starts it": [
        *ACTIVE,
        (move("reboot"), "stop h1/1 #50"),
        (stopped(1, "h1"), "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/1; reboot done"),
        "active | one/1 h1 | h1/1",
    ],
    "one that cannot be stopped runs on: stop": [
        *ACTIVE,
        (move("stop"), "stop h1/1 #50"),
        (stopped(1, "h1", "it hangs"), "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/1; stop failed h1 could not stop it; h1: it hangs"),
        "active | one/1 h1 | h1/1",
    ],
    "one that does not start again is in error until it runs": [
        *STOPPED,
        (move("start"), "start h1/1 #50"),
        (
            failed(1, "h1", number=50),
            (
                "error h1/1: h1 could not run it again: no image (keeps its share); "
                "start failed h1 could not run it again: no image"
            ),
        ),
        (spawned(1, "h1", number=50), "active h1/1; start failed h1 could not run it again: no image"),
        "active | one/1 h1 | h1/1",
    ],
    "an order that comes twice or about another state changes nothing": [
        *STOPPED,
        (move("stop", number=40), ""),
        (move("stop"), ""),
        (move("reboot"), ""),
        (rebuild(80), ""),
        (move("start", number=60), "start h1/1 #60"),
        (stopped(1, "h1", number=40), ""),
        "moving | one/1 | h1/1",
    ],
    "a stop is aborted by running it again": [
        *ACTIVE,
        (move("stop"), "stop h1/1 #50"),
        (end("abort", "stop"), "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/1; stop aborted"),
        "active | one/1 h1 | h1/1",
    ],
    "deleted it is destroyed where it is": [
        *STOPPED,
        (REMOVE, "destroy h1/1"),
        (destroyed(1, "h1"), "release one/1, deleted; stop done"),
        "deleted | holds nothing | on no host",
    ],
    "a stopped instance stays stopped when it is migrated": [
        *STOPPED,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1 stopped"),
        (stopped(2, "h2", number=0), "moved h2/2"),
        (end("confirm"), "destroy h1/1, stopped h2/2; migrate confirmed"),
        (move("start", number=70), "start h2/2 #70"),
        "moving | one/2, heir1/1 | h1/1, h2/2",
    ],
    "reverted it is stopped on its first host": [
        *STOPPED,
        (move("resize"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1 stopped"),
        (stopped(2, "h2", number=0), "moved h2/2"),
        (end("revert", "resize"), "destroy h2/2"),
        (destroyed(2, "h2"), "swap 2 to h1/3 back from heir1"),
        (CLAIMED, "stopped h1/3; resize reverted"),
        "stopped | one/3 h1 | h1/1",
    ],
    "without a host that takes it it is stopped where it was": [
        *STOPPED,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (FULL, "swap 1 to h1/2 back from heir1"),
        (
            CLAIMED,
            (
                "stopped h1/2; migrate failed no other host took it; h2: does not fit: "
                "VCPU of h9 asked 2, free 1"
            ),
        ),
        "stopped | one/2 h1 | h1/1",
    ],
    "evacuated it is built and not run": [
        *STOPPED,
        SILENT,
        (move("evacuate"), "swap 1 to h2/2 for heir1 MIGRATION"),
        ALL_UP,
        (CLAIMED, "spawn h2/2 from h1/1 stopped"),
        (stopped(2, "h2", number=0), "destroy h1/1, stopped h2/2; evacuate confirmed"),
        "stopped | one/2 h2, heir1/1 | h1/1, h2/2",
    ],
    "a running instance is received and built to run": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1"),
        (stopped(2, "h2", number=0), ""),
        (spawned(2, "h2"), "moved h2/2"),
        "moved | one/2 h2, heir1/1 h1 | h1/1, h2/2",
    ],
    "an active instance that stops by itself is stopped for that reason and can be started": [
        *ACTIVE,
        (stopped(1, "h1", number=0, by_itself="its guest was killed"), "stopped h1/1: its guest was killed"),
        (stopped(1, "h1", number=0, by_itself="its guest was killed"), ""),
        (move("start"), "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/1; start done"),
        "active | one/1 h1 | h1/1",
    ],
    "a guest that ended before its start was told was built": [
        (place(), "spawn h1/1"),
        (
            stopped(1, "h1", number=0, by_itself="its guest was killed"),
            "active h1/1, stopped h1/1: its guest was killed",
        ),
        "stopped | one/1 h1 | h1/1",
    ],
    "an attempt that no longer counts changes nothing when its guest ends": [
        *ACTIVE,
        (stopped(7, "h1", number=0, by_itself="its guest was killed"), "destroy h1/7"),
        "active | one/1 h1 | h1/1",
    ],
    "an instance that stops on the destination of its move ends the move as stopped": [
        *ACTIVE,
        (move("migrate", confirm_s=600), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1"),
        (spawned(2, "h2"), "moved h2/2"),
        (stopped(2, "h2", number=0, by_itself="its guest was killed"), ""),
        (end("confirm"), "destroy h1/1, stopped h2/2; migrate confirmed"),
        "stopped | one/2 h2, heir1/1 | h1/1, h2/2",
    ],
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_said_and_held(case: Case) -> None:
    check(case)
