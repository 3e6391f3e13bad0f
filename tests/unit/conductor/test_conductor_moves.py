"""Moves in a cell, step by step: what is held, what is ordered, what is told."""

import pytest

from engine.flavors import Flavor
from engine.inventories import GroupId, ServerGroup
from engine.refusals import NotAllowed, Superseded
from tests.unit.conductor.cell import (
    ACTIVE,
    ARRIVED,
    CLAIMED,
    FULL,
    ONE,
    REMOVE,
    Case,
    check,
    choice,
    destroyed,
    end,
    failed,
    granted,
    move,
    place,
    rebuild,
    spawned,
    stopped,
)

LARGE = Flavor(name="large", vcpus=8)
REVERTING: Case = [*ARRIVED, end("revert"), destroyed(2, "h2")]
STRANDED: Case = [*REVERTING, NotAllowed(field="consumer", reason="the id is taken")]
OFFLOADED: Case = [*ACTIVE, move("offload"), stopped(1, "h1", saved=f"{ONE}-50"), destroyed(1, "h1")]
AFFINITY = ServerGroup(id=GroupId(ONE), policy="affinity")

CASES: dict[str, Case] = {
    "a move confirms itself after a time": [
        *ARRIVED,
        (99, ""),
        (1, "destroy h1/1, active h2/2; migrate confirmed"),
        "active | one/2 h2, heir1/1 | h1/1, h2/2",
    ],
    "a reverted move runs again where it was": [
        *REVERTING,
        (CLAIMED, "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/3; migrate reverted"),
        (REMOVE, "destroy h1/1"),
        (destroyed(1, "h1"), "release one/3, deleted; migrate reverted"),
        "deleted | holds nothing | on no host",
    ],
    "a failed destination is left for the next choice": [
        *ACTIVE,
        (move("migrate", "h2", "h3"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1"),
        (failed(2, "h2"), "swap 2 to h1/3 back from heir1"),
        (CLAIMED, "swap 3 to h3/4 for heir2 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h3/4 from h1/1"),
        "moving | one/4, heir2/3 | h1/1, h3/4",
    ],
    "when no choice is left it runs again and the move has failed": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1"),
        (failed(2, "h2"), "swap 2 to h1/3 back from heir1"),
        (CLAIMED, "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/3; migrate failed no other host took it; h2: no image"),
        "active | one/3 h1 | h1/1",
    ],
    "a refused swap leaves the instance as it was": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (FULL, "swap 1 to h1/2 back from heir1"),
        (
            CLAIMED,
            (
                "active h1/2; migrate failed no other host took it; h2: does not fit: "
                "VCPU of h9 asked 2, free 1"
            ),
        ),
        "active | one/2 h1 | h1/1",
    ],
    "after a refusal late copies of the question are made worthless": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (FULL, "swap 1 to h1/2 back from heir1"),
        (REMOVE, "destroy h1/1"),
        (
            destroyed(1, "h1"),
            ("release one/2, release heir1/1, deleted; h2: does not fit: VCPU of h9 asked 2, free 1"),
        ),
        "deleted | holds nothing | on no host",
    ],
    "a late copy that was granted after the refusal comes back": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (FULL, "swap 1 to h1/2 back from heir1"),
        (granted(2, choice("h2")), "swap 2 to h1/3 back from heir1"),
        (spawned(1, "h1"), ""),
        (
            CLAIMED,
            (
                "active h1/3; migrate failed no other host took it; h2: does not fit: "
                "VCPU of h9 asked 2, free 1"
            ),
        ),
        "active | one/3 h1 | h1/1",
    ],
    "a way back that was granted and not answered is not taken for a late copy: h1": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (FULL, "swap 1 to h1/2 back from heir1"),
        (None, ""),
        (1, "swap 1 to h1/2 back from heir1"),
        (
            granted(2, choice("h1")),
            (
                "active h1/2; migrate failed no other host took it; h2: does not fit: "
                "VCPU of h9 asked 2, free 1"
            ),
        ),
        "active | one/2 h1 | h1/1",
    ],
    "a move that has asked nothing just ends": [
        *ACTIVE,
        ([move(), end("abort")], "active h1/1; migrate aborted"),
        "active | one/1 h1 | h1/1",
    ],
    "a silent destination keeps its rest until it has cleaned up": [
        *ACTIVE,
        (move("live-migrate"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "receive h2/2 from h1/1 live"),
        (60, "destroy h2/2, swap 2 to h1/3 for heir2 CLEANUP back from heir1"),
        (
            CLAIMED,
            ("active h1/3; live-migrate failed no other host took it; h2: no message from the host in time"),
        ),
        (destroyed(2, "h2"), "release heir2/2"),
        "active | one/3 h1 | h1/1",
    ],
    "what a silent destination has leaves the affinity group when the instance is back": [
        (place(group=AFFINITY), "spawn h1/1"),
        (spawned(1, "h1"), "active h1/1"),
        (move("live-migrate"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "receive h2/2 from h1/1 live"),
        (60, "destroy h2/2, swap 2 to h1/3 for heir2 CLEANUP back from heir1"),
        (
            CLAIMED,
            (
                "release heir2/2 from its group, active h1/3; "
                "live-migrate failed no other host took it; h2: no message from the host in time"
            ),
        ),
        "active | one/3 h1, heir2/2 | h1/1, h2/2",
    ],
    "an evacuation builds it anew and the dead host keeps its share": [
        *ACTIVE,
        (move("evacuate"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "spawn h2/2 from h1/1"),
        (spawned(2, "h2"), "destroy h1/1, active h2/2; evacuate confirmed"),
        (destroyed(1, "h1"), "release heir1/1"),
        "active | one/2 h2 | h2/2",
    ],
    "a move that is aborted while it is received comes back: live-migrate": [
        *ACTIVE,
        (move("live-migrate", "h2", "h3"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "receive h2/2 from h1/1 live"),
        (end("abort", "live-migrate"), "destroy h2/2"),
        (destroyed(2, "h2"), "swap 2 to h1/3 back from heir1"),
        (CLAIMED, "active h1/3; live-migrate aborted"),
        "active | one/3 h1 | h1/1",
    ],
    "a move that is aborted while it is received comes back: migrate": [
        *ACTIVE,
        (move("migrate", "h2", "h3"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1"),
        (end("abort"), "destroy h2/2"),
        (destroyed(2, "h2"), "swap 2 to h1/3 back from heir1"),
        (CLAIMED, "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/3; migrate aborted"),
        "active | one/3 h1 | h1/1",
    ],
    "an abort that comes first undoes the move that comes later": [
        *ACTIVE,
        (end("abort"), "active h1/1; migrate aborted"),
        (move(), ""),
        "active | one/1 h1 | h1/1",
    ],
    "a delete while it moves frees both hosts": [
        *ACTIVE,
        (move("live-migrate"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "receive h2/2 from h1/1 live"),
        (REMOVE, "destroy h2/2, destroy h1/1"),
        (destroyed(1, "h1"), "release heir1/1"),
        (destroyed(2, "h2"), "release one/2, deleted"),
        "deleted | holds nothing | on no host",
    ],
    "a delete while placement is asked ends the next attempt and its heir": [
        *ACTIVE,
        (move("live-migrate"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (REMOVE, "destroy h1/1"),
        (destroyed(1, "h1"), "release one/2, release heir1/1, deleted"),
        "deleted | holds nothing | on no host",
    ],
    "a source that does not run it again is asked until it does": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (60, "swap 2 to h1/3 back from heir1"),
        (CLAIMED, "start h1/1 #50"),
        (
            60,
            (
                "error h1/3: h1 has not confirmed that it runs again (keeps its share); "
                "migrate failed h1 did not stop it in time; h1: no message from the host in time, "
                "start h1/1 #50"
            ),
        ),
        (100, "start h1/1 #50"),
        (
            spawned(1, "h1", number=50),
            ("active h1/3; migrate failed h1 did not stop it in time; h1: no message from the host in time"),
        ),
        "active | one/3 h1 | h1/1",
    ],
    "a source that may run it again by now is stopped before another host receives it": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1", "it hangs"), "swap 2 to h1/3 back from heir1"),
        (CLAIMED, "start h1/1 #50"),
        (
            60,
            (
                "error h1/3: h1 has not confirmed that it runs again (keeps its share); "
                "migrate failed h1 could not stop it; h1: it hangs, start h1/1 #50"
            ),
        ),
        (move("migrate", "h3", number=70), "swap 3 to h3/4 for heir2 MIGRATION"),
        (CLAIMED, "stop h1/1 #70"),
        "moving | one/4, heir2/3 | h1/1, h3/4",
    ],
    "a late word of the source about its build or an earlier move answers no move": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1", "it hangs"), "swap 2 to h1/3 back from heir1"),
        (CLAIMED, "start h1/1 #50"),
        (spawned(1, "h1"), ""),
        (failed(1, "h1", number=40), ""),
        (spawned(1, "h1", number=50), "active h1/3; migrate failed h1 could not stop it; h1: it hangs"),
        (move("migrate", number=70), "swap 3 to h2/4 for heir2 MIGRATION"),
        (CLAIMED, "stop h1/1 #70"),
        (stopped(1, "h1"), ""),
        (stopped(1, "h1", number=70), "receive h2/4 from h1/1"),
        "moving | one/4, heir2/3 | h1/1, h2/4",
    ],
    "a late word of the source destroys nothing": [
        *ARRIVED,
        (spawned(1, "h1"), ""),
        "moved | one/2 h2, heir1/1 h1 | h1/1, h2/2",
    ],
    "after a confirmed resize everything has the new size": [
        *ACTIVE,
        (move("resize", confirm_s=0, flavor=LARGE), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1 large"),
        (spawned(2, "h2"), "destroy h1/1, active h2/2; resize confirmed"),
        (move("evacuate", "h3", number=70), "swap 2 to h3/3 for heir2 MIGRATION"),
        (CLAIMED, "spawn h3/3 from h2/2 large"),
        "moving | one/3, heir1/1, heir2/2 | h1/1, h2/2, h3/3",
    ],
    "a shelved instance keeps its host and runs there again": [
        *ACTIVE,
        (move("shelve"), "stop h1/1 #50"),
        (stopped(1, "h1"), "shelved h1/1; shelve done"),
        (move("migrate", number=60), ""),
        (move("unshelve", number=70), "start h1/1 #70"),
        (spawned(1, "h1", number=70), "active h1/1; unshelve done"),
        "active | one/1 h1 | h1/1",
    ],
    "a shelved instance is deleted where it is": [
        *ACTIVE,
        (move("shelve"), "stop h1/1 #50"),
        (stopped(1, "h1"), "shelved h1/1; shelve done"),
        (REMOVE, "destroy h1/1"),
        (destroyed(1, "h1"), "release one/1, deleted; shelve done"),
        "deleted | holds nothing | on no host",
    ],
    "an instance that cannot be stopped is not shelved": [
        *ACTIVE,
        (move("shelve"), "stop h1/1 #50"),
        (stopped(1, "h1", "it hangs"), "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/1; shelve failed h1 could not stop it; h1: it hangs"),
        "active | one/1 h1 | h1/1",
    ],
    "a destination that was left and builds again is ordered to destroy it": [
        *ACTIVE,
        (move("live-migrate"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "receive h2/2 from h1/1 live"),
        (failed(2, "h2"), "swap 2 to h1/3 back from heir1"),
        (spawned(2, "h2"), "destroy h2/2"),
        "moving | one/2, heir1/1 | h1/1, h2/2",
    ],
    "a way back that was granted and not answered is not taken for a late copy since a reshape": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (FULL, "swap 1 to h1/2 back from heir1"),
        (None, ""),
        (1, "swap 1 to h1/2 back from heir1"),
        (
            granted(2, choice("h1", of="h7")),
            (
                "active h1/2; migrate failed no other host took it; h2: does not fit: "
                "VCPU of h9 asked 2, free 1"
            ),
        ),
        "active | one/2 h1 | h1/1",
    ],
    "a question that is repeated names the same heir: moving": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (None, ""),
        (10, "swap 1 to h2/2 for heir1 MIGRATION"),
        "moving | one/1, heir1/1 | h1/1",
    ],
    "a question that is repeated names the same heir: silent": [
        (place("h2"), "spawn h1/1"),
        (60, "destroy h1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        (None, ""),
        (10, "swap 1 to h2/2 for heir1 CLEANUP"),
        "swapping | one/1, heir1/1 | h1/1",
    ],
    "a question that is repeated names the same heir: going back": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1"),
        (60, "destroy h2/2, swap 2 to h1/3 for heir2 CLEANUP back from heir1"),
        (None, ""),
        (10, "swap 2 to h1/3 for heir2 CLEANUP back from heir1"),
        "moving | one/2, heir2/2, heir1/1 | h1/1, h2/2",
    ],
    "an id that is taken ends the try with the reason: moving": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (NotAllowed(field="heir.id", reason="the id is taken"), "swap 1 to h1/2 back from heir1"),
        (
            CLAIMED,
            ("active h1/2; migrate failed no other host took it; h2: not allowed: heir.id: the id is taken"),
        ),
        "active | one/2 h1 | h1/1",
    ],
    "a host that must destroy two attempts frees the shares of both in the end: aborted": [
        (place("h2"), "spawn h1/1"),
        (60, "destroy h1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        (CLAIMED, "spawn h2/2"),
        (spawned(2, "h2"), "active h2/2; h1: no message from the host within 60 s"),
        (move("live-migrate", "h1"), "swap 2 to h1/3 for heir2 MIGRATION"),
        (CLAIMED, "receive h1/3 from h2/2 live"),
        (end("abort", "live-migrate"), "destroy h1/3"),
        (destroyed(1, "h1"), ""),
        (30, "swap 3 to h2/4 for heir3 CLEANUP back from heir2"),
        (CLAIMED, "active h2/4; live-migrate aborted"),
        (destroyed(3, "h1"), "release heir3/3, release heir1/1"),
        "active | one/4 h2 | h2/2",
    ],
    "an instance that is deleted while a host must destroy two attempts frees all its shares: silent": [
        (place("h2"), "spawn h1/1"),
        (60, "destroy h1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        (CLAIMED, "spawn h2/2"),
        (spawned(2, "h2"), "active h2/2; h1: no message from the host within 60 s"),
        (move("live-migrate", "h1"), "swap 2 to h1/3 for heir2 MIGRATION"),
        (CLAIMED, "receive h1/3 from h2/2 live"),
        (60, "destroy h1/3, swap 3 to h2/4 for heir3 CLEANUP back from heir2"),
        (destroyed(1, "h1"), ""),
        (REMOVE, "destroy h2/2"),
        (
            [destroyed(3, "h1"), destroyed(2, "h2")],
            (
                "release heir3/3, release heir1/1, release one/4, release heir2/2, deleted; h1: "
                "no message from the host in time"
            ),
        ),
        "deleted | holds nothing | on no host",
    ],
    "an instance that is not built again where it was given up frees both shares there": [
        *OFFLOADED,
        (move("unshelve", "h2", "h3", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (60, "destroy h2/2, swap 2 to h3/3 for heir1 CLEANUP"),
        (CLAIMED, "spawn h3/3 one-50 from_saved"),
        (
            spawned(3, "h3"),
            (
                "destroy h3/2 saved_until 50, active h3/3; unshelve done; h2: "
                "no message from the host within 60 s"
            ),
        ),
        (move("offload", number=70), "stop h3/3 #70 save_as one-70"),
        (stopped(3, "h3", saved=f"{ONE}-70", number=70), "destroy h3/3"),
        (destroyed(3, "h3"), "release one/3, offloaded; offload done"),
        (move("unshelve", "h2", "h4", number=80), "claim h2/4"),
        (CLAIMED, "spawn h2/4 one-70 from_saved"),
        (60, "destroy h2/4, swap 4 to h4/5 for heir2 CLEANUP"),
        (destroyed(2, "h2"), ""),
        (
            end("abort", "unshelve", number=80),
            ("offloaded (keeps its share); unshelve aborted; h2: no message from the host within 60 s"),
        ),
        (
            destroyed(4, "h2"),
            (
                "release heir2/4, release one/5, release heir1/2, offloaded; unshelve aborted; h2: "
                "no message from the host within 60 s"
            ),
        ),
        "offloaded | holds nothing | h3/2",
    ],
    "an audit learns which consumers a cell has just freed": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1"),
        (60, "destroy h2/2, swap 2 to h1/3 for heir2 CLEANUP back from heir1"),
        (CLAIMED, "start h1/1 #50"),
        (destroyed(2, "h2"), "release heir2/2"),
        "moving | one/3 | h1/1",
    ],
    "a refusal that does not change ends the move with its reason: 1": [
        *STRANDED,
        (10000, ""),
        "error | one/2 h2, heir1/1 | h1/1",
    ],
    "a refusal that does not change ends the move with its reason: 2": [
        *REVERTING,
        (
            Superseded(attempt=2, ended=True),
            (
                "error h1/2: placement refuses its way back: placement knows a later attempt, "
                "2 (keeps its share); migrate failed placement refuses its way back: "
                "placement knows a later attempt, 2"
            ),
        ),
        (10000, ""),
        "error | one/2 h2, heir1/1 | h1/1",
    ],
    "a refusal that may change is told at the end of the moves time and asked again: 1": [
        *REVERTING,
        (FULL, ""),
        (1000, "swap 2 to h1/3 back from heir1"),
        (
            FULL,
            (
                "error h1/2: placement refuses its way back: does not fit: VCPU of h9 asked 2, "
                "free 1 (keeps its share); migrate failed placement refuses its way back: "
                "does not fit: VCPU of h9 asked 2, free 1"
            ),
        ),
        (100, "swap 2 to h1/3 back from heir1"),
        (FULL, ""),
        (100, "swap 2 to h1/3 back from heir1"),
        (FULL, ""),
        (100, "swap 2 to h1/3 back from heir1"),
        (FULL, ""),
        (100, "swap 2 to h1/3 back from heir1"),
        (CLAIMED, "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/3; migrate reverted"),
        "active | one/3 h1 | h1/1",
    ],
    "a move that never left its host ends there": [
        *ACTIVE,
        (move("live-migrate"), "swap 1 to h2/2 for heir1 MIGRATION"),
        (FULL, "swap 1 to h1/2 back from heir1"),
        (
            Superseded(attempt=2, ended=True),
            (
                "active h1/1; live-migrate failed no other host took it; h2: does not fit: "
                "VCPU of h9 asked 2, free 1"
            ),
        ),
        "active | one/1 h1 | h1/1",
    ],
    "an instance that waits for its way back is deleted on both hosts": [
        *STRANDED,
        (REMOVE, "destroy h2/2, destroy h1/1"),
        (destroyed(1, "h1"), "release heir1/1"),
        (
            destroyed(2, "h2"),
            (
                "release one/3, deleted; migrate failed placement refuses its way back: not allowed: "
                "consumer: the id is taken"
            ),
        ),
        "deleted | holds nothing | on no host",
    ],
    "a further order is refused and has the way back asked for once more": [
        *STRANDED,
        (
            move("evacuate", "h3", number=70),
            (
                "error h1/2: placement refuses its way back: not allowed: consumer: "
                "the id is taken (keeps its share); "
                "evacuate failed placement refuses its way back from an earlier move, "
                "swap 2 to h1/3 back from heir1"
            ),
        ),
        (NotAllowed(field="consumer", reason="the id is taken"), ""),
        (
            rebuild(90),
            (
                "error h1/2: its rebuild failed: "
                "placement refuses its way back from a move (keeps its share); "
                "rebuild 90 placement refuses its way back from a move; "
                "evacuate failed placement refuses its way back: not allowed: consumer: "
                "the id is taken, swap 2 to h1/3 back from heir1"
            ),
        ),
        (CLAIMED, "start h1/1 #70"),
        "moving | one/3 | h1/1",
    ],
    "an abort that crosses the end is answered and asks once more": [
        *STRANDED,
        (
            end("abort"),
            (
                "error h1/2: placement refuses its way back: not allowed: consumer: "
                "the id is taken (keeps its share); migrate failed placement refuses its way back: "
                "not allowed: consumer: the id is taken, swap 2 to h1/3 back from heir1"
            ),
        ),
        (CLAIMED, "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/3; migrate reverted"),
        "active | one/3 h1 | h1/1",
    ],
    "an abort while a refusal is asked again does not change what is told": [
        *ACTIVE,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #50"),
        (stopped(1, "h1"), "receive h2/2 from h1/1"),
        (end("abort"), "destroy h2/2"),
        (destroyed(2, "h2"), "swap 2 to h1/3 back from heir1"),
        (
            NotAllowed(field="consumer", reason="the id is taken"),
            (
                "error h1/2: placement refuses its way back: not allowed: consumer: "
                "the id is taken (keeps its share); migrate failed placement refuses its way back: "
                "not allowed: consumer: the id is taken"
            ),
        ),
        "error | one/2 h2, heir1/1 | h1/1",
    ],
    "an audit finds the claim at the destination and the instance at the source": [
        *STRANDED,
        "error | one/2 h2, heir1/1 | h1/1",
    ],
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_said_and_held(case: Case) -> None:
    check(case)
