"""An instance is offloaded from its host, and unshelved on another one: what is held, what is ordered, what is told."""

import pytest

from cell_conductor.core.rows import ALL_UP
from engine.flavors import Image
from engine.refusals import Superseded
from tests.unit.conductor.cell import (
    ACTIVE,
    CLAIMED,
    DEAD,
    FULL,
    LOST,
    ONE,
    REMOVE,
    SILENT,
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
    redeployed,
    set_,
    spawned,
    states,
    stopped,
)

OFFLOADED: Case = [*ACTIVE, move("offload"), stopped(1, "h1", saved=f"{ONE}-50"), destroyed(1, "h1")]
SHELVED: Case = [*ACTIVE, move("shelve", number=40), stopped(1, "h1", number=40)]

CASES: dict[str, Case] = {
    "an instance is saved then destroyed and only then it holds nothing: active": [
        *OFFLOADED,
        "offloaded | holds nothing | on no host",
    ],
    "an instance is saved then destroyed and only then it holds nothing: shelved": [
        *SHELVED,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (stopped(1, "h1", saved=f"{ONE}-50"), "destroy h1/1"),
        (destroyed(1, "h1"), "release one/1, offloaded; offload done"),
        "offloaded | holds nothing | on no host",
    ],
    "a host that does not say that it has destroyed it is reminded and keeps the share": [
        *ACTIVE,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (stopped(1, "h1", saved=f"{ONE}-50"), "destroy h1/1"),
        (100, "destroy h1/1"),
        (5000, "destroy h1/1"),
        "moving | one/1 | h1/1",
    ],
    "nobody waits for a dead host to destroy it": [
        *ACTIVE,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (stopped(1, "h1", saved=f"{ONE}-50"), "destroy h1/1"),
        DEAD,
        (LOST, "release one/1, offloaded; offload done"),
        "offloaded | holds nothing | on no host",
    ],
    "a late word of an earlier stop is not taken for a saved image": [
        *SHELVED,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (stopped(1, "h1"), ""),
        (stopped(1, "h1", saved=f"{ONE}-45"), ""),
        (stopped(1, "h1", saved=f"{ONE}-50"), "destroy h1/1"),
        "moving | one/1 | h1/1",
    ],
    "an active instance that cannot be saved runs again": [
        *ACTIVE,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (stopped(1, "h1", failure="no room for the image"), "start h1/1 #50"),
        (
            spawned(1, "h1", number=50),
            "active h1/1; offload failed h1 could not stop and save it; h1: no room for the image",
        ),
        "active | one/1 h1 | h1/1",
    ],
    "a shelved instance that cannot be saved stays shelved": [
        *SHELVED,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (
            stopped(1, "h1", failure="no room for the image"),
            ("shelved h1/1; offload failed h1 could not stop and save it; h1: no room for the image"),
        ),
        "shelved | one/1 h1 | h1/1",
    ],
    "a host that is silent about saving is given up: active": [
        *ACTIVE,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (60, "start h1/1 #50"),
        (
            spawned(1, "h1", number=50),
            ("active h1/1; offload failed h1 did not stop it in time; h1: no message from the host in time"),
        ),
        (stopped(1, "h1", saved=f"{ONE}-50"), ""),
        "active | one/1 h1 | h1/1",
    ],
    "a host that is silent about saving is given up: shelved": [
        *SHELVED,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (
            60,
            ("shelved h1/1; offload failed h1 did not stop it in time; h1: no message from the host in time"),
        ),
        (stopped(1, "h1", saved=f"{ONE}-50"), ""),
        "shelved | one/1 h1 | h1/1",
    ],
    "an abort before the destroy brings it back as it was: active": [
        *ACTIVE,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (end("abort", "offload"), "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/1; offload aborted"),
        "active | one/1 h1 | h1/1",
    ],
    "an abort before the destroy brings it back as it was: shelved": [
        *SHELVED,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (end("abort", "offload"), "shelved h1/1; offload aborted"),
        "shelved | one/1 h1 | h1/1",
    ],
    "an abort after the destroy was ordered comes too late": [
        *ACTIVE,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (stopped(1, "h1", saved=f"{ONE}-50"), "destroy h1/1"),
        (end("abort", "offload"), ""),
        (destroyed(1, "h1"), "release one/1, offloaded; offload done"),
        "offloaded | holds nothing | on no host",
    ],
    "a delete while it is offloaded frees its share once: no": [
        *ACTIVE,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (REMOVE, "destroy h1/2 saved_until 50, destroy h1/1"),
        (stopped(1, "h1", saved=f"{ONE}-50"), ""),
        (destroyed(1, "h1"), "release one/1, deleted"),
        "deleted | holds nothing | h1/2",
    ],
    "a delete while it is offloaded frees its share once: yes": [
        *ACTIVE,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (stopped(1, "h1", saved=f"{ONE}-50"), "destroy h1/1"),
        (REMOVE, "destroy h1/2 saved_until 50"),
        (stopped(1, "h1", saved=f"{ONE}-50"), ""),
        (destroyed(1, "h1"), "release one/1, deleted"),
        "deleted | holds nothing | h1/2",
    ],
    "an offloaded instance is deleted at once and its image with it": [
        *OFFLOADED,
        (REMOVE, "destroy h1/2 saved_until 50, deleted; offload done"),
        (100, "destroy h1/2 saved_until 50"),
        (destroyed(2, "h1"), ""),
        "deleted | holds nothing | on no host",
    ],
    "if all hosts are dead nobody is waited for": [
        *OFFLOADED,
        (REMOVE, "destroy h1/2 saved_until 50, deleted; offload done"),
        states(set_("h1", "dead"), set_("h2", "dead"), set_("h3", "dead")),
        (LOST, ""),
        "deleted | holds nothing | on no host",
    ],
    "a delete removes what an offload that failed may have saved": [
        *ACTIVE,
        (move("offload"), "stop h1/1 #50 save_as one-50"),
        (stopped(1, "h1", failure="the disk is full"), "start h1/1 #50"),
        (
            spawned(1, "h1", number=50),
            "active h1/1; offload failed h1 could not stop and save it; h1: the disk is full",
        ),
        (REMOVE, "destroy h1/2 saved_until 50, destroy h1/1"),
        "deleting | one/1 | h1/1, h1/2",
    ],
    "late words of the attempt that was offloaded change nothing": [
        *OFFLOADED,
        (
            [
                stopped(1, "h1", saved=f"{ONE}-50"),
                stopped(1, "h1", failure="it hangs"),
                failed(1, "h1"),
                destroyed(1, "h1"),
            ],
            "",
        ),
        (spawned(1, "h1"), "destroy h1/1"),
        "offloaded | holds nothing | on no host",
    ],
    "the share of a host that must destroy an older attempt is freed with that": [
        *ACTIVE,
        (move("resize", "h1", number=30, confirm_s=0), "swap 1 to h1/2 for heir1 MIGRATION"),
        (CLAIMED, "stop h1/1 #30"),
        (stopped(1, "h1", number=30), "receive h1/2 from h1/1"),
        (spawned(2, "h1"), "destroy h1/1, active h1/2; resize confirmed"),
        (move("offload"), "stop h1/2 #50 save_as one-50"),
        (stopped(2, "h1", saved=f"{ONE}-50"), "destroy h1/2"),
        (destroyed(2, "h1"), ""),
        (destroyed(1, "h1"), "release heir1/1, release one/2, offloaded; offload done"),
        "offloaded | holds nothing | on no host",
    ],
    "an offloaded instance is claimed anew and built from its image": [
        *OFFLOADED,
        (move("unshelve", "h2", "h3", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (spawned(2, "h2"), "destroy h2/1 saved_until 50, active h2/2; unshelve done"),
        (destroyed(1, "h2"), ""),
        (REMOVE, "destroy h2/2"),
        "deleting | one/2 | h2/2",
    ],
    "a refused claim is asked for the next choice": [
        *OFFLOADED,
        (move("unshelve", "h2", "h3", number=60), "claim h2/2"),
        (FULL, "claim h3/2"),
        "moving | one/1 | on no host",
    ],
    "a host that fails is left for the next choice by a swap": [
        *OFFLOADED,
        (move("unshelve", "h2", "h3", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (failed(2, "h2"), "swap 2 to h3/3"),
        (CLAIMED, "spawn h3/3 one-50 from_saved"),
        "moving | one/3 h3 | h3/3",
    ],
    "a silent host keeps its share by a cleanup while the next one builds": [
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
        (destroyed(2, "h2"), "release heir1/2"),
        "active | one/3 h3 | h3/2, h3/3",
    ],
    "when no host takes it it is offloaded again and the reasons are told": [
        *OFFLOADED,
        (move("unshelve", "h2", "h3", number=60), "claim h2/2"),
        (FULL, "claim h3/2"),
        (
            FULL,
            (
                "release one/2, offloaded; unshelve failed does not fit: VCPU of h9 asked 2, free 1; no alternate is left; h2: does not fit: "
                "VCPU of h9 asked 2, free 1; h3: does not fit: VCPU of h9 asked 2, free 1"
            ),
        ),
        (move("unshelve", number=70), "claim h2/3"),
        (CLAIMED, "spawn h2/3 one-50 from_saved"),
        "moving | one/3 h2 | h2/3",
    ],
    "when the last host fails its claim is released": [
        *OFFLOADED,
        (move("unshelve", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (
            failed(2, "h2"),
            "release one/2, offloaded; unshelve failed no image; no alternate is left; h2: no image",
        ),
        (move("unshelve", number=70), "claim h2/3"),
        "moving | one/2 | on no host",
    ],
    "after the deadline of the move it is offloaded again": [
        *OFFLOADED,
        (move("unshelve", "h2", "h3", number=60), "claim h2/2"),
        (1000, "release one/2, offloaded; unshelve failed the time of the request is up"),
        "offloaded | holds nothing | on no host",
    ],
    "a last host that is silent keeps the share and the next try swaps it away": [
        *OFFLOADED,
        (move("unshelve", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (
            60,
            (
                "destroy h2/2, offloaded (keeps its share); unshelve failed no message from the host within 60 s; no alternate is left; "
                "h2: no message from the host within 60 s"
            ),
        ),
        (move("unshelve", "h3", number=70), "swap 2 to h3/3 for heir1 CLEANUP"),
        (CLAIMED, "spawn h3/3 one-50 from_saved"),
        (spawned(3, "h3"), "destroy h3/2 saved_until 50, active h3/3; unshelve done"),
        (destroyed(2, "h2"), "release heir1/2"),
        "active | one/3 h3 | h3/2, h3/3",
    ],
    "each silent host frees its own share after the next try has taken over": [
        *OFFLOADED,
        (move("unshelve", "h2", "h3", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (60, "destroy h2/2, swap 2 to h3/3 for heir1 CLEANUP"),
        (CLAIMED, "spawn h3/3 one-50 from_saved"),
        (
            60,
            (
                "destroy h3/3, offloaded (keeps its share); unshelve failed no message from the host within 60 s; no alternate is left; "
                "h2: no message from the host within 60 s; h3: no message from the host within 60 s"
            ),
        ),
        (move("unshelve", "h4", number=70), "swap 3 to h4/4 for heir2 CLEANUP"),
        (CLAIMED, "spawn h4/4 one-50 from_saved"),
        (destroyed(3, "h3"), "release heir2/3"),
        (destroyed(2, "h2"), "release heir1/2"),
        "moving | one/4 h4 | h4/4",
    ],
    "a try that ends while the last silent host keeps the share hands it over once": [
        *OFFLOADED,
        (move("unshelve", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (
            60,
            (
                "destroy h2/2, offloaded (keeps its share); unshelve failed no message from the host within 60 s; no alternate is left; "
                "h2: no message from the host within 60 s"
            ),
        ),
        (move("unshelve", "h3", number=70), "swap 2 to h3/3 for heir1 CLEANUP"),
        (end("abort", "unshelve", number=70), "offloaded (keeps its share); unshelve aborted"),
        (move("unshelve", "h4", number=80), "swap 2 to h4/3 for heir1 CLEANUP"),
        "moving | one/2, heir1/2 | h2/2",
    ],
    "a last host that was silent frees its share when it has cleaned up": [
        *OFFLOADED,
        (move("unshelve", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (
            60,
            (
                "destroy h2/2, offloaded (keeps its share); unshelve failed no message from the host within 60 s; no alternate is left; "
                "h2: no message from the host within 60 s"
            ),
        ),
        (
            destroyed(2, "h2"),
            (
                "release one/2, offloaded; unshelve failed no message from the host within 60 s; no alternate is left; h2: "
                "no message from the host within 60 s"
            ),
        ),
        (move("unshelve", "h3", number=70), "claim h3/3"),
        "moving | one/2 | on no host",
    ],
    "while the release of the last attempt is on its way the claim is repeated": [
        *OFFLOADED,
        (move("unshelve", number=60), "claim h2/2"),
        (granted(1, choice("h1")), ""),
        (1, "claim h2/2"),
        "moving | one/1 | on no host",
    ],
    "a repeated claim is told what is held": [
        *OFFLOADED,
        (move("unshelve", "h2", "h3", number=60), "claim h2/2"),
        (FULL, "claim h3/2"),
        (granted(2, choice("h2")), "spawn h2/2 one-50 from_saved"),
        "moving | one/2 h2 | h2/2",
    ],
    "a claim that was taken away leaves it offloaded and not deleted": [
        *OFFLOADED,
        (move("unshelve", number=60), "claim h2/2"),
        (
            Superseded(attempt=2, ended=True),
            (
                "release one/2, offloaded; unshelve failed placement knows a later attempt, 2; no alternate is left; h2: "
                "placement knows a later attempt, 2"
            ),
        ),
        "offloaded | holds nothing | on no host",
    ],
    "a delete while it is claimed ends the attempt that is asked for": [
        *OFFLOADED,
        (move("unshelve", number=60), "claim h2/2"),
        (REMOVE, "destroy h1/3 saved_until 50, release one/2, deleted"),
        (CLAIMED, ""),
        "deleted | holds nothing | h1/3",
    ],
    "a delete while it is built frees its share": [
        *OFFLOADED,
        (move("unshelve", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (REMOVE, "destroy h2/3 saved_until 50, destroy h2/2"),
        ([destroyed(3, "h2"), destroyed(2, "h2")], "release one/2, deleted"),
        "deleted | holds nothing | on no host",
    ],
    "an aborted unshelve is offloaded again: yes": [
        *OFFLOADED,
        (move("unshelve", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (end("abort", "unshelve", number=60), "destroy h2/2, offloaded (keeps its share); unshelve aborted"),
        (destroyed(2, "h2"), "release one/2, offloaded; unshelve aborted"),
        "offloaded | holds nothing | on no host",
    ],
    "an abort before its order to unshelve undoes that": [
        *OFFLOADED,
        (end("abort", "unshelve", number=60), "offloaded; unshelve aborted"),
        (move("unshelve", number=60), ""),
        "offloaded | holds nothing | on no host",
    ],
    "after an unshelve an evacuation builds with the last image that was ordered: no": [
        (place(image=Image(source="debian")), "spawn h1/1 debian"),
        (spawned(1, "h1"), "active h1/1"),
        (
            [move("offload"), stopped(1, "h1", saved=f"{ONE}-50"), destroyed(1, "h1")],
            "stop h1/1 #50 save_as one-50, destroy h1/1, release one/1, offloaded; offload done",
        ),
        (move("unshelve", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (spawned(2, "h2"), "destroy h2/1 saved_until 50, active h2/2; unshelve done"),
        (move("evacuate", "h3", number=70), "swap 2 to h3/3 for heir1 MIGRATION"),
        (CLAIMED, "spawn h3/3 from h2/2 debian"),
        "moving | one/3, heir1/2 | h2/1, h2/2, h3/3",
    ],
    "after an unshelve an evacuation builds with the last image that was ordered: yes": [
        (place(image=Image(source="debian")), "spawn h1/1 debian"),
        (spawned(1, "h1"), "active h1/1"),
        (rebuild(10), "respawn h1/1 #10 fedora"),
        (redeployed(10), "active h1/1; rebuild 10"),
        (
            [move("offload"), stopped(1, "h1", saved=f"{ONE}-50"), destroyed(1, "h1")],
            (
                "stop h1/1 #50 save_as one-50, destroy h1/1, release one/1, offloaded; rebuild 10; "
                "offload done"
            ),
        ),
        (move("unshelve", number=60), "claim h2/2"),
        (CLAIMED, "spawn h2/2 one-50 from_saved"),
        (spawned(2, "h2"), "destroy h2/1 saved_until 50, active h2/2; rebuild 10; unshelve done"),
        (move("evacuate", "h3", number=70), "swap 2 to h3/3 for heir1 MIGRATION"),
        (CLAIMED, "spawn h3/3 from h2/2 fedora"),
        "moving | one/3, heir1/2 | h2/1, h2/2, h3/3",
    ],
    "nothing else moves an offloaded instance": [
        *OFFLOADED,
        (move("migrate", number=60), ""),
        (move("live-migrate", number=60), ""),
        (move("resize", number=60), ""),
        (move("evacuate", number=60), ""),
        (move("shelve", number=60), ""),
        (move("offload", number=60), ""),
        "offloaded | holds nothing | on no host",
    ],
    "a shelved instance is evacuated and runs at its destination": [
        *SHELVED,
        SILENT,
        (move("evacuate"), "swap 1 to h2/2 for heir1 MIGRATION"),
        ALL_UP,
        (CLAIMED, "spawn h2/2 from h1/1"),
        (spawned(2, "h2"), "destroy h1/1, active h2/2; evacuate confirmed"),
        "active | one/2 h2, heir1/1 | h1/1, h2/2",
    ],
    "a shelved instance that no host takes stays shelved": [
        *SHELVED,
        SILENT,
        (move("evacuate"), "swap 1 to h2/2 for heir1 MIGRATION"),
        ALL_UP,
        (FULL, "swap 1 to h1/2 back from heir1"),
        (
            CLAIMED,
            (
                "shelved h1/2; evacuate failed no other host took it; h2: does not fit: "
                "VCPU of h9 asked 2, free 1"
            ),
        ),
        "shelved | one/2 h1 | h1/1",
    ],
    "if the host that has saved it is lost another one removes the image": [
        (place("h2"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (CLAIMED, "spawn h2/2"),
        (spawned(2, "h2"), "active h2/2; h1: no image"),
        (move("offload"), "stop h2/2 #50 save_as one-50"),
        (stopped(2, "h2", saved=f"{ONE}-50"), "destroy h2/2"),
        (destroyed(2, "h2"), "release one/2, offloaded; offload done"),
        states(silent=("h2",)),
        (REMOVE, "destroy h1/3 saved_until 50, deleted; offload done"),
        "deleted | holds nothing | h1/3",
    ],
    "if a host dies before it has removed the image another one does so": [
        (place("h2"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (CLAIMED, "spawn h2/2"),
        (spawned(2, "h2"), "active h2/2; h1: no image"),
        (move("offload"), "stop h2/2 #50 save_as one-50"),
        (stopped(2, "h2", saved=f"{ONE}-50"), "destroy h2/2"),
        (destroyed(2, "h2"), "release one/2, offloaded; offload done"),
        (REMOVE, "destroy h2/3 saved_until 50, deleted; offload done"),
        states(set_("h2", "dead")),
        (LOST, "destroy h1/3 saved_until 50"),
        (destroyed(3, "h1"), ""),
        "deleted | holds nothing | on no host",
    ],
    "after its deadline it is not unshelved": [
        *OFFLOADED,
        (1001, ""),
        (
            move("unshelve", number=60),
            "offloaded; unshelve failed the order reached its cell after the deadline",
        ),
        "offloaded | holds nothing | on no host",
    ],
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_said_and_held(case: Case) -> None:
    check(case)
