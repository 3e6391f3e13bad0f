"""The next step of a deploy, an undeploy or a rebuild, for every state of the node; and what orders to rebuild make of its row."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import structs

from bus.messages.cell import InstanceDestroyed, InstanceRedeployed, InstanceSpawned, SpawnFailed
from engine.flavors import Flavor
from ironic_sync.core import deploying
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
from ironic_sync.core.rows import AT_ONCE, Deployed, Ended, NodeRow, Offer, Rebuilt
from ironic_sync.core.settling import NO_API, after_order
from tests.unit.ironic.captured import NODE_ID, a_node
from tests.unit.ironic.deploys import (
    IMAGE,
    OURS,
    THEIRS,
    a_deploy,
    a_rebuild,
    a_redeploy,
    an_order,
    an_undeploy,
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


def test_a_state_that_nobody_knows_is_waited_for() -> None:
    for work in (DEPLOY, UNDEPLOY):
        assert isinstance(next_step(work, seen("levitating")), WaitForNode)


def test_a_node_that_ironic_does_not_know_has_failed_and_has_nothing() -> None:
    assert next_step(DEPLOY, Seen(None)) == Fail("the node is deleted in Ironic")
    assert next_step(UNDEPLOY, Seen(None)) == Gone()
    assert next_step(FAILED, Seen(None)) == Gone()


def test_an_answer_404_ends_no_delete_of_what_was_active_until_somebody_says_that_the_node_is_gone() -> None:
    row = NodeRow(id=NODE_ID, deployed=Deployed(cell="c1", instance=OURS, attempt=UNDEPLOY.attempt))

    assert next_step(UNDEPLOY, Seen(None, row=row)) == WaitForNode(NO_NODE)
    assert next_step(UNDEPLOY, Seen(None, row=structs.replace(row, is_deleted=True))) == Gone()
    assert next_step(FAILED, Seen(None, row=structs.replace(row, deployed=None))) == Gone()


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"maintenance": True, "maintenance_reason": "disk"}, "the node is in maintenance: 'disk'"),
        ({"retired": True}, "the node is retired"),
        ({"power_state": "error"}, "power state is 'error'"),
        ({"fault": "clean failure"}, "fault is 'clean failure'"),
    ],
)
def test_a_deploy_does_not_begin_on_a_node_that_left_the_offer(fields: dict[str, Any], reason: str) -> None:
    for instance in (None, OURS):
        assert next_step(DEPLOY, seen(instance_uuid=instance, **fields)) == Fail(reason)


def test_maintenance_in_the_middle_gives_the_deploy_up_but_not_what_is_active() -> None:
    in_maintenance = {"maintenance": True, "maintenance_reason": "smoke"}

    failed = next_step(DEPLOY, seen("wait call-back", **in_maintenance))

    assert failed == Fail("the node was put in maintenance while it was deployed: smoke")
    assert next_step(DEPLOY, seen("active", **in_maintenance)) == Finish()


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


def test_an_instance_that_is_set_already_is_not_set_again_but_its_info_is() -> None:
    step = next_step(DEPLOY, seen())

    assert step == SetInstance(instance_info(an_order(), a_node()), None)


def test_what_never_got_so_far_is_taken_off_port_by_port() -> None:
    attached = seen(vifs=("p1",))

    assert next_step(UNDEPLOY, attached) == DetachVif("p1")
    assert next_step(UNDEPLOY, after_step(attached, DetachVif("p1"))) == ReadVifs()
    assert next_step(UNDEPLOY, seen(vifs=())) == ClearInstance()


def test_a_deploy_fails_with_ironics_words() -> None:
    words = next_step(DEPLOY, seen("deploy failed", last_error="no such image"))

    assert words == Fail("deploy failed: no such image")


def test_a_refusal_ends_a_deploy_unless_another_node_may_still_be_losing_the_instance() -> None:
    own, state = SetInstance({}, OURS), SetState("active")

    no = "Ironic refuses to bring the node to 'active': no"
    assert after_refusal(DEPLOY, state, 400, "no") == Fail(no)
    assert after_refusal(DEPLOY, own, 400, "no") == Fail("Ironic refuses to set the instance: no")
    busy = "Ironic refuses to set the instance: busy"
    assert after_refusal(DEPLOY, own, 409, "busy") == Again(busy, is_refusal=True)
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


@pytest.mark.parametrize("worn", [{"refusals": REFUSALS_MAX}, {"repeats": NO_EFFECT_MAX}])
def test_ports_that_ironic_does_not_detach_stay_and_the_instance_goes(worn: dict[str, int]) -> None:
    there = seen(vifs=PORTS)

    assert next_step(UNDEPLOY, there) == DetachVif("port-1")
    assert next_step(structs.replace(UNDEPLOY, **worn), there) == ClearInstance()
    gone = seen(instance_uuid=None, vifs=PORTS)
    assert next_step(structs.replace(WITH_PORTS, **worn), gone) == Gone()


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
    assert deploying.next_step(DEPLOY, seen("deploying")) == WaitForNode("provision state is 'deploying'")


PORTS = ("port-1", "port-2")
WITH_PORTS = a_deploy(order=an_order(ports=PORTS), failure="somebody set another instance")


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


def test_the_ports_on_a_node_that_is_no_longer_ours_are_not_tried_for_ever() -> None:
    there = seen("active", instance_uuid=THEIRS, vifs=PORTS)

    assert next_step(structs.replace(WITH_PORTS, refusals=REFUSALS_MAX - 1), there) == DetachVif("port-1")
    assert next_step(structs.replace(WITH_PORTS, refusals=REFUSALS_MAX), there) == Gone()
    away = structs.replace(WITH_PORTS, tries=REFUSALS_MAX)
    assert next_step(away, there) == DetachVif("port-1"), "Ironic was away, and refused nothing"


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


def forgotten(state: str | None, at: datetime | None = BEFORE, **fields: Any) -> Seen:
    return structs.replace(
        seen(state, provision_updated_at=at, **{"instance_uuid": None, **fields}), row=LIVED
    )


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


def test_such_a_delete_is_done_when_ironic_has_cleaned_the_node_on_its_order() -> None:
    ordered = structs.replace(CONFIRMING, is_ordered=True)
    assert isinstance(next_step(ordered, forgotten("cleaning", LATER)), WaitForNode)
    assert isinstance(next_step(ordered, forgotten("clean failed", LATER)), WaitForNode)
    assert next_step(ordered, forgotten("available", LATER)) == Gone()


def test_an_ended_instance_that_a_restored_ironic_has_there_is_taken_off_for_the_delete_and_no_other() -> (
    None
):
    assert next_step(CONFIRMING, forgotten("active", instance_uuid=THEIRS)) == SetState("deleted")
    stranger = forgotten("active", instance_uuid=NODE_ID)
    assert isinstance(next_step(CONFIRMING, stranger), WaitForNode)


@pytest.mark.parametrize("state", ["cleaning", "clean wait", "clean failed", "available", "active"])
def test_what_ironic_did_since_the_instance_was_active_confirms_its_delete(state: str) -> None:
    instance = THEIRS if state == "active" else None
    assert next_step(UNDEPLOY, forgotten(state, LATER, instance_uuid=instance)) == Gone()
    # An operator's work on a node that Ironic believed to be free cleans nothing.
    assert next_step(UNDEPLOY, forgotten("manageable", LATER)) != Gone()
    ordered = structs.replace(UNDEPLOY, is_ordered=True)
    assert next_step(ordered, forgotten(state, NOON, instance_uuid=instance)) == Gone()
    # It was restored while it carried out the order.
    assert next_step(ordered, forgotten(state, BEFORE, instance_uuid=instance)) != Gone()


@pytest.mark.parametrize(
    ("at", "retired", "is_sent", "is_done"),
    [
        (LATER, True, True, True),
        (LATER, False, True, False),
        (LATER, True, False, False),
        (BEFORE, True, True, False),
    ],
)
def test_a_retired_node_has_been_cleaned_by_an_order_whose_answer_was_lost(
    at: datetime, *, retired: bool, is_sent: bool, is_done: bool
) -> None:
    """Ironic brings it from its cleaning to `manageable`, and does not clean it again while it is retired."""
    sent = structs.replace(UNDEPLOY, is_sent=is_sent)

    assert (next_step(sent, forgotten("manageable", at, retired=retired)) == Gone()) is is_done


BEFORE_IT, AFTER = NOON.replace(hour=10), NOON.replace(hour=11)
NOTED = "active since 2026-03-04T10:00:00+00:00"
ACTIVE = Deployed(cell="c1", instance=OURS, attempt=1)
NEW = a_rebuild()
BEGUN = a_rebuild(before=NOTED)


def active(state: str | None = "active", **fields: Any) -> Seen:
    """The node of an instance that was active before; by default it still is."""
    return seen(state, **{"provision_updated_at": BEFORE_IT, **fields})


def test_first_it_is_noted_since_when_the_node_is_active() -> None:
    assert next_step(NEW, active()) == Note(NOTED)
    assert next_step(NEW, active("deploy failed")) == Note("deploy failed since 2026-03-04T10:00:00+00:00")
    assert next_step(NEW, active(provision_updated_at=None)) == Note("active since ever")


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


def test_active_counts_only_if_ironic_took_the_order_or_the_node_is_active_anew() -> None:
    assert isinstance(next_step(BEGUN, active()), SetInstance)
    assert next_step(BEGUN, active(provision_updated_at=AFTER)) == Finish()
    assert next_step(structs.replace(BEGUN, is_ordered=True), active()) == Finish()
    assert next_step(BEGUN, active(is_ordered=True)) == Finish()
    # Another state is news, whatever the time.
    failed_before = a_rebuild(before="deploy failed since 2026-03-04T10:00:00+00:00")
    assert next_step(failed_before, active()) == Finish()


def test_a_failure_counts_only_if_it_is_of_this_rebuild() -> None:
    before = a_rebuild(before="deploy failed since 2026-03-04T10:00:00+00:00")

    assert isinstance(next_step(before, active("deploy failed")), SetInstance)
    assert next_step(
        before, active("deploy failed", provision_updated_at=AFTER, last_error="no disk")
    ) == Fail("deploy failed: no disk")
    assert next_step(BEGUN, active("error")) == Fail("error: Ironic gives no reason")


@pytest.mark.parametrize("state", ["deploy", "deploying", "wait call-back", "deploy hold", "rebuild"])
def test_what_ironic_works_on_is_waited_for_whoever_ordered_it(state: str) -> None:
    for work in (NEW, BEGUN):
        assert next_step(work, active(state)) == WaitForNode(f"provision state is {state!r}")
        assert isinstance(next_step(work, active(state, maintenance=True)), WaitForNode)


@pytest.mark.parametrize("state", ["rescue", "service", "deleting", "available", "no such state"])
def test_in_any_other_state_it_fails(state: str) -> None:
    failed = next_step(BEGUN, active(state))

    assert isinstance(failed, Fail)
    assert repr(state) in failed.reason


def test_a_node_without_the_instance_is_left_alone() -> None:
    assert next_step(BEGUN, active(instance_uuid=THEIRS)) == Fail(
        f"the instance is not on the node, but {THEIRS}"
    )
    assert next_step(BEGUN, active(instance_uuid=None)) == Fail("the instance is not on the node, but none")
    assert next_step(BEGUN, Seen(None)) == Fail("the node is deleted in Ironic")


def test_a_step_that_ironic_refuses_ends_it() -> None:
    step = SetState("rebuild")

    assert after_refusal(BEGUN, step, 400, "in maintenance") == Fail(
        "Ironic refuses to bring the node to 'rebuild': in maintenance"
    )


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

    assert answer == an_answer("no disk", is_active=is_active)
    assert ended(a_row(deploy=BEGUN), BEGUN, Fail("gone"), None)[1] == an_answer("gone", is_active=False)


# Orders


def a_row(**fields: Any) -> NodeRow:
    node = a_node(provision_state="active", instance_uuid=OURS)
    return NodeRow(**{"id": NODE_ID, "version": 3, "cell": "c1", "node": node, "deployed": ACTIVE, **fields})


def an_answer(failure: str = "", *, number: int = 102, is_active: bool = True) -> InstanceRedeployed:
    return InstanceRedeployed(
        cell="c1",
        instance=OURS,
        attempt=1,
        host=NODE_ID,
        number=number,
        failure=failure,
        is_active=is_active,
    )


def after(row: NodeRow, order: Any) -> tuple[NodeRow, object]:
    return after_order(row, order, NOON, can_deploy=True)


def test_a_rebuild_is_written_on_the_row_and_comes_again_without_a_change() -> None:
    row, answer = after(a_row(), a_redeploy())

    assert answer is None
    assert row.deploy == a_rebuild(started_at=NOON, due_at=AT_ONCE)
    assert after(row, a_redeploy()) == (row, None)
    assert after(row, a_redeploy(101)) == (row, None)
    assert after(row, a_redeploy(103))[0].deploy == a_rebuild(
        order=a_redeploy(103), started_at=NOON, due_at=AT_ONCE
    )


@pytest.mark.parametrize("deployed", [ACTIVE, None], ids=["known", "only Ironic knows of it"])
def test_a_rebuild_that_was_done_is_answered_again_and_an_earlier_one_is_not(
    deployed: Deployed | None,
) -> None:
    row, _ = after(a_row(deployed=deployed), a_redeploy())
    assert row.deploy is not None
    row, answer = ended(row, row.deploy, Finish(), row.node)

    assert answer == an_answer()
    assert after(row, a_redeploy()) == (row, an_answer())
    assert after(row, a_redeploy(101)) == (row, None)
    assert row.deployed == structs.replace(ACTIVE, rebuilt=Rebuilt(number=102))


@pytest.mark.parametrize(
    ("row", "words", "is_active"),
    [
        (NodeRow(id=NODE_ID), "is not known here", False),
        (a_row(deployed=None, node=a_node()), "attempt 1 of the instance is not on node", False),
        (a_row(deployed=structs.replace(ACTIVE, attempt=2)), "attempt 1 of the instance is not on", False),
        (a_row(deploy=a_deploy(kind="undeploy")), f"undeploy of instance {OURS} is under way", True),
    ],
)
def test_a_rebuild_is_refused_with_its_reason(row: NodeRow, words: str, *, is_active: bool) -> None:
    same, answer = after(row, a_redeploy())

    assert isinstance(answer, InstanceRedeployed)
    assert words in answer.failure
    assert answer.is_active == is_active
    assert same.deploy is row.deploy


def test_a_daemon_without_ironics_api_refuses_and_it_stays_refused() -> None:
    row, answer = after_order(a_row(), a_redeploy(), NOON, can_deploy=False)

    assert answer == an_answer(NO_API)
    assert after(row, a_redeploy()) == (row, answer)
    assert after(row, a_redeploy(103))[0].deploy is not None


def test_an_undeploy_ends_a_rebuild_and_one_that_comes_later_is_refused() -> None:
    row, _ = after(a_row(), a_redeploy())
    row, answer = after(row, an_undeploy())

    assert answer is None
    assert row.deploy is not None
    assert row.deploy.kind == "undeploy"
    same, refused = after(row, a_redeploy(103))
    assert refused == an_answer("attempt 1 was undeployed", number=103, is_active=True)
    assert same.deploy == row.deploy
    assert next_step(row.deploy, active()) == SetState("deleted")
    gone, destroyed = ended(row, row.deploy, Gone())
    assert isinstance(destroyed, InstanceDestroyed)
    assert (gone.deploy, gone.deployed) == (None, None)
