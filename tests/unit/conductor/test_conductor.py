"""Boots in a cell: the chosen host, its alternates, further ones, and guests of another cloud."""

from datetime import timedelta

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceDeleted
from bus.messages.cell import MoreAlternates
from cell_conductor.core.decide import Due, RowGivenUp
from engine.flavors import Flavor
from engine.inventories import (
    Choice,
    GroupId,
    InventoryState,
    ProviderState,
    ServerGroup,
    ShapeSeen,
    tree_fingerprint,
)
from engine.refusals import GroupRefused, NotAllowed, OverLimit, QuotaExceeded, ShapeMoved, Superseded
from tests.unit.conductor.cell import (
    ACTIVE,
    CLAIMED,
    FULL,
    GIVE_BACK,
    ONE,
    REMOVE,
    SILENT,
    Case,
    Cell,
    a_node,
    adopt,
    check,
    choice,
    destroyed,
    failed,
    granted,
    host,
    move,
    place,
    place_on_node,
    rebuild,
    redeployed,
    spawned,
)

GROUP = ServerGroup(id=GroupId(ONE), policy="anti-affinity")
TAKEN = GroupRefused(
    group=GROUP.id, policy="anti-affinity", max_per_host=1, host=host("h2"), members=(ONE,), count=1
)
# A member of a group whose host failed, and whose alternate another member has taken.
SPENT: Case = [place("h2", group=GROUP, may_ask=True), failed(1, "h1"), TAKEN]
VM, LARGE = Flavor(name="vm", vcpus=2), Flavor(name="large", vcpus=6)
SEVERAL = place_on_node(
    a_node("n2"),
    a_node("n3"),
    choice("h4"),
    flavor=Flavor(name="gold", vcpus=2),
    tells_flavor=True,
    other_flavors={host("n3"): Flavor(name="silver", vcpus=2), host("h4"): VM},
)
LARGE_FIRST = place(
    flavor=LARGE,
    chosen=choice("h6", amount=6),
    alternates=(choice("h4"),),
    tells_flavor=True,
    other_flavors={host("h4"): VM},
    may_ask=True,
)


def more(spent: int, *alternates: Choice, flavor: Flavor | None = None, reason: str = "") -> MoreAlternates:
    """Further alternates, for what was spent by this sequence."""
    return MoreAlternates(
        cell="c1",
        instance=ONE,
        spent=spent,
        sequence=spent + 5,
        alternates=alternates,
        flavor=flavor,
        reason=reason,
    )


def a_tree(name: str, shape: int, *, total: int = 8, traits: tuple[str, ...] = ()) -> ProviderState:
    return ProviderState(
        internal=1,
        id=host(name),
        name=name,
        root=host(name),
        shape=shape,
        inventories={"VCPU": InventoryState(total=total)},
        traits=traits,
    )


def seen(name: str, pool: str = "") -> Choice:
    """A choice of a scheduler that knew the host's tree, and that of a pool."""
    known = [(pool, 5), (name, 1)] if pool else [(name, 1)]
    shapes = tuple(ShapeSeen(root=host(each), shape=shape) for each, shape in known)
    plain = choice(name)
    return structs.replace(
        plain,
        share=structs.replace(plain.share, shapes=shapes),
        fingerprint=tree_fingerprint([a_tree(name, 1)]),
    )


def moved(name: str, *trees: ProviderState) -> ShapeMoved:
    return ShapeMoved(roots=(host(name),), trees=trees)


