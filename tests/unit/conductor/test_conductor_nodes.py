"""The life of an instance on a bare-metal node: other orders and deadlines than on a hypervisor, the same rules."""

import pytest

from engine.flavors import Image
from tests.unit.conductor.cell import (
    ACTIVE,
    CLAIMED,
    GIVE_BACK,
    REMOVE,
    Case,
    a_node,
    adopt,
    check,
    choice,
    destroyed,
    failed,
    granted,
    place_on_node,
    progressed,
    rebuild,
    spawned,
)

ADOPTED = adopt(on_node=True)
ON_NODE: Case = [place_on_node(), spawned(1, "n1")]

CASES: dict[str, Case] = {
    "a node that fails to deploy gives way to the next alternate of any kind": [
        (place_on_node(choice("h2"), a_node("n3")), "deploy n1/1"),
        (failed(1, "n1"), "swap 1 to h2/2"),
        (CLAIMED, "spawn h2/2"),
        (failed(2, "h2"), "swap 2 to n3/3"),
        (CLAIMED, "deploy n3/3"),
        "building | one/3 n3 | n3/3",
    ],
    "the node that is really held is deployed whichever was asked for": [
        (place_on_node(choice("h2"), a_node("n3")), "deploy n1/1"),
        (failed(1, "n1"), "swap 1 to h2/2"),
        (granted(2, choice("n3")), "deploy n3/2"),
        "building | one/2 n3 | n3/2",
    ],
    "progress restarts the attempts timeout": [
        (place_on_node(a_node("n2"), ends_in_s=9000), "deploy n1/1"),
        (2699, ""),
        (progressed(1, "n1"), ""),
        (2699, ""),
        (progressed(1, "n1"), ""),
        (2699, ""),
        (1, "undeploy n1/1, swap 1 to n2/2 for heir1 CLEANUP"),
        "swapping | one/1, heir1/1 | n1/1",
    ],
    "progress never lasts longer than the request": [
        (place_on_node(ends_in_s=3000), "deploy n1/1"),
        (2600, ""),
        (progressed(1, "n1"), ""),
        (
            400,
            (
                "undeploy n1/1, error: not built by the deadline of the request; the time of the request is up (keeps its share); n1: "
                "not built by the deadline of the request"
            ),
        ),
        "error | one/1 | n1/1",
    ],
    "a silent node keeps its share until it reports that it is clean": [
        (place_on_node(a_node("n2")), "deploy n1/1"),
        (2700, "undeploy n1/1, swap 1 to n2/2 for heir1 CLEANUP"),
        (CLAIMED, "deploy n2/2"),
        (destroyed(1, "n1"), "release heir1/1"),
        "building | one/2 n2 | n2/2",
    ],
    "a silent node is reminded": [
        (place_on_node(), "deploy n1/1"),
        (
            2700,
            (
                "undeploy n1/1, error: no message from the host within 2700 s; no alternate is left (keeps its share); n1: "
                "no message from the host within 2700 s"
            ),
        ),
        (100, "undeploy n1/1"),
        "error | one/1 | n1/1",
    ],
    "each kind of host gets its own order to clean up": [
        (place_on_node(choice("h2")), "deploy n1/1"),
        (2700, "undeploy n1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        (CLAIMED, "spawn h2/2"),
        (
            60,
            (
                "destroy h2/2, error: no message from the host within 60 s; no alternate is left (keeps its share); n1: "
                "no message from the host within 2700 s; h2: no message from the host within 60 s"
            ),
        ),
        (100, "undeploy n1/1, destroy h2/2"),
        "error | one/2, heir1/1 | h2/2, n1/1",
    ],
    "a deleted instance is undeployed and ends when the node is clean": [
        *ON_NODE,
        (REMOVE, "undeploy n1/1"),
        (1799, "undeploy n1/1"),
        (destroyed(1, "n1"), "release one/1, deleted"),
        "deleted | holds nothing | on no host",
    ],
    "a delete waits for a node no longer than it may": [
        *ON_NODE,
        (REMOVE, "undeploy n1/1"),
        (
            1800,
            (
                "undeploy n1/1, deleted: n1 has not confirmed that it is gone, "
                "and keeps its share until it does (keeps its share)"
            ),
        ),
        "deleted | one/1 | n1/1",
    ],
    "a late report of a superseded attempt is answered by an undeploy": [
        (place_on_node(choice("h2")), "deploy n1/1"),
        (failed(1, "n1"), "swap 1 to h2/2"),
        (CLAIMED, "spawn h2/2"),
        (spawned(1, "n1"), "undeploy n1/1"),
        "building | one/2 h2 | h2/2",
    ],
    "a node that deploys an unknown instance is told to undeploy it": [
        (spawned(1, "n1", kind="ironic"), "undeploy n1/1"),
        "forgotten",
    ],
    "a node that deploys an unknown instance is told to undeploy it (2)": [
        (progressed(1, "n1"), "undeploy n1/1"),
        "forgotten",
    ],
    "progress of an active instance changes nothing": [
        *ON_NODE,
        (progressed(1, "n1"), ""),
        "active | one/1 n1 | n1/1",
    ],
    "what the node of an active instance says is told, and nothing is destroyed since it is told": [
        (progressed(1, "n1", "its node says: error", at_rest=True), ""),
        *ON_NODE,
        (progressed(1, "n1", "its node says: error", at_rest=True), "active n1/1: its node says: error"),
        (progressed(2, "n2", "its node says: error", at_rest=True), ""),
        (progressed(1, "n1", "", at_rest=True), "active n1/1"),
        "active | one/1 n1 | n1/1",
    ],
    "adopted on a node it is active and its delete undeploys it": [
        (ADOPTED, "adoptdeployed n1/1, active n1/1"),
        (ADOPTED, ""),
        (86400, ""),
        (REMOVE, "undeploy n1/1"),
        "deleting | one/1 | n1/1",
    ],
    "an adoption that the daemon refuses is in error and keeps its node": [
        (ADOPTED, "adoptdeployed n1/1, active n1/1"),
        (failed(1, "n1"), "error n1/1: no image (keeps its share)"),
        (86400, ""),
        (GIVE_BACK, "leavenode n1/1"),
        (failed(1, "n1"), ""),
        (destroyed(1, "n1"), "release one/1, deleted"),
        "deleted | holds nothing | on no host",
    ],
    "given back its node is left alone whatever is late": [
        (ADOPTED, "adoptdeployed n1/1, active n1/1"),
        (GIVE_BACK, "leavenode n1/1"),
        (
            3600,
            "leavenode n1/1, deleted: n1 has not confirmed that it is gone, and keeps its share until it does (keeps its share)",
        ),
        (spawned(1, "n1"), "leavenode n1/1"),
        (destroyed(1, "n1"), "release one/1"),
        "deleted | holds nothing | on no host",
    ],
    "a delete that overtakes the adoption is a person's": [
        (REMOVE, ""),
        (ADOPTED, "adoptdeployed n1/1, undeploy n1/1"),
        "deleting | one/1 | n1/1",
    ],
    "a node that is back with an instance that its cell has forgotten is no reason to undeploy it": [
        (spawned(1, "n1", kind="ironic", number=2), ""),
        "forgotten",
    ],
    "an instance whose node is back is active again and late copies change nothing": [
        *ON_NODE,
        (failed(1, "n1", number=1), "error n1/1: no image (keeps its share)"),
        (spawned(1, "n1", number=2), "active n1/1"),
        ([failed(1, "n1", number=1), spawned(1, "n1", number=2)], ""),
        (failed(1, "n1", number=3), "error n1/1: no image (keeps its share)"),
        ([spawned(1, "n1", number=2), spawned(1, "n1")], ""),
        (spawned(1, "n1", number=4), "active n1/1"),
        (REMOVE, "undeploy n1/1"),
        (spawned(1, "n1", number=6), "undeploy n1/1"),
        "deleting | one/1 | n1/1",
    ],
    "a failure of an earlier attempt or on a hypervisor leaves an active instance as it is": [
        *ON_NODE,
        ([failed(2, "n1"), failed(1, "n2")], ""),
        "active | one/1 n1 | n1/1",
    ],
    "a failure of an earlier attempt or on a hypervisor leaves an active instance as it is (2)": [
        *ACTIVE,
        (failed(1, "h1"), ""),
        "active | one/1 h1 | h1/1",
    ],
    "an instance is deployed with all fields of its request": [
        (
            place_on_node(
                image=Image(source="debian"),
                config_drive="drive",
                ports=("port-1",),
                image_properties={"trait": "GOLD"},
                name="web",
            ),
            "deploy n1/1 name web debian trait=GOLD config_drive drive ports ('port-1',)",
        ),
        (spawned(1, "n1"), "active n1/1"),
        (rebuild(), "redeploy n1/1 #150 name web fedora trait=GOLD config_drive drive"),
        "rebuilding | one/1 n1 | n1/1",
    ],
    "an instance whose node is gone keeps its share and can be deleted": [
        (place_on_node(a_node("n2")), "deploy n1/1"),
        (spawned(1, "n1"), "active n1/1"),
        (failed(1, "n1", number=1), "error n1/1: no image (keeps its share)"),
        ([failed(1, "n1", number=1), spawned(1, "n1")], ""),
        (REMOVE, "undeploy n1/1"),
        (destroyed(1, "n1"), "release one/1, deleted"),
        "deleted | holds nothing | on no host",
    ],
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_said_and_held(case: Case) -> None:
    check(case)
