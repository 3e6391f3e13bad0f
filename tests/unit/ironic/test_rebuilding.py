"""The next step of a rebuild, and what orders to rebuild make of a node's row."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from bus.messages.cell import InstanceDestroyed, InstanceRedeployed
from ironic_sync.core.deploying import (
    Fail,
    Finish,
    Gone,
    Note,
    Seen,
    SetInstance,
    SetState,
    Validate,
    WaitForNode,
    after_refusal,
    after_step,
    ended,
    instance_info,
    next_step,
)
from ironic_sync.core.rows import AT_ONCE, Deployed, NodeRow, Rebuilt
from ironic_sync.core.settling import NO_API, after_order
from tests.unit.ironic.captured import NODE_ID, a_node
from tests.unit.ironic.deploys import OURS, THEIRS, a_deploy, a_rebuild, a_redeploy, an_undeploy

NOON = datetime(2026, 3, 4, 12, tzinfo=UTC)
BEFORE, AFTER = NOON.replace(hour=10), NOON.replace(hour=11)
NOTED = "active since 2026-03-04T10:00:00+00:00"
ACTIVE = Deployed(cell="c1", instance=OURS, attempt=1)
NEW = a_rebuild()
BEGUN = a_rebuild(before=NOTED)


def seen(state: str | None = "active", **fields: Any) -> Seen:
    steps = {key: fields.pop(key) for key in ("has_info", "is_valid", "is_ordered") if key in fields}
    values = {"provision_state": state, "instance_uuid": OURS, "provision_updated_at": BEFORE, **fields}
    return Seen(a_node(**values), **steps)


def test_first_it_is_noted_since_when_the_node_is_active() -> None:
    assert next_step(NEW, seen()) == Note(NOTED)
    assert next_step(NEW, seen("deploy failed")) == Note("deploy failed since 2026-03-04T10:00:00+00:00")
    assert next_step(NEW, seen(provision_updated_at=None)) == Note("active since ever")


def test_the_steps_of_a_rebuild_come_in_their_order() -> None:
    order = a_redeploy(config_drive="http://drives/1")
    work, now = a_rebuild(order=order, before=NOTED), seen()
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
    assert isinstance(next_step(BEGUN, seen()), SetInstance)
    assert next_step(BEGUN, seen(provision_updated_at=AFTER)) == Finish()
    assert next_step(structs.replace(BEGUN, is_ordered=True), seen()) == Finish()
    assert next_step(BEGUN, seen(is_ordered=True)) == Finish()
    # Another state is news, whatever the time.
    failed_before = a_rebuild(before="deploy failed since 2026-03-04T10:00:00+00:00")
    assert next_step(failed_before, seen()) == Finish()


def test_a_failure_counts_only_if_it_is_of_this_rebuild() -> None:
    before = a_rebuild(before="deploy failed since 2026-03-04T10:00:00+00:00")

    assert isinstance(next_step(before, seen("deploy failed")), SetInstance)
    assert next_step(before, seen("deploy failed", provision_updated_at=AFTER, last_error="no disk")) == Fail(
        "deploy failed: no disk"
    )
    assert next_step(BEGUN, seen("error")) == Fail("error: Ironic gives no reason")


@pytest.mark.parametrize("state", ["deploy", "deploying", "wait call-back", "deploy hold", "rebuild"])
def test_what_ironic_works_on_is_waited_for_whoever_ordered_it(state: str) -> None:
    for work in (NEW, BEGUN):
        assert next_step(work, seen(state)) == WaitForNode(f"provision state is {state!r}")
        assert isinstance(next_step(work, seen(state, maintenance=True)), WaitForNode)


@pytest.mark.parametrize("state", ["rescue", "service", "deleting", "available", "no such state"])
def test_in_any_other_state_it_fails(state: str) -> None:
    failed = next_step(BEGUN, seen(state))

    assert isinstance(failed, Fail)
    assert repr(state) in failed.reason


def test_a_node_without_the_instance_is_left_alone() -> None:
    assert next_step(BEGUN, seen(instance_uuid=THEIRS)) == Fail(
        f"the instance is not on the node, but {THEIRS}"
    )
    assert next_step(BEGUN, seen(instance_uuid=None)) == Fail("the instance is not on the node, but none")
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
    assert next_step(row.deploy, seen()) == SetState("deleted")
    gone, destroyed = ended(row, row.deploy, Gone())
    assert isinstance(destroyed, InstanceDestroyed)
    assert (gone.deploy, gone.deployed) == (None, None)