CASES: dict[str, Case] = {
    "a failure asks for the next alternate and its claim comes before its spawn": [
        (place("h2"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (CLAIMED, "spawn h2/2"),
        "building | one/2 h2 | h2/2",
    ],
    "the claim that is really held is adopted": [
        (place("h2", "h3"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (FULL, "swap 1 to h3/2"),
        (granted(2, choice("h2")), "spawn h2/2"),
        "building | one/2 h2 | h2/2",
    ],
    "without an alternate the claim is released and every reason is given": [
        (place("h2"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (CLAIMED, "spawn h2/2"),
        (
            [failed(2, "h2"), failed(2, "h2")],
            "release one/2, error: no image; no alternate is left; h1: no image; h2: no image",
        ),
        "error | holds nothing | on no host",
    ],
    "when the last alternate is refused a claim that may be granted is released": [
        (place("h2"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (
            FULL,
            (
                "release one/2, error: no image; no alternate is left; h1: no image; h2: does not fit: "
                "VCPU of h9 asked 2, free 1"
            ),
        ),
        "error | holds nothing | on no host",
    ],
    "a claim released by another means that the instance is deleted": [
        (place("h2"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (Superseded(attempt=5, ended=True), "deleted: its claim was released; h1: no image"),
        "deleted | holds nothing | on no host",
    ],
    "while placement does not answer the question is repeated with growing pauses": [
        (place("h2"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (None, ""),
        (1, "swap 1 to h2/2"),
        (None, ""),
        (2, "swap 1 to h2/2"),
        (None, ""),
        (4, "swap 1 to h2/2"),
        (None, ""),
        (5, "swap 1 to h2/2"),
        (None, ""),
        (5, "swap 1 to h2/2"),
        (CLAIMED, "spawn h2/2"),
        "building | one/2 h2 | h2/2",
    ],
    "a question is not asked by another before its lease is over": [
        (place("h2"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (9, ""),
        (1, "swap 1 to h2/2"),
        "swapping | one/1 | h1/1",
    ],
    "a silent host is told to destroy and its share goes to a consumer of its own": [
        (place("h2"), "spawn h1/1"),
        (59, ""),
        (1, "destroy h1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        (CLAIMED, "spawn h2/2"),
        (spawned(2, "h2"), "active h2/2; h1: no message from the host within 60 s"),
        (destroyed(1, "h1"), "release heir1/1"),
        "active | one/2 h2 | h2/2",
    ],
    "a late success of a superseded attempt is answered by a destroy": [
        (place("h2"), "spawn h1/1"),
        (60, "destroy h1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        (CLAIMED, "spawn h2/2"),
        ([spawned(1, "h1"), spawned(1, "h1")], "destroy h1/1"),
        (failed(1, "h1"), ""),
        "building | one/2 h2, heir1/1 | h1/1, h2/2",
    ],
    "a success while the claim is being swapped comes too late": [
        (place("h2"), "spawn h1/1"),
        (60, "destroy h1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        (spawned(1, "h1"), "destroy h1/1"),
        "swapping | one/1, heir1/1 | h1/1",
    ],
    "a host is reminded of a destroy until it confirms": [
        (place("h2"), "spawn h1/1"),
        (60, "destroy h1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        (CLAIMED, "spawn h2/2"),
        (spawned(2, "h2"), "active h2/2; h1: no message from the host within 60 s"),
        (100, "destroy h1/1"),
        (99, ""),
        (1, "destroy h1/1"),
        (destroyed(1, "h1"), "release heir1/1"),
        "active | one/2 h2 | h2/2",
    ],
    "the deadline of the request ends it while its host keeps the share": [
        (place("h2", ends_in_s=40), "spawn h1/1"),
        (
            40,
            (
                "destroy h1/1, error: not built by the deadline of the request; the time of the request is up (keeps its share); h1: "
                "not built by the deadline of the request"
            ),
        ),
        (destroyed(1, "h1"), "release one/1"),
        "error | holds nothing | on no host",
    ],
    "the deadline of the request ends an unanswered swap": [
        (place("h2", ends_in_s=40), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (None, ""),
        (40, "release one/2, error: no image; the time of the request is up; h1: no image"),
        "error | holds nothing | on no host",
    ],
    "after a silent host and an unanswered swap both shares are released when the host is clean": [
        (place("h2", ends_in_s=70), "spawn h1/1"),
        (60, "destroy h1/1, swap 1 to h2/2 for heir1 CLEANUP"),
        (None, ""),
        (
            10,
            (
                "error: no message from the host within 60 s; the time of the request is up (keeps its share); h1: "
                "no message from the host within 60 s"
            ),
        ),
        (destroyed(1, "h1"), "release heir1/1, release one/2"),
        "error | holds nothing | on no host",
    ],
    "an order that comes after its deadline is not built": [
        (601, ""),
        (place(), "release one/1, error: the order reached its cell after the deadline"),
        "error | holds nothing | on no host",
    ],
    "of a build at which its workers fail the host keeps nothing": [
        (place(), "spawn h1/1"),
        (RowGivenUp(ONE, "workers fail"), "destroy h1/1, error: workers fail (keeps its share)"),
        (destroyed(1, "h1"), "release one/1"),
        "error | holds nothing | on no host",
    ],
    "a removal before its placement prevents the build": [
        (REMOVE, ""),
        (place(), "release one/1, deleted"),
        ([place(), REMOVE], ""),
        "deleted | holds nothing | on no host",
    ],
    "a removal of an unknown instance releases its claim and ends": [
        (REMOVE, ""),
        (29, ""),
        (1, "release one/1, deleted: it never came to its cell"),
        (place(), "release one/1"),
        "deleted | holds nothing | on no host",
    ],
    "a removed instance is destroyed then released then deleted: active": [
        (place("h2"), "spawn h1/1"),
        (spawned(1, "h1"), "active h1/1"),
        (REMOVE, "destroy h1/1"),
        (destroyed(1, "h1"), "release one/1, deleted"),
        "deleted | holds nothing | on no host",
    ],
    "an instance removed during a swap is deleted at once if its host is clean": [
        (place("h2"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (REMOVE, "release one/2, deleted; h1: no image"),
        (CLAIMED, ""),
        "deleted | holds nothing | on no host",
    ],
    "a host that does not confirm a delete keeps the share and the delete ends": [
        *ACTIVE,
        (REMOVE, "destroy h1/1"),
        (29, ""),
        (
            1,
            (
                "deleted: h1 has not confirmed that it is gone, "
                "and keeps its share until it does (keeps its share)"
            ),
        ),
        (destroyed(1, "h1"), "release one/1"),
        "deleted | holds nothing | on no host",
    ],
    "an instance in error can be deleted": [
        (place(), "spawn h1/1"),
        (failed(1, "h1"), "release one/1, error: no image; no alternate is left; h1: no image"),
        (REMOVE, "deleted; h1: no image"),
        "deleted | holds nothing | on no host",
    ],
    "the batch is decided in its order": [
        (
            [place("h2"), spawned(1, "h1"), REMOVE, destroyed(1, "h1")],
            "spawn h1/1, active h1/1, destroy h1/1, release one/1, deleted",
        ),
        "deleted | holds nothing | on no host",
    ],
    "the reasons of all refusals are told": [
        (place("h2", "h3", "h4", "h5"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (NotAllowed(field="share", reason="nonsense"), "swap 1 to h3/2"),
        (Superseded(attempt=7, ended=False), "swap 1 to h4/2"),
        (moved("h3"), "swap 1 to h5/2"),
        (
            FULL,
            (
                "release one/2, error: no image; no alternate is left; h1: no image; h2: not allowed: share: "
                "nonsense; h3: placement knows a later attempt, 7; h4: "
                "the host has changed since it was chosen: h3; h5: does not fit: VCPU of h9 asked 2, "
                "free 1"
            ),
        ),
        "error | holds nothing | on no host",
    ],
    "an alternate over the quota is dropped with those of the same size": [
        (place(alternates=(choice("h2"), choice("h3"), choice("h4", amount=1))), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (
            QuotaExceeded(project="shop", over=(OverLimit(name="VCPU", limit=4, used=4, asked=1),)),
            "swap 1 to h4*1/2",
        ),
        (CLAIMED, "spawn h4*1/2"),
        "building | one/2 h4*1 | h4/2",
    ],
    "a second way of an alternate is tried after a refusal": [
        (place(alternates=(choice("h2"), choice("h2", of="h7"), choice("h3"))), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (FULL, "swap 1 to h2's child/2"),
        (CLAIMED, "spawn h2's child/2"),
        "building | one/2 h2's child | h2/2",
    ],
    "a second way of an alternate is not tried after a failed build": [
        (place(alternates=(choice("h2"), choice("h2", of="h7"), choice("h3"))), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (CLAIMED, "spawn h2/2"),
        (failed(2, "h2"), "swap 2 to h3/3"),
        "swapping | one/2 | h2/2",
    ],
    "an alternate whose inventory alone changed is tried again as it is now": [
        (place(alternates=(seen("h2"),)), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2@1/2"),
        (moved("h2", a_tree("h2", 2, total=4)), "swap 1 to h2@2/2"),
        (CLAIMED, "spawn h2@2/2"),
        "building | one/2 h2 | h2/2",
    ],
    "an alternate that is tried again still names the pool that shares with it": [
        (place(alternates=(seen("h2", pool="h8"),)), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2@5@1/2"),
        (moved("h2", a_tree("h2", 2, total=4)), "swap 1 to h2@2@5/2"),
        "swapping | one/1 | h1/1",
    ],
    "unchanged alternates come before a changed one": [
        (place(alternates=(seen("h2"), seen("h3"))), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2@1/2"),
        (moved("h2", a_tree("h2", 2, total=4)), "swap 1 to h3@1/2"),
        (FULL, "swap 1 to h2@2/2"),
        "swapping | one/1 | h1/1",
    ],
    "an alternate with another quality is not tried again": [
        (place(alternates=(seen("h2"), seen("h3"))), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2@1/2"),
        (moved("h2", a_tree("h2", 2, traits=("CUSTOM_OTHER",))), "swap 1 to h3@1/2"),
        (
            FULL,
            (
                "release one/2, error: no image; no alternate is left; h1: no image; h2: "
                "the host has changed since it was chosen: h2; h3: does not fit: VCPU of h9 asked 2, "
                "free 1"
            ),
        ),
        "error | holds nothing | on no host",
    ],
    "an alternate that is gone is not tried again": [
        (place(alternates=(seen("h2"), seen("h3"))), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2@1/2"),
        (ShapeMoved(gone=(host("h2"),)), "swap 1 to h3@1/2"),
        (
            FULL,
            (
                "release one/2, error: no image; no alternate is left; h1: no image; h2: "
                "the host has changed since it was chosen: h2; h3: does not fit: VCPU of h9 asked 2, "
                "free 1"
            ),
        ),
        "error | holds nothing | on no host",
    ],
    "an alternate of which more than its own tree changed is not tried again": [
        (place(alternates=(seen("h2"), seen("h3"))), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2@1/2"),
        (ShapeMoved(roots=(host("h2"), host("h8")), trees=(a_tree("h2", 2),)), "swap 1 to h3@1/2"),
        (
            FULL,
            (
                "release one/2, error: no image; no alternate is left; h1: no image; h2: "
                "the host has changed since it was chosen: h2, h8; h3: does not fit: "
                "VCPU of h9 asked 2, free 1"
            ),
        ),
        "error | holds nothing | on no host",
    ],
    "a late answer to a swap that was made changes nothing": [
        (place("h2", "h3"), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (CLAIMED, "spawn h2/2"),
        (FULL, ""),
        (None, ""),
        "building | one/2 h2 | h2/2",
    ],
    "others end when their alternates are used up: nodes": [
        (place(alternates=(a_node("h2"),), group=GROUP, may_ask=True), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (
            TAKEN,
            (
                "release one/2, error: no image; no alternate is left; h1: no image; h2: "
                "server group one (anti-affinity) has members on host h2, at most 1: one"
            ),
        ),
        "error | holds nothing | on no host",
    ],
    "a member whose alternates are taken asks for others and is built there": [
        *SPENT,
        (more(4, choice("h3"), choice("h4")), "swap 1 to h3/2"),
        (CLAIMED, "spawn h3/2"),
        (
            spawned(2, "h3"),
            (
                "active h3/2; h1: no image; h2: "
                "server group one (anti-affinity) has members on host h2, at most 1: one"
            ),
        ),
        "active | one/2 h3 | h3/2",
    ],
    "an answer counts once and only for its question": [
        *SPENT,
        (more(3, choice("h9")), ""),
        (more(4, choice("h3")), "swap 1 to h3/2"),
        (
            FULL,
            (
                "spent: building; h1: no image; h2: "
                "server group one (anti-affinity) has members on host h2, at most 1: one; h3: "
                "does not fit: VCPU of h9 asked 2, free 1"
            ),
        ),
        (more(4, choice("h3")), ""),
        (more(10, choice("h4")), "swap 1 to h4/2"),
        "swapping | one/1 | h1/1",
    ],
    "without further hosts it ends with every reason and releases its claim": [
        *SPENT,
        (
            more(4, reason="no host among 3"),
            (
                "release one/2, error: no image; no alternate is left: no host among 3; h1: no image; h2: "
                "server group one (anti-affinity) has members on host h2, at most 1: one"
            ),
        ),
        "error | holds nothing | on no host",
    ],
    "a delete while it waits wins": [
        *SPENT,
        (
            REMOVE,
            (
                "release one/2, deleted; h1: no image; h2: "
                "server group one (anti-affinity) has members on host h2, at most 1: one"
            ),
        ),
        (more(4, choice("h3")), ""),
        "deleted | holds nothing | on no host",
    ],
    "without an answer it ends at its deadline": [
        *SPENT,
        (599, ""),
        (
            1,
            (
                "release one/2, error: no image; the time of the request is up; h1: no image; h2: "
                "server group one (anti-affinity) has members on host h2, at most 1: one"
            ),
        ),
        (more(4, choice("h3")), ""),
        "error | holds nothing | on no host",
    ],
    "a silent host keeps its share by its heir while others are chosen": [
        (place(group=GROUP, may_ask=True), "spawn h1/1"),
        (60, "destroy h1/1, spent: building; h1: no message from the host within 60 s"),
        (more(5, choice("h3")), "swap 1 to h3/2 for heir1 CLEANUP"),
        (CLAIMED, "spawn h3/2"),
        (spawned(2, "h3"), "active h3/2; h1: no message from the host within 60 s"),
        (destroyed(1, "h1"), "release heir1/1"),
        "active | one/2 h3 | h3/2",
    ],
    "a build of no group gets as many tries as hosts were chosen for it: no": [
        (place("h2", may_ask=True), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (CLAIMED, "spawn h2/2"),
        (failed(2, "h2"), "release one/2, error: no image; no alternate is left; h1: no image; h2: no image"),
        "error | holds nothing | on no host",
    ],
    "a build of no group gets as many tries as hosts were chosen for it: yes": [
        (place("h2", may_ask=True), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (FULL, "spent: building; h1: no image; h2: does not fit: VCPU of h9 asked 2, free 1"),
        "swapping | one/1 | h1/1",
    ],
    "others end when their alternates are used up: an order that does not let it ask": [
        (place("h2", group=GROUP), "spawn h1/1"),
        (failed(1, "h1"), "swap 1 to h2/2"),
        (
            TAKEN,
            (
                "release one/2, error: no image; no alternate is left; h1: no image; h2: "
                "server group one (anti-affinity) has members on host h2, at most 1: one"
            ),
        ),
        "error | holds nothing | on no host",
    ],
    "each alternate is ordered with its own flavor, share, kind and time": [
        (SEVERAL, "deploy n1/1 gold"),
        (failed(1, "n1"), "swap 1 to n2/2"),
        (CLAIMED, "deploy n2/2 gold"),
        (failed(2, "n2"), "swap 2 to n3/3"),
        (CLAIMED, "deploy n3/3 silver"),
        (failed(3, "n3"), "swap 3 to h4/4"),
        (CLAIMED, "spawn h4/4 vm"),
        (spawned(4, "h4"), "active h4/4 vm; n1: no image; n2: no image; n3: no image"),
        "active | one/4 h4 | h4/4",
    ],
    "a rebuild and a move keep the flavor that it got": [
        (SEVERAL, "deploy n1/1 gold"),
        (failed(1, "n1"), "swap 1 to n2/2"),
        (CLAIMED, "deploy n2/2 gold"),
        (failed(2, "n2"), "swap 2 to n3/3"),
        (CLAIMED, "deploy n3/3 silver"),
        (failed(3, "n3"), "swap 3 to h4/4"),
        (CLAIMED, "spawn h4/4 vm"),
        (spawned(4, "h4"), "active h4/4 vm; n1: no image; n2: no image; n3: no image"),
        (rebuild(10), "respawn h4/4 #10 vm fedora"),
        (
            redeployed(10, attempt=4, name="h4"),
            "active h4/4 vm; rebuild 10; n1: no image; n2: no image; n3: no image",
        ),
        (move("live-migrate", "h5"), "swap 4 to h5/5 for heir1 MIGRATION"),
        (CLAIMED, "receive h5/5 from h4/4 live vm"),
        (spawned(5, "h5"), "destroy h4/4, active h5/5 vm; rebuild 10; live-migrate confirmed"),
        "active | one/5 h5, heir1/4 | h4/4, h5/5",
    ],
    "a rebuild on a node keeps the flavor of that node": [
        (SEVERAL, "deploy n1/1 gold"),
        (failed(1, "n1"), "swap 1 to n2/2"),
        (CLAIMED, "deploy n2/2 gold"),
        (failed(2, "n2"), "swap 2 to n3/3"),
        (CLAIMED, "deploy n3/3 silver"),
        (spawned(3, "n3"), "active n3/3 silver; n1: no image; n2: no image"),
        (rebuild(10), "redeploy n3/3 #10 silver fedora"),
        "rebuilding | one/3 n3 | n3/3",
    ],
    "a late success of the node is undone and a delete goes to the hypervisor": [
        (SEVERAL, "deploy n1/1 gold"),
        (failed(1, "n1"), "swap 1 to n2/2"),
        (CLAIMED, "deploy n2/2 gold"),
        (failed(2, "n2"), "swap 2 to n3/3"),
        (CLAIMED, "deploy n3/3 silver"),
        (failed(3, "n3"), "swap 3 to h4/4"),
        (CLAIMED, "spawn h4/4 vm"),
        (spawned(4, "h4"), "active h4/4 vm; n1: no image; n2: no image; n3: no image"),
        (spawned(1, "n1"), "undeploy n1/1"),
        (REMOVE, "destroy h4/4"),
        "deleting | one/4 | h4/4",
    ],
    "a further alternate is ordered with the flavor that it was chosen for": [
        (LARGE_FIRST, "spawn h6*6/1 large"),
        (failed(1, "h6"), "swap 1 to h4/2"),
        (FULL, "spent: building large; h6: no image; h4: does not fit: VCPU of h9 asked 2, free 1"),
        (more(4, choice("h4", amount=6), flavor=LARGE), "swap 1 to h4*6/2"),
        (CLAIMED, "spawn h4*6/2 large"),
        "building | one/2 h4*6 | h4/2",
    ],
    "a further alternate that only a worse flavor fits is ordered with it": [
        (LARGE_FIRST, "spawn h6*6/1 large"),
        (failed(1, "h6"), "swap 1 to h4/2"),
        (FULL, "spent: building large; h6: no image; h4: does not fit: VCPU of h9 asked 2, free 1"),
        (more(4, choice("h5"), flavor=VM), "swap 1 to h5/2"),
        (CLAIMED, "spawn h5/2 vm"),
        "building | one/2 h5 | h5/2",
    ],
    "a late claim of an alternate of the order has the flavor of that time": [
        (LARGE_FIRST, "spawn h6*6/1 large"),
        (failed(1, "h6"), "swap 1 to h4/2"),
        (FULL, "spent: building large; h6: no image; h4: does not fit: VCPU of h9 asked 2, free 1"),
        (more(4, choice("h4", amount=6), flavor=LARGE), "swap 1 to h4*6/2"),
        (granted(2, choice("h4")), "spawn h4/2 vm"),
        "building | one/2 h4 | h4/2",
    ],
    "a late claim has the flavor of that time after a reshape, too": [
        (LARGE_FIRST, "spawn h6*6/1 large"),
        (failed(1, "h6"), "swap 1 to h4/2"),
        (FULL, "spent: building large; h6: no image; h4: does not fit: VCPU of h9 asked 2, free 1"),
        (more(4, choice("h4", amount=6), flavor=LARGE), "swap 1 to h4*6/2"),
        (granted(2, choice("h4", of="h7")), "spawn h4's child/2 vm"),
        "building | one/2 h4's child | h4/2",
    ],
    "it is at once what it was and its host is told: active": [
        (adopt(), "adopt h1/1, active h1/1"),
        (spawned(1, "h1"), ""),
        "active | one/1 h1 | h1/1",
    ],
    "it is at once what it was and its host is told: stopped": [
        (adopt("stopped"), "adopt h1/1 stopped, stopped h1/1"),
        (spawned(1, "h1"), ""),
        "stopped | one/1 h1 | h1/1",
    ],
    "it is at once what it was and its host is told: shelved": [
        (adopt("shelved"), "adopt h1/1 stopped, shelved h1/1"),
        (spawned(1, "h1"), ""),
        "shelved | one/1 h1 | h1/1",
    ],
    "it is at once what it was and its host is told: broken": [
        (adopt("broken", reason="as it was"), "adopt h1/1 stopped, error h1/1: as it was (keeps its share)"),
        (spawned(1, "h1"), ""),
        "error | one/1 h1 | h1/1",
    ],
    "a host that has no such guest keeps the share": [
        (adopt(), "adopt h1/1, active h1/1"),
        (failed(1, "h1"), "error h1/1: no image (keeps its share)"),
        "error | one/1 h1 | h1/1",
    ],
    "a silent host is never told to destroy what it adopts": [
        SILENT,
        (adopt(), "adopt h1/1, active h1/1"),
        (86400, ""),
        "active | one/1 h1 | h1/1",
    ],
    "given back its host forgets it and its share is free": [
        (adopt(), "adopt h1/1, active h1/1"),
        (spawned(1, "h1"), ""),
        (GIVE_BACK, "leave h1/1"),
        (
            3600,
            (
                "leave h1/1, deleted: h1 has not confirmed that it is gone, "
                "and keeps its share until it does (keeps its share)"
            ),
        ),
        (3600, "leave h1/1"),
        (spawned(1, "h1"), "leave h1/1"),
        (3600, "leave h1/1"),
        (destroyed(1, "h1"), "release one/1"),
        (3600, ""),
        (spawned(1, "h1"), "destroy h1/1"),
        "forgotten",
    ],
    "given back it may come again by a later attempt": [
        (adopt(), "adopt h1/1, active h1/1"),
        (GIVE_BACK, "leave h1/1"),
        (destroyed(1, "h1"), "release one/1, deleted"),
        (adopt(), ""),
        (adopt(attempt=2), "adopt h1/2, active h1/2"),
        "active | one/2 h1 | h1/2",
    ],
    "deleted by its user it is destroyed like any other": [
        (adopt(), "adopt h1/1, active h1/1"),
        (spawned(1, "h1"), ""),
        (REMOVE, "destroy h1/1"),
        "deleting | one/1 | h1/1",
    ],
    "deleted before the order arrives it is adopted and then destroyed": [
        (REMOVE, ""),
        (adopt(), "adopt h1/1, destroy h1/1"),
        "deleting | one/1 | h1/1",
    ],
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_what_is_said_and_held(case: Case) -> None:
    check(case)


def test_states_continue_the_sequence_of_each_order_of_the_api_level() -> None:
    """So the states that a second cell publishes are later than those of the first one."""
    second = Cell(structs.replace(place(), sequence=1_000))
    (active,) = second.hear(spawned(1, "h1"))
    second.confirm_all()
    second.hear(structs.replace(REMOVE, sequence=2_000))
    deleted = second.hear(destroyed(1, "h1"))[-1]

    assert isinstance(active, InstanceActive)
    assert isinstance(deleted, InstanceDeleted)
    assert 1_000 < active.instance.sequence < 2_000 < deleted.instance.sequence


def test_a_repeated_order_has_only_what_is_not_confirmed_sent_again() -> None:
    answered = Cell(place())
    assert answered.hear(spawned(1, "h1")) == answered.hear(place()), "what its host has answered has arrived"
    cell = Cell()
    for order in (place(), adopt(attempt=2)):
        first = cell.hear(order)
        assert cell.hear(order) == first
        cell.confirm_all()
        assert cell.hear(order, order) == []
        cell.hear(REMOVE, destroyed(order.attempt, "h1"))
        cell.confirm_all()


def test_a_deleted_instance_is_forgotten_when_its_messages_are_confirmed() -> None:
    cell = Cell(place(), REMOVE, destroyed(1, "h1"))
    for rows in (1, 0):
        cell.now += timedelta(seconds=1000)
        cell.hear(Due(ONE))
        assert len(cell.rows) == rows
        cell.confirm_all()
