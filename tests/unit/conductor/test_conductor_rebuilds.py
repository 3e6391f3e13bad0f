"""Rebuilds of an instance: in place, numbered, and with an end whatever its host reports."""

import pytest

from cell_conductor.core.rows import ALL_UP
from engine.flavors import Image
from tests.unit.conductor.cell import (
    ARRIVED,
    CLAIMED,
    DEAD,
    DOWN,
    FULL,
    LOST,
    REMOVE,
    SILENT,
    Case,
    check,
    destroyed,
    end,
    failed,
    move,
    place,
    place_on_node,
    progressed,
    rebuild,
    redeployed,
    spawned,
    stopped,
)

ON_NODE: Case = [place_on_node(), spawned(1, "n1")]
BOOT = place(name="web", image=Image(source="debian"))
BOOTED: Case = [BOOT, spawned(1, "h1")]
# Its host has not answered a rebuild in time.
GIVEN_UP: Case = [*BOOTED, rebuild(), 60]
# A move failed, and its source has not run it again since.
NOT_RESTARTED: Case = [
    *BOOTED,
    [rebuild(10), redeployed(10), move()],
    CLAIMED,
    [stopped(1, "h1"), failed(2, "h2")],
    CLAIMED,
    failed(1, "h1", number=50),
]

CASES: dict[str, Case] = {
    "a rebuild is ordered from the node of the attempt with all fields of its placement": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        "rebuilding | one/1 n1 | n1/1",
    ],
    "a node is told the properties of a stored image": [
        *ON_NODE,
        (
            rebuild(image_name="gold", image_properties={"trait:CUSTOM_GOLD": "required"}),
            "redeploy n1/1 #150 fedora trait:CUSTOM_GOLD=required",
        ),
        "rebuilding | one/1 n1 | n1/1",
    ],
    "a rebuilt instance is active again with a higher sequence": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (redeployed(name="n1"), "active n1/1; rebuild 150"),
        "active | one/1 n1 | n1/1",
    ],
    "a repeated order is not carried out again and an earlier one never": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (rebuild(), ""),
        (rebuild(), ""),
        (redeployed(name="n1"), "active n1/1; rebuild 150"),
        (rebuild(), ""),
        (rebuild(149), ""),
        (rebuild(151), "redeploy n1/1 #151 fedora"),
        "rebuilding | one/1 n1 | n1/1",
    ],
    "reports of another rebuild attempt or node change nothing": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (redeployed(149, name="n1"), ""),
        (redeployed(attempt=2, name="n1"), ""),
        (redeployed(name="n2"), ""),
        (spawned(1, "n1"), ""),
        "rebuilding | one/1 n1 | n1/1",
    ],
    "a rebuild that failed leaves an error that keeps its node and its share": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (
            redeployed(name="n1", failure="deploy failed: no disk"),
            (
                "error n1/1: its rebuild failed: deploy failed: no disk (keeps its share); "
                "rebuild 150 deploy failed: no disk"
            ),
        ),
        (redeployed(name="n1", failure="again"), ""),
        "error | one/1 n1 | n1/1",
    ],
    "a rebuild that never began leaves the instance active and says why": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (
            redeployed(name="n1", failure="the node is locked", is_active=True),
            "active n1/1; rebuild 150 the node is locked",
        ),
        "active | one/1 n1 | n1/1",
    ],
    "a broken instance is rebuilt again and then active without a reason": [
        *ON_NODE,
        (
            [rebuild(), redeployed(name="n1", failure="no disk")],
            (
                "redeploy n1/1 #150 fedora, error n1/1: its rebuild failed: "
                "no disk (keeps its share); rebuild 150 no disk"
            ),
        ),
        (rebuild(160), "redeploy n1/1 #160 fedora"),
        (redeployed(160, name="n1"), "active n1/1; rebuild 160"),
        "active | one/1 n1 | n1/1",
    ],
    "a delete ends a rebuild and its share is held until the node is clean: under way": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (REMOVE, "undeploy n1/1"),
        (redeployed(name="n1"), ""),
        (rebuild(170), ""),
        (destroyed(1, "n1"), "release one/1, deleted; rebuild 150"),
        "deleted | holds nothing | on no host",
    ],
    "a delete ends a rebuild and its share is held until the node is clean: broken": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (
            redeployed(name="n1", failure="no disk"),
            "error n1/1: its rebuild failed: no disk (keeps its share); rebuild 150 no disk",
        ),
        (REMOVE, "undeploy n1/1"),
        (redeployed(name="n1"), ""),
        (rebuild(170), ""),
        (destroyed(1, "n1"), "release one/1, deleted; rebuild 150 no disk"),
        "deleted | holds nothing | on no host",
    ],
    "progress restarts the timeout of a rebuild but never beyond its deadline": [
        *ON_NODE,
        (rebuild(150, ends_in_s=3700), "redeploy n1/1 #150 fedora"),
        (2699, ""),
        (progressed(1, "n1"), ""),
        (1000, ""),
        (
            1,
            (
                "error n1/1: its rebuild failed: not rebuilt by its deadline (keeps its share); "
                "rebuild 150 not rebuilt by its deadline"
            ),
        ),
        "error | one/1 n1 | n1/1",
    ],
    "a rebuild without a report in time is an error until the node reports success": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (
            2700,
            (
                "error n1/1: its rebuild failed: "
                "no message from the host within 2700 s (keeps its share); "
                "rebuild 150 no message from the host within 2700 s"
            ),
        ),
        (redeployed(name="n1"), "active n1/1; rebuild 150"),
        "active | one/1 n1 | n1/1",
    ],
    "a rebuild that never began before its timeout leaves the instance active": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (
            2700,
            (
                "error n1/1: its rebuild failed: "
                "no message from the host within 2700 s (keeps its share); "
                "rebuild 150 no message from the host within 2700 s"
            ),
        ),
        (
            redeployed(name="n1", failure="Ironic refuses: in maintenance", is_active=True),
            "active n1/1; rebuild 150 Ironic refuses: in maintenance",
        ),
        "active | one/1 n1 | n1/1",
    ],
    "a rebuild that comes to its cell too late is not begun": [
        *ON_NODE,
        (100, ""),
        (
            rebuild(150, ends_in_s=100),
            "active n1/1; rebuild 150 the order reached its cell after the deadline",
        ),
        "active | one/1 n1 | n1/1",
    ],
    "an instance that is not active is not rebuilt": [
        (rebuild(), ""),
        "forgotten",
    ],
    "an instance that is not active is not rebuilt (2)": [
        (place_on_node(), "deploy n1/1"),
        (rebuild(), ""),
        "building | one/1 n1 | n1/1",
    ],
    "a node that is rebuilt is told to undeploy a superseded attempt only": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (progressed(2, "n1"), "undeploy n1/2"),
        "rebuilding | one/1 n1 | n1/1",
    ],
    "a node that is back ends a failed rebuild but not one that is still asked for": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (failed(1, "n1", number=1), ""),
        (
            redeployed(name="n1", failure="the node is deleted in Ironic"),
            (
                "error n1/1: its rebuild failed: the node is deleted in Ironic (keeps its share); "
                "rebuild 150 the node is deleted in Ironic"
            ),
        ),
        (spawned(1, "n1", number=2), "active n1/1; rebuild 150 the node is deleted in Ironic"),
        "active | one/1 n1 | n1/1",
    ],
    "a node that is back ends a failed rebuild but not one that is still asked for (2)": [
        *ON_NODE,
        (rebuild(), "redeploy n1/1 #150 fedora"),
        (
            8100,
            (
                "error n1/1: its rebuild failed: not rebuilt by its deadline (keeps its share); "
                "rebuild 150 not rebuilt by its deadline"
            ),
        ),
        (spawned(1, "n1", number=2), ""),
        (redeployed(name="n1"), "active n1/1; rebuild 150"),
        "active | one/1 n1 | n1/1",
    ],
    "the host of the attempt is ordered to build it anew and placement is not asked": [
        *BOOTED,
        (rebuild(), "respawn h1/1 #150 name web fedora"),
        "rebuilding | one/1 h1 | h1/1",
    ],
    "a rebuilt instance is active with its host and attempt": [
        *BOOTED,
        (rebuild(), "respawn h1/1 #150 name web fedora"),
        (redeployed(), "active h1/1; rebuild 150"),
        "active | one/1 h1 | h1/1",
    ],
    "after a resize it is rebuilt with its new flavor and after a revert as the attempt that its host knows": [
        *ARRIVED,
        ([end("revert"), destroyed(2, "h2")], "destroy h2/2, swap 2 to h1/3 back from heir1"),
        (CLAIMED, "start h1/1 #50"),
        (spawned(1, "h1", number=50), "active h1/3; migrate reverted"),
        (rebuild(), "respawn h1/1 #150 fedora"),
        (redeployed(), "active h1/3; rebuild 150; migrate reverted"),
        "active | one/3 h1 | h1/1",
    ],
    "a failed rebuild is an error that keeps its host and the next one makes it active": [
        *BOOTED,
        (rebuild(), "respawn h1/1 #150 name web fedora"),
        (
            redeployed(failure="no disk"),
            "error h1/1: its rebuild failed: no disk (keeps its share); rebuild 150 no disk",
        ),
        (rebuild(160), "respawn h1/1 #160 name web fedora"),
        (redeployed(160), "active h1/1; rebuild 160"),
        "active | one/1 h1 | h1/1",
    ],
    "an evacuation builds with the image of the last rebuild that was done": [
        *BOOTED,
        (move("evacuate", number=300), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "spawn h2/2 from h1/1 name web debian"),
        "moving | one/2, heir1/1 | h1/1, h2/2",
    ],
    "an evacuation builds with the image of the last rebuild that was done (2)": [
        *BOOTED,
        ([rebuild(), redeployed()], "respawn h1/1 #150 name web fedora, active h1/1; rebuild 150"),
        (move("evacuate", number=300), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "spawn h2/2 from h1/1 name web fedora"),
        "moving | one/2, heir1/1 | h1/1, h2/2",
    ],
    "an evacuation builds with the image of the last rebuild that was done (3)": [
        *BOOTED,
        (
            [
                rebuild(),
                redeployed(),
                rebuild(160, image=Image(source="arch")),
                redeployed(160, failure="no disk"),
            ],
            (
                "respawn h1/1 #150 name web fedora, active h1/1; rebuild 150, "
                "respawn h1/1 #160 name web arch, error h1/1: its rebuild failed: "
                "no disk (keeps its share); rebuild 160 no disk"
            ),
        ),
        (move("evacuate", number=300), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "spawn h2/2 from h1/1 name web fedora"),
        "moving | one/2, heir1/1 | h1/1, h2/2",
    ],
    "a host is told the properties of a stored image at the rebuild and at later builds": [
        *BOOTED,
        (
            rebuild(image_name="new", image_properties={"hw_disk_bus": "virtio"}),
            "respawn h1/1 #150 name web fedora hw_disk_bus=virtio",
        ),
        (redeployed(), "active h1/1; rebuild 150"),
        (
            [rebuild(160, image=Image(source="arch")), redeployed(160, failure="no disk")],
            (
                "respawn h1/1 #160 name web arch, error h1/1: its rebuild failed: "
                "no disk (keeps its share); rebuild 160 no disk"
            ),
        ),
        (move("evacuate", number=300), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "spawn h2/2 from h1/1 name web fedora hw_disk_bus=virtio"),
        "moving | one/2, heir1/1 | h1/1, h2/2",
    ],
    "a rebuild that says no properties has those of the boot also after one that has its own": [
        (
            place(image_properties={"hw_disk_bus": "scsi"}, image=Image(source="debian")),
            "spawn h1/1 debian hw_disk_bus=scsi",
        ),
        (spawned(1, "h1"), "active h1/1"),
        (
            [rebuild(image_name="new", image_properties={"hw_disk_bus": "virtio"}), redeployed()],
            "respawn h1/1 #150 fedora hw_disk_bus=virtio, active h1/1; rebuild 150",
        ),
        (
            [rebuild(160, image=Image(source="arch")), redeployed(160)],
            "respawn h1/1 #160 arch hw_disk_bus=scsi, active h1/1; rebuild 160",
        ),
        (move("evacuate", number=300), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "spawn h2/2 from h1/1 arch hw_disk_bus=scsi"),
        "moving | one/2, heir1/1 | h1/1, h2/2",
    ],
    "a host that is silent about a rebuild is given up and asked until it says how it ended": [
        *GIVEN_UP,
        (99, ""),
        (1, "respawn h1/1 #150 name web fedora"),
        (99, ""),
        (1, "respawn h1/1 #150 name web fedora"),
        (redeployed(), "active h1/1; rebuild 150"),
        (100, ""),
        "active | one/1 h1 | h1/1",
    ],
    "a host that was silent and says that it failed is not asked any more": [
        *GIVEN_UP,
        (
            redeployed(failure="no disk"),
            "error h1/1: its rebuild failed: no disk (keeps its share); rebuild 150 no disk",
        ),
        (redeployed(failure="no disk"), ""),
        "error | one/1 h1 | h1/1",
    ],
    "a rebuild on a host that is lost has failed at once: silent": [
        *BOOTED,
        (rebuild(), "respawn h1/1 #150 name web fedora"),
        SILENT,
        (
            LOST,
            (
                "error h1/1: its rebuild failed: "
                "the host's heartbeats have stopped (keeps its share); "
                "rebuild 150 the host's heartbeats have stopped"
            ),
        ),
        ALL_UP,
        (redeployed(), "active h1/1; rebuild 150"),
        "active | one/1 h1 | h1/1",
    ],
    "a rebuild on a host that is lost has failed at once: dead": [
        *BOOTED,
        (rebuild(), "respawn h1/1 #150 name web fedora"),
        DEAD,
        (
            LOST,
            (
                "error h1/1: its rebuild failed: the host is dead: smoke (keeps its share); "
                "rebuild 150 the host is dead: smoke"
            ),
        ),
        ALL_UP,
        (redeployed(), "active h1/1; rebuild 150"),
        "active | one/1 h1 | h1/1",
    ],
    "a rebuild that comes to its cell when its host is lost is not begun": [
        *BOOTED,
        DOWN,
        (rebuild(), "active h1/1; rebuild 150 the host is set down: smoke"),
        "active | one/1 h1 | h1/1",
    ],
    "a delete ends a rebuild and its share is held until the host has cleaned up: under way": [
        *BOOTED,
        (rebuild(), "respawn h1/1 #150 name web fedora"),
        (REMOVE, "destroy h1/1"),
        (redeployed(), ""),
        (redeployed(failure="no disk"), ""),
        (rebuild(170), ""),
        (destroyed(1, "h1"), "release one/1, deleted; rebuild 150"),
        "deleted | holds nothing | on no host",
    ],
    "a delete ends a rebuild and its share is held until the host has cleaned up: given up": [
        *GIVEN_UP,
        (rebuild(), ""),
        (REMOVE, "destroy h1/1"),
        (redeployed(), ""),
        (redeployed(failure="no disk"), ""),
        (rebuild(170), ""),
        (destroyed(1, "h1"), "release one/1, deleted; rebuild 150 no message from the host within 60 s"),
        "deleted | holds nothing | on no host",
    ],
    "a word of before the rebuild changes nothing": [
        *BOOTED,
        (
            [rebuild(10), redeployed(10), rebuild()],
            ("respawn h1/1 #10 name web fedora, active h1/1; rebuild 10, respawn h1/1 #150 name web fedora"),
        ),
        (redeployed(10), ""),
        (redeployed(10, failure="no disk"), ""),
        (redeployed(attempt=2), ""),
        (spawned(1, "h1"), ""),
        (failed(1, "h1"), ""),
        (stopped(1, "h1"), ""),
        (stopped(1, "h1", "it hangs"), ""),
        (rebuild(10), ""),
        "rebuilding | one/1 h1 | h1/1",
    ],
    "an instance that moves has moved or is shelved is not rebuilt": [
        *BOOTED,
        (move(), "swap 1 to h2/2 for heir1 MIGRATION"),
        (rebuild(), ""),
        "moving | one/1, heir1/1 | h1/1",
    ],
    "an instance that moves has moved or is shelved is not rebuilt (2)": [
        *ARRIVED,
        (rebuild(), ""),
        "moved | one/2 h2, heir1/1 h1 | h1/1, h2/2",
    ],
    "an instance that moves has moved or is shelved is not rebuilt (3)": [
        *BOOTED,
        ([move("shelve"), stopped(1, "h1")], "stop h1/1 #50, shelved h1/1; shelve done"),
        (rebuild(), ""),
        "shelved | one/1 h1 | h1/1",
    ],
    "a rebuild takes the place of the restart that a failed move waits for": [
        *NOT_RESTARTED,
        (rebuild(), "respawn h1/1 #150 name web fedora"),
        (spawned(1, "h1"), ""),
        (redeployed(), "active h1/3; rebuild 150; migrate failed no other host took it; h2: no image"),
        "active | one/3 h1 | h1/1",
    ],
    "a word about the last rebuild does not end the restart after a failed move": [
        *NOT_RESTARTED,
        (redeployed(10), ""),
        (
            spawned(1, "h1", number=50),
            "active h1/3; rebuild 10; migrate failed no other host took it; h2: no image",
        ),
        "active | one/3 h1 | h1/1",
    ],
    "a rebuild that comes too late leaves the restart after a failed move as it was": [
        *NOT_RESTARTED,
        (
            rebuild(150, ends_in_s=0),
            (
                "error h1/3: its rebuild failed: "
                "the order reached its cell after the deadline (keeps its share); "
                "rebuild 150 the order reached its cell after the deadline; "
                "migrate failed no other host took it; h2: no image"
            ),
        ),
        (100, "start h1/1 #50"),
        (
            spawned(1, "h1", number=50),
            (
                "active h1/3; rebuild 150 the order reached its cell after the deadline; "
                "migrate failed no other host took it; h2: no image"
            ),
        ),
        "active | one/3 h1 | h1/1",
    ],
    "an evacuation of what a silent host rebuilds goes its way whatever that host says": [
        *GIVEN_UP,
        (move("evacuate", number=300), "swap 1 to h2/2 for heir1 MIGRATION"),
        (CLAIMED, "spawn h2/2 from h1/1 name web debian"),
        (redeployed(), ""),
        (
            spawned(2, "h2"),
            (
                "destroy h1/1, active h2/2; rebuild 150 no message from the host within 60 s; "
                "evacuate confirmed"
            ),
        ),
        (redeployed(), ""),
        "active | one/2 h2, heir1/1 | h1/1, h2/2",
    ],
    "a host that was silent is asked again after an evacuation that no host took": [
        *GIVEN_UP,
        (move("evacuate", number=300), "swap 1 to h2/2 for heir1 MIGRATION"),
        (FULL, "swap 1 to h1/2 back from heir1"),
        (redeployed(), ""),
        (
            CLAIMED,
            (
                "error h1/2: no other host took it (keeps its share); "
                "rebuild 150 no message from the host within 60 s; "
                "evacuate failed no other host took it; h2: does not fit: VCPU of h9 asked 2, free 1"
            ),
        ),
        (100, "respawn h1/1 #150 name web fedora"),
        (
            redeployed(),
            (
                "active h1/2; rebuild 150; evacuate failed no other host took it; h2: does not fit: "
                "VCPU of h9 asked 2, free 1"
            ),
        ),
        "active | one/2 h1 | h1/1",
    ],
    "a host that was silent is asked further when an abort overtakes its move": [
        *GIVEN_UP,
        (
            end("abort", "evacuate", number=300),
            (
                "error h1/1: its rebuild failed: "
                "no message from the host within 60 s (keeps its share); "
                "rebuild 150 no message from the host within 60 s; evacuate aborted"
            ),
        ),
        (100, "respawn h1/1 #150 name web fedora"),
        "error | one/1 h1 | h1/1",
    ],
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_said_and_held(case: Case) -> None:
    check(case)
