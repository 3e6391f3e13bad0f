"""The next step of a deploy, an undeploy or a rebuild, for every state of the node; and what orders to rebuild make of its row."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from bus.messages.cell import InstanceDestroyed, InstanceSpawned, SpawnFailed
from engine.flavors import Flavor
from ironic_sync.core.deploying import (
    NO_EFFECT_MAX,
    NO_NODE,
    REFUSALS_MAX,
    Again,
    AttachVif,
    ClearInstance,
    DetachVif,
    Fail,
    Finish,
    Gone,
    Note,
    Outcome,
    ReadVifs,
    Seen,
    SetInstance,
    SetState,
    Step,
    Validate,
    WaitForNode,
    after_failure,
    after_no_effect,
    after_refusal,
    after_step,
    ended,
    instance_info,
    is_held,
    next_step,
    why_invalid,
    words_of,
)
from ironic_sync.core.node import PROVISION_STATES, InterfaceCheck
from ironic_sync.core.rows import Deployed, Ended, NodeDeploy, NodeRow, Offer
from tests.unit.ironic.captured import NODE_ID, a_node
from tests.unit.ironic.deploys import (
    IMAGE,
    OURS,
    THEIRS,
    a_deploy,
    a_rebuild,
    a_redeploy,
    an_order,
    redeployed,
)

DEPLOY = a_deploy()
FAILED = a_deploy(failure="no image")
UNDEPLOY = a_deploy(kind="undeploy")
STATES = sorted(PROVISION_STATES, key=str)


def seen(state: str | None = "available", **fields: Any) -> Seen:
    """The node in this state; by default our instance is on it."""
    facts = {
        name: fields.pop(name) for name in ("vifs", "has_info", "is_valid", "is_ordered") if name in fields
    }
    return Seen(a_node(provision_state=state, **{"instance_uuid": OURS, **fields}), **facts)


WAS_ACTIVE = NodeRow(id=NODE_ID, deployed=Deployed(cell="c1", instance=OURS, attempt=UNDEPLOY.attempt))
LEFT_THE_OFFER: dict[str, dict[str, Any]] = {
    "the node is in maintenance: 'disk'": {"maintenance": True, "maintenance_reason": "disk"},
    "the node is retired": {"retired": True},
    "power state is 'error'": {"power_state": "error"},
    "fault is 'clean failure'": {"fault": "clean failure"},
}
IN_MAINTENANCE = {"maintenance": True, "maintenance_reason": "smoke"}
PORTS = ("port-1", "port-2")
WITH_PORTS = a_deploy(order=an_order(ports=PORTS), failure="somebody set another instance")


# A delete of an instance that was active here, of which Ironic knows nothing any more: it was restored from an older backup.
NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
BEFORE, LATER = NOON - timedelta(hours=1), NOON + timedelta(minutes=1)
LIVED = NodeRow(
    id=NODE_ID,
    version=3,
    cell="c1",
    deployed=Deployed(cell="c1", instance=OURS, attempt=1, active_at=NOON),
    ended=(Ended(instance=THEIRS, attempt=1), Ended(instance=OURS, attempt=1)),
)
CONFIRMING = structs.replace(UNDEPLOY, before="noted")
ORDERED = structs.replace(CONFIRMING, is_ordered=True)


def forgotten(state: str | None, at: datetime | None = BEFORE, **fields: Any) -> Seen:
    return structs.replace(
        seen(state, provision_updated_at=at, **{"instance_uuid": None, **fields}), row=LIVED
    )


BEFORE_IT, AFTER = NOON.replace(hour=10), NOON.replace(hour=11)
NOTED = "active since 2026-03-04T10:00:00+00:00"
ACTIVE = Deployed(cell="c1", instance=OURS, attempt=1)
NEW = a_rebuild()
BEGUN = a_rebuild(before=NOTED)
NOTED_FAILED = "deploy failed since 2026-03-04T10:00:00+00:00"
FAILED_BEFORE = a_rebuild(before=NOTED_FAILED)


def active(state: str | None = "active", **fields: Any) -> Seen:
    """The node of an instance that was active before; by default it still is."""
    return seen(state, **{"provision_updated_at": BEFORE_IT, **fields})


# Ironic's provision states by what follows from them: for a deploy, and for an undeploy.
OF_DEPLOYS: dict[type, set[str | None]] = {
    SetInstance: {None, "available"},
    WaitForNode: {"deploy", "deploying", "wait call-back", "deploy complete", "deploy hold", "rebuild"},
    Finish: {
        *("active", "rescue", "rescuing", "rescue wait", "rescue failed", "unrescuing", "unrescue failed"),
        *("service", "servicing", "service wait", "service failed", "service hold"),
    },
    Fail: {
        *("enroll", "verifying", "manageable", "inspecting", "inspect wait", "inspect failed", "adopting"),
        *("adopt failed", "deploy failed", "undeploy", "deleting", "deleted", "error"),
        *("cleaning", "clean wait", "clean failed", "clean hold"),
    },
}
OF_UNDEPLOYS: dict[object, set[str | None]] = {
    SetState("deleted"): {
        *("wait call-back", "deploy failed", "active", "error", "rescue", "rescue wait", "rescue failed"),
        *("unrescue failed", "service", "service wait", "service failed"),
    },
    SetState("abort"): {"deploy hold", "service hold"},
    ReadVifs(): {
        *(None, "available", "enroll", "manageable", "inspect failed", "adopt failed", "clean failed"),
    },
    WaitForNode: {
        *("verifying", "inspecting", "inspect wait", "adopting", "deploy", "deploying", "deploy complete"),
        *("rebuild", "rescuing", "unrescuing", "servicing", "undeploy", "deleting", "deleted"),
        *("cleaning", "clean wait", "clean hold"),
    },
}


@pytest.mark.parametrize(("states", "expected"), [(states, step) for step, states in OF_DEPLOYS.items()])
def test_a_deploy_goes_on_by_the_state_of_its_node(states: set[str | None], expected: type) -> None:
    assert {type(next_step(DEPLOY, seen(state))) for state in states} == {expected}


@pytest.mark.parametrize(("states", "expected"), [(states, step) for step, states in OF_UNDEPLOYS.items()])
def test_an_undeploy_and_the_cleaning_up_after_a_failure_go_on_by_the_state_of_the_node(
    states: set[str | None], expected: object
) -> None:
    for state in states:
        waits = WaitForNode(f"provision state is {state!r}")
        for work in (UNDEPLOY, FAILED):
            assert next_step(work, seen(state)) == (waits if expected is WaitForNode else expected)


@pytest.mark.parametrize("table", [OF_DEPLOYS, OF_UNDEPLOYS])
def test_every_state_of_ironic_is_in_the_table(table: dict[object, set[str | None]]) -> None:
    assert sorted((each for states in table.values() for each in states), key=str) == STATES


@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("instance", [None, THEIRS], ids=["free", "theirs"])
def test_a_node_without_our_instance_is_never_undeployed(state: str | None, instance: object) -> None:
    for work in (UNDEPLOY, FAILED):
        assert next_step(work, seen(state, instance_uuid=instance)) == Gone()


@pytest.mark.parametrize("state", STATES)
def test_a_node_with_anothers_instance_is_never_deployed_over(state: str | None) -> None:
    step = next_step(DEPLOY, seen(state, instance_uuid=THEIRS))

    assert step == Fail(f"instance {THEIRS} is on the node")


@pytest.mark.parametrize("state", [each for each in STATES if PROVISION_STATES[each].reserved])
def test_a_node_that_is_neither_ours_nor_free_is_left_alone_with_the_reason(state: str) -> None:
    step = next_step(DEPLOY, seen(state, instance_uuid=None))

    assert isinstance(step, Fail)
    assert f"provision state is {state!r}" in step.reason


# What is done next, and no more than its kind where its words are told elsewhere.
STEPS: dict[str, tuple[NodeDeploy, Seen, Step | Outcome | type]] = {
    "a deploy waits for a state that nobody knows": (DEPLOY, seen("levitating"), WaitForNode),
    "an undeploy waits for a state that nobody knows": (UNDEPLOY, seen("levitating"), WaitForNode),
    "a deploy of a node that Ironic does not know has failed": (
        DEPLOY,
        Seen(None),
        Fail("the node is deleted in Ironic"),
    ),
    "a node that Ironic does not know has nothing": (UNDEPLOY, Seen(None), Gone()),
    "nothing is cleaned up on a node that Ironic does not know": (FAILED, Seen(None), Gone()),
    "an answer 404 ends no delete of what was active": (
        UNDEPLOY,
        Seen(None, row=WAS_ACTIVE),
        WaitForNode(NO_NODE),
    ),
    "a delete of what was active ends when somebody says that the node is gone": (
        UNDEPLOY,
        Seen(None, row=structs.replace(WAS_ACTIVE, is_deleted=True)),
        Gone(),
    ),
    "an answer 404 ends the cleaning up of what was never active": (
        FAILED,
        Seen(None, row=structs.replace(WAS_ACTIVE, deployed=None)),
        Gone(),
    ),
    **{
        f"a deploy does not begin on a node that left the offer: {reason}, {whose}": (
            DEPLOY,
            seen(instance_uuid=instance, **fields),
            Fail(reason),
        )
        for whose, instance in (("free", None), ("ours", OURS))
        for reason, fields in LEFT_THE_OFFER.items()
    },
    "maintenance in the middle gives the deploy up": (
        DEPLOY,
        seen("wait call-back", **IN_MAINTENANCE),
        Fail("the node was put in maintenance while it was deployed: smoke"),
    ),
    "maintenance does not give up what is active": (DEPLOY, seen("active", **IN_MAINTENANCE), Finish()),
    "an instance that is set already is not set again but its info is": (
        DEPLOY,
        seen(),
        SetInstance(instance_info(an_order(), a_node()), None),
    ),
    "what never got so far is taken off port by port": (UNDEPLOY, seen(vifs=("p1",)), DetachVif("p1")),
    "ports are read again after each": (
        UNDEPLOY,
        after_step(seen(vifs=("p1",)), DetachVif("p1")),
        ReadVifs(),
    ),
    "without ports the instance is taken off": (UNDEPLOY, seen(vifs=()), ClearInstance()),
    "a deploy fails with Ironic's words": (
        DEPLOY,
        seen("deploy failed", last_error="no such image"),
        Fail("deploy failed: no such image"),
    ),
    **{
        f"ports that Ironic does not detach stay and {what} goes after so many {how}": (
            structs.replace(work, **{how: tries}),
            seen(instance_uuid=instance, vifs=PORTS),
            step,
        )
        for how, tries in (("refusals", REFUSALS_MAX), ("repeats", NO_EFFECT_MAX))
        for what, work, instance, step in (
            ("the instance", UNDEPLOY, OURS, ClearInstance()),
            ("the order", WITH_PORTS, None, Gone()),
        )
    },
    "the ports on a node that is no longer ours are tried to the limit": (
        structs.replace(WITH_PORTS, refusals=REFUSALS_MAX - 1),
        seen("active", instance_uuid=THEIRS, vifs=PORTS),
        DetachVif("port-1"),
    ),
    "the ports on a node that is no longer ours are not tried for ever": (
        structs.replace(WITH_PORTS, refusals=REFUSALS_MAX),
        seen("active", instance_uuid=THEIRS, vifs=PORTS),
        Gone(),
    ),
    "an Ironic that was away has refused nothing": (
        structs.replace(WITH_PORTS, tries=REFUSALS_MAX),
        seen("active", instance_uuid=THEIRS, vifs=PORTS),
        DetachVif("port-1"),
    ),
    "such a delete waits while Ironic cleans the node on its order": (
        ORDERED,
        forgotten("cleaning", LATER),
        WaitForNode,
    ),
    "such a delete waits where the cleaning on its order failed": (
        ORDERED,
        forgotten("clean failed", LATER),
        WaitForNode,
    ),
    "such a delete is done when Ironic has cleaned the node on its order": (
        ORDERED,
        forgotten("available", LATER),
        Gone(),
    ),
    "an ended instance that a restored Ironic has there is taken off for the delete": (
        CONFIRMING,
        forgotten("active", instance_uuid=THEIRS),
        SetState("deleted"),
    ),
    "no other instance that a restored Ironic has there is taken off": (
        CONFIRMING,
        forgotten("active", instance_uuid=NODE_ID),
        WaitForNode,
    ),
    "an operator's work on a node that Ironic believed to be free cleans nothing": (
        UNDEPLOY,
        forgotten("manageable", LATER),
        Note,
    ),
    **{
        f"what Ironic did since the instance was active confirms its delete: {state}, {how}": (
            structs.replace(UNDEPLOY, is_ordered=is_ordered),
            forgotten(state, at, instance_uuid=THEIRS if state == "active" else None),
            step,
        )
        for state in ("cleaning", "clean wait", "clean failed", "available", "active")
        for how, is_ordered, at, step in (
            ("later", False, LATER, Gone()),
            ("as old and ordered", True, NOON, Gone()),
            # It was restored while it carried out the order.
            ("ordered and restored", True, BEFORE, Note),
        )
    },
    # Ironic brings it from its cleaning to `manageable`, and does not clean it again while it is retired.
    **{
        f"a retired node has been cleaned by an order whose answer was lost: {how}": (
            structs.replace(UNDEPLOY, is_sent=is_sent),
            forgotten("manageable", at, retired=retired),
            step,
        )
        for how, is_sent, at, retired, step in (
            ("yes", True, LATER, True, Gone()),
            ("not retired", True, LATER, False, Note),
            ("not ordered", False, LATER, True, Note),
            ("before", True, BEFORE, True, Note),
        )
    },
    "first it is noted since when the node is active": (NEW, active(), Note(NOTED)),
    "first it is noted since when the node has failed": (NEW, active("deploy failed"), Note(NOTED_FAILED)),
    "first it is noted that the node has no time": (
        NEW,
        active(provision_updated_at=None),
        Note("active since ever"),
    ),
    "active is no success of a rebuild that Ironic has not taken": (BEGUN, active(), SetInstance),
    "active is the success of a rebuild if the node is active anew": (
        BEGUN,
        active(provision_updated_at=AFTER),
        Finish(),
    ),
    "active is the success of a rebuild if Ironic took the order": (
        structs.replace(BEGUN, is_ordered=True),
        active(),
        Finish(),
    ),
    "active is the success of a rebuild if the order was taken just now": (
        BEGUN,
        active(is_ordered=True),
        Finish(),
    ),
    "active is news after a failure whatever the time": (FAILED_BEFORE, active(), Finish()),
    "a failure of before is no failure of this rebuild": (
        FAILED_BEFORE,
        active("deploy failed"),
        SetInstance,
    ),
    "a failure anew is of this rebuild": (
        FAILED_BEFORE,
        active("deploy failed", provision_updated_at=AFTER, last_error="no disk"),
        Fail("deploy failed: no disk"),
    ),
    "a failure is told also if Ironic gives no reason": (
        BEGUN,
        active("error"),
        Fail("error: Ironic gives no reason"),
    ),
    **{
        f"a rebuild fails in the state {state}": (
            BEGUN,
            active(state),
            Fail(f"provision state is {state!r}, and Ironic rebuilds no instance in that"),
        )
        for state in ("rescue", "service", "deleting", "available", "no such state")
    },
    "a node with another instance is left alone": (
        BEGUN,
        active(instance_uuid=THEIRS),
        Fail(f"the instance is not on the node, but {THEIRS}"),
    ),
    "a node without an instance is left alone": (
        BEGUN,
        active(instance_uuid=None),
        Fail("the instance is not on the node, but none"),
    ),
    "a rebuild of a node that Ironic does not know has failed": (
        BEGUN,
        Seen(None),
        Fail("the node is deleted in Ironic"),
    ),
    "an undeploy takes off what is rebuilt": (UNDEPLOY, active(), SetState("deleted")),
}


@pytest.mark.parametrize("case", STEPS)
def test_what_is_done_next(case: str) -> None:
    work, there, expected = STEPS[case]
    step = next_step(work, there)

    assert (type(step) if isinstance(expected, type) else step) == expected


def test_the_steps_of_a_deploy_come_in_their_order() -> None:
    order = an_order(ports=("p1", "p2"), config_drive="http://drives/1")
    work = a_deploy(order=order)
    now = seen(instance_uuid=None)
    taken: list[object] = []
    while not isinstance(taken and taken[-1], SetState):
        step = next_step(work, now)
        taken.append(step)
        assert not isinstance(step, Fail | WaitForNode | Again | Note | Finish | Gone)
        attached = ("p1", "p2") if AttachVif("p2") in taken else ("p1",)
        now = seen(vifs=attached, has_info=True) if isinstance(step, ReadVifs) else after_step(now, step)

    assert taken == [
        SetInstance(instance_info(order, a_node()), OURS),
        ReadVifs(),
        AttachVif("p2"),
        ReadVifs(),
        Validate(),
        SetState("active", "http://drives/1"),
    ]


def test_a_refusal_ends_a_deploy_unless_another_node_may_still_be_losing_the_instance() -> None:
    own, state = SetInstance({}, OURS), SetState("active")

    no = "Ironic refuses to bring the node to 'active': no"
    assert after_refusal(DEPLOY, state, 400, "no") == Fail(no)
    assert after_refusal(DEPLOY, own, 400, "no") == Fail("Ironic refuses to set the instance: no")
    busy = "Ironic refuses to set the instance: busy"
    assert after_refusal(DEPLOY, own, 409, "busy") == Again(busy, is_refusal=True)
    rebuild = "Ironic refuses to bring the node to 'rebuild': in maintenance"
    assert after_refusal(BEGUN, SetState("rebuild"), 400, "in maintenance") == Fail(rebuild)
    patient = a_deploy(refusals=REFUSALS_MAX)
    assert after_refusal(patient, own, 409, "busy") == Fail(f"{busy} (try 13, the last)")


def test_a_refusal_never_ends_a_cleaning_up_and_a_missing_node_is_read_again() -> None:
    for work in (UNDEPLOY, FAILED):
        worn = structs.replace(work, refusals=REFUSALS_MAX, repeats=NO_EFFECT_MAX)
        assert isinstance(after_refusal(worn, SetState("deleted"), 400, "no"), Again)
        assert isinstance(after_failure(worn, "locked"), Again)
        assert isinstance(after_no_effect(worn, SetState("deleted")), Again)
    assert isinstance(after_refusal(DEPLOY, Validate(), 404, "gone"), Again)
    patient = a_deploy(refusals=REFUSALS_MAX)
    assert isinstance(after_refusal(patient, Validate(), 404, "gone"), Fail), "not for ever"


EACH_STEP = (
    SetInstance({}, OURS),
    ClearInstance(),
    ReadVifs(),
    AttachVif("port-1"),
    DetachVif("port-1"),
    Validate(),
    *(SetState(target) for target in ("active", "deleted", "abort", "rebuild")),
)


@pytest.mark.parametrize("step", EACH_STEP, ids=words_of)
def test_each_step_of_a_deploy_and_of_a_rebuild_is_given_up_after_so_many_tries(step: Step) -> None:
    for work in (DEPLOY, a_rebuild()):
        for tries in range(REFUSALS_MAX):
            assert isinstance(after_failure(structs.replace(work, refusals=tries), "locked"), Again)
        last = after_failure(structs.replace(work, refusals=REFUSALS_MAX), "locked")
        assert last == Fail("locked (try 13, the last)")

        for tries in range(NO_EFFECT_MAX - 1):
            again = after_no_effect(structs.replace(work, repeats=tries), step)
            assert isinstance(again, Again)
            assert again.is_without_effect
        failed = after_no_effect(structs.replace(work, repeats=NO_EFFECT_MAX - 1), step)
        assert isinstance(failed, Fail)
        assert words_of(step) in failed.reason
        assert "4 tries" in failed.reason


@pytest.mark.parametrize(
    ("changed", "flaw"),
    [
        ({}, ""),
        ({"storage": InterfaceCheck(None)}, ""),
        ({"console": InterfaceCheck(False, "none")}, ""),
        ({"deploy": InterfaceCheck(False, "no image_source")}, "deploy: no image_source"),
        ({"power": InterfaceCheck(None)}, "power: not supported"),
        ({"storage": InterfaceCheck(False, "no volume")}, "storage: no volume"),
    ],
)
def test_a_node_validates_if_what_a_deploy_needs_does(changed: dict[str, InterfaceCheck], flaw: str) -> None:
    checks = dict.fromkeys(("deploy", "power", "storage", "console"), InterfaceCheck(True)) | changed

    assert why_invalid(checks) == (flaw and f"the node does not validate: {flaw}")


def test_ironic_is_told_of_an_instance_what_nova_tells() -> None:
    flavor = Flavor(
        vcpus=8,
        ram_mb=1024,
        root_gb=40,
        ephemeral_gb=5,
        extra_specs={
            "capabilities:boot_mode": "uefi",
            "trait:CUSTOM_A": "required",
            "trait:CUSTOM_B": "forbidden",
            "resources:CUSTOM_GOLD": "1",
        },
    )
    order = an_order(flavor=flavor, name="metal-1", image_properties={"trait:CUSTOM_C": "required"})

    assert instance_info(order, a_node(properties={"local_gb": 480})) == {
        "display_name": "metal-1",
        "vcpus": "8",
        "memory_mb": "1024",
        "local_gb": "480",
        "root_gb": "40",
        "swap_mb": "0",
        "ephemeral_gb": "5",
        "image_source": IMAGE.source,
        "image_checksum": "0a1b",
        "capabilities": '{"boot_mode": "uefi"}',
        "traits": ["CUSTOM_A", "CUSTOM_C"],
    }


def test_the_ends_say_what_became_of_the_attempt() -> None:
    row = NodeRow(id=NODE_ID, deploy=DEPLOY)
    of_ours: dict[str, Any] = {"cell": "c1", "instance": OURS, "attempt": 1, "host": NODE_ID}

    active, spawned = ended(row, DEPLOY, Finish())
    failed, why = ended(row, FAILED, Gone())
    gone, destroyed = ended(active, UNDEPLOY, Gone())

    assert spawned == InstanceSpawned(kind="ironic", **of_ours)
    assert why == SpawnFailed(reason="no image", **of_ours)
    assert destroyed == InstanceDestroyed(**of_ours)
    assert active == NodeRow(id=NODE_ID, deployed=Deployed(cell="c1", instance=OURS, attempt=1))
    assert failed.ended == (Ended(instance=OURS, attempt=1, failure="no image"),)
    assert (gone.deployed, gone.ended) == (None, (Ended(instance=OURS, attempt=1),))


def test_a_claim_may_end_when_placement_holds_the_node_or_cannot_be_told() -> None:
    offered, held = Offer(reserved=False), Offer(reserved=True)
    known: dict[str, Any] = {"id": NODE_ID, "cell": "c1"}

    assert not is_held(NodeRow(**known, offer=held, reported=offered))
    assert not is_held(NodeRow(**known, offer=held))
    assert is_held(NodeRow(**known, offer=held, reported=held))
    assert is_held(NodeRow(**known, report_note="1 of CUSTOM_GOLD is still held"))
    assert is_held(NodeRow(id=NODE_ID))


def test_no_step_is_taken_without_reading_the_node_after_it_changed() -> None:
    """The result of a provision order is read, never assumed."""
    before = seen(has_info=True, is_valid=True)

    assert after_step(before, SetState("active")) is before


def test_ports_of_ours_are_detached_from_a_node_that_somebody_gave_another_instance() -> None:
    for state in STATES:
        at = {"instance_uuid": THEIRS}
        assert next_step(WITH_PORTS, seen(state, **at)) == ReadVifs()
        assert next_step(WITH_PORTS, seen(state, vifs=("theirs", *PORTS), **at)) == DetachVif("port-1")
        assert next_step(WITH_PORTS, seen(state, vifs=("port-2",), **at)) == DetachVif("port-2")
        assert next_step(WITH_PORTS, seen(state, vifs=("theirs",), **at)) == Gone()


@pytest.mark.parametrize("state", STATES)
def test_where_only_the_instance_was_removed_ports_are_detached_unless_ironic_does_that(
    state: str | None,
) -> None:
    given_up = structs.replace(WITH_PORTS, kind="undeploy", failure="")

    step = next_step(given_up, seen(state, instance_uuid=None))

    assert step == (ReadVifs() if PROVISION_STATES[state].undeploy == "clear" else Gone())


@pytest.mark.parametrize("at", [BEFORE, NOON, None], ids=["older", "as old", "no time"])
@pytest.mark.parametrize("state", STATES)
def test_no_delete_is_done_because_a_restored_ironic_has_forgotten_the_instance(
    state: str | None, at: datetime | None
) -> None:
    there = forgotten(state, at)
    assert next_step(UNDEPLOY, there) == Note(_since(there))
    step = next_step(CONFIRMING, there)
    assert not isinstance(step, Gone)
    orders: dict[str | None, object] = {
        None: SetState("manage"),
        "available": SetState("manage"),
        "manageable": SetState("provide"),
    }
    assert step == orders.get(state, step)
    assert state in orders or isinstance(step, WaitForNode)


def _since(there: Seen) -> str:
    assert there.node is not None
    at = there.node.provision_updated_at
    return f"{there.node.provision_state} since {at.isoformat() if at else 'ever'}"


def test_the_steps_of_a_rebuild_come_in_their_order() -> None:
    order = a_redeploy(config_drive="http://drives/1")
    work, now = a_rebuild(order=order, before=NOTED), active()
    taken: list[object] = []
    while not isinstance(taken and taken[-1], SetState):
        step = next_step(work, now)
        assert isinstance(step, SetInstance | Validate | SetState)
        taken.append(step)
        now = after_step(now, step)

    # The instance_uuid is there already.
    info = SetInstance(instance_info(order, a_node()), None)
    assert taken == [info, Validate(), SetState("rebuild", "http://drives/1")]
    assert info.info["image_source"] == order.image.source


@pytest.mark.parametrize("state", ["deploy", "deploying", "wait call-back", "deploy hold", "rebuild"])
def test_what_ironic_works_on_is_waited_for_whoever_ordered_it(state: str) -> None:
    for work in (NEW, BEGUN):
        assert next_step(work, active(state)) == WaitForNode(f"provision state is {state!r}")
        assert isinstance(next_step(work, active(state, maintenance=True)), WaitForNode)


@pytest.mark.parametrize(
    ("fields", "is_active"),
    [
        ({}, True),
        ({"provision_state": "rescue"}, True),
        ({"provision_state": "deploy failed"}, False),
        ({"provision_state": "cleaning"}, False),
        ({"instance_uuid": THEIRS}, False),
    ],
)
def test_a_failure_says_whether_the_instance_still_runs(fields: dict[str, Any], *, is_active: bool) -> None:
    node = a_node(**{"provision_state": "active", "instance_uuid": OURS, **fields})

    _, answer = ended(a_row(deploy=BEGUN), BEGUN, Fail("no disk"), node)

    assert answer == redeployed("no disk", is_active=is_active)
    assert ended(a_row(deploy=BEGUN), BEGUN, Fail("gone"), None)[1] == redeployed("gone", is_active=False)


# Orders


def a_row(**fields: Any) -> NodeRow:
    node = a_node(provision_state="active", instance_uuid=OURS)
    return NodeRow(**{"id": NODE_ID, "version": 3, "cell": "c1", "node": node, "deployed": ACTIVE, **fields})
