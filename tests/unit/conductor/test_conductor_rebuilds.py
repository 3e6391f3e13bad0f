"""Rebuilds of an instance: in place, numbered, and with an end whatever its node reports."""

from datetime import timedelta

import pytest
from msgspec import structs

from bus.messages.build import InstanceActive, InstanceDeleted, InstanceFailed, InstanceState, Rebuild
from bus.messages.cell import InstanceRedeployed, RebuildInCell, RedeployInstance, UndeployInstance
from cell_conductor.store_sql import assemble_row, decode_body, encode_body
from engine.flavors import Image, RequestId
from tests.contracts.placement_orders import an_id
from tests.unit.conductor.cell import (
    NOON,
    ONE,
    REMOVE,
    Cell,
    destroyed,
    failed,
    host,
    kinds,
    released,
    spawned,
)
from tests.unit.conductor.test_conductor_nodes import DEPLOY_S, place_on_node, progressed, undeploy

NEW = Image(source="http://images/fedora")


def rebuild(number: int = 150, *, ends_in_s: float = 7_200, image: Image = NEW) -> RebuildInCell:
    ordered = Rebuild(
        request_id=RequestId(an_id(f"rebuild-{number}")),
        number=number,
        image=image,
        ends_by=NOON + timedelta(seconds=ends_in_s),
    )
    return RebuildInCell(cell="c1", instance=ONE, rebuild=ordered)


def redeployed(
    number: int = 150, *, failure: str = "", is_active: bool = True, attempt: int = 1, name: str = "n1"
) -> InstanceRedeployed:
    return InstanceRedeployed(
        cell="c1",
        instance=ONE,
        attempt=attempt,
        host=host(name),
        number=number,
        failure=failure,
        is_active=is_active,
    )


def an_active_cell() -> Cell:
    cell = Cell(place_on_node(), spawned(1, "n1"))
    cell.confirm_all()
    return cell


def state_in(said: object) -> InstanceState:
    assert isinstance(said, InstanceActive | InstanceFailed)
    return said.instance


def test_a_rebuild_is_ordered_from_the_node_of_the_attempt_with_all_fields_of_its_placement() -> None:
    cell, order = an_active_cell(), place_on_node()

    (said,) = cell.hear(rebuild())

    assert isinstance(said, RedeployInstance)
    assert (said.host, said.attempt, said.number, said.image) == (host("n1"), 1, 150, NEW)
    for field in ("flavor", "name", "image_properties", "config_drive"):
        assert getattr(said, field) == getattr(order, field)
    assert cell.row.state == "rebuilding"


def test_a_node_is_told_the_properties_of_a_stored_image() -> None:
    cell = an_active_cell()
    order = rebuild()
    properties = {"trait:CUSTOM_GOLD": "required"}
    named = structs.replace(order.rebuild, image_name="gold", image_properties=properties)

    (said,) = cell.hear(structs.replace(order, rebuild=named))

    assert isinstance(said, RedeployInstance)
    assert said.image_properties == properties


def test_a_rebuilt_instance_is_active_again_with_a_higher_sequence() -> None:
    cell = an_active_cell()
    cell.hear(rebuild())

    (said,) = cell.hear(redeployed())

    told = state_in(said)
    assert isinstance(said, InstanceActive)
    assert told.rebuild == rebuild().rebuild
    assert told.sequence > 150
    assert (told.host, told.attempt, told.reason) == ("n1", 1, "")
    assert cell.row.state == "active"


def test_a_repeated_order_is_not_carried_out_again_and_an_earlier_one_never() -> None:
    cell = an_active_cell()
    first = cell.hear(rebuild())

    # Until the broker has confirmed it.
    assert cell.hear(rebuild()) == first
    cell.confirm_all()
    assert cell.hear(rebuild()) == []
    cell.hear(redeployed())
    cell.confirm_all()
    before = cell.row
    for late in (rebuild(), rebuild(149)):
        assert cell.hear(late) == []
    assert cell.row == before
    assert kinds(cell.hear(rebuild(151))) == [RedeployInstance]


def test_reports_of_another_rebuild_attempt_or_node_change_nothing() -> None:
    cell = an_active_cell()
    cell.hear(rebuild())
    cell.confirm_all()
    before = cell.row

    for late in (redeployed(149), redeployed(attempt=2), redeployed(name="n2"), spawned(1, "n1")):
        assert cell.hear(late) == []
    assert cell.row == before


def test_a_rebuild_that_failed_leaves_an_error_that_keeps_its_node_and_its_share() -> None:
    cell = an_active_cell()
    cell.hear(rebuild())

    (said,) = cell.hear(redeployed(failure="deploy failed: no disk", is_active=False))

    told = state_in(said)
    assert isinstance(said, InstanceFailed)
    assert (told.state, told.host, told.keeps_share) == ("error", "n1", True)
    assert told.reason == "its rebuild failed: deploy failed: no disk"
    assert told.rebuild is not None
    assert told.rebuild.failure == "deploy failed: no disk"
    assert cell.row.state == "broken"
    assert released(cell.hear(redeployed(failure="again", is_active=False))) == []
    assert cell.row.reason == "its rebuild failed: deploy failed: no disk"


def test_a_rebuild_that_never_began_leaves_the_instance_active_and_says_why() -> None:
    cell = an_active_cell()
    cell.hear(rebuild())

    (said,) = cell.hear(redeployed(failure="the node is locked"))

    assert isinstance(said, InstanceActive)
    assert state_in(said).rebuild == structs.replace(rebuild().rebuild, failure="the node is locked")


def test_a_broken_instance_is_rebuilt_again_and_then_active_without_a_reason() -> None:
    cell = an_active_cell()
    cell.hear(rebuild(), redeployed(failure="no disk", is_active=False))

    assert RedeployInstance in kinds(cell.hear(rebuild(160)))
    told = state_in(cell.hear(redeployed(160))[-1])

    assert (told.state, told.reason, told.keeps_share) == ("active", "", False)
    assert told.rebuild is not None
    assert told.rebuild.failure == ""


@pytest.mark.parametrize("is_broken", [False, True], ids=["under way", "broken"])
def test_a_delete_ends_a_rebuild_and_its_share_is_held_until_the_node_is_clean(*, is_broken: bool) -> None:
    cell = an_active_cell()
    cell.hear(rebuild())
    if is_broken:
        cell.hear(redeployed(failure="no disk", is_active=False))
        cell.confirm_all()

    assert cell.hear(REMOVE) == [undeploy(1, "n1")]
    assert not any(isinstance(each.message, RedeployInstance) for each in cell.row.outbox)
    # A late report has no use any more.
    before = cell.row
    for late in (redeployed(), rebuild(170)):
        cell.hear(late)
        assert cell.row == before
    said = cell.hear(destroyed(1, "n1"))
    assert released(said) == [(ONE, 1)]
    assert kinds(said)[-1] is InstanceDeleted


def test_progress_restarts_the_timeout_of_a_rebuild_but_never_beyond_its_deadline() -> None:
    cell = an_active_cell()
    cell.hear(rebuild(ends_in_s=DEPLOY_S + 1_000))
    cell.after_s(DEPLOY_S - 1)
    assert cell.hear(progressed(1, "n1")) == []
    # It may be a report of an earlier rebuild: the order stays pending.
    assert [type(each.message) for each in cell.row.outbox] == [RedeployInstance]

    cell.after_s(1_000)
    assert cell.row.state == "rebuilding"
    (said,) = cell.after_s(1)

    assert state_in(said).reason == "its rebuild failed: not rebuilt by its deadline"


def test_a_rebuild_without_a_report_in_time_is_an_error_until_the_node_reports_success() -> None:
    cell = an_active_cell()
    cell.hear(rebuild())

    (said,) = cell.after_s(DEPLOY_S)

    assert isinstance(said, InstanceFailed)
    assert state_in(said).reason == f"its rebuild failed: no message from the host within {DEPLOY_S} s"
    assert cell.row.cleanups == ()
    told = state_in(cell.hear(redeployed())[-1])
    assert (told.state, told.reason) == ("active", "")


def test_a_rebuild_that_never_began_before_its_timeout_leaves_the_instance_active() -> None:
    cell = an_active_cell()
    cell.hear(rebuild())
    cell.after_s(DEPLOY_S)

    told = state_in(cell.hear(redeployed(failure="Ironic refuses: in maintenance"))[-1])

    assert (told.state, told.reason, told.keeps_share) == ("active", "", False)
    assert told.rebuild is not None
    assert told.rebuild.failure == "Ironic refuses: in maintenance"


def test_a_rebuild_that_comes_to_its_cell_too_late_is_not_begun() -> None:
    cell = an_active_cell()
    cell.after_s(100)

    (said,) = cell.hear(rebuild(ends_in_s=100))

    assert isinstance(said, InstanceActive)
    assert state_in(said).rebuild == structs.replace(
        rebuild(ends_in_s=100).rebuild, failure="the order reached its cell after the deadline"
    )


def test_an_instance_that_is_not_active_is_not_rebuilt() -> None:
    assert Cell().hear(rebuild()) == []
    building = Cell(place_on_node())
    before = building.row
    building.hear(rebuild())
    assert building.row == before


def test_a_node_that_is_rebuilt_is_told_to_undeploy_a_superseded_attempt_only() -> None:
    cell = an_active_cell()
    cell.hear(rebuild())
    cell.confirm_all()

    assert kinds(cell.hear(progressed(2, "n1"))) == [UndeployInstance]
    assert cell.row.state == "rebuilding"


def test_a_rebuild_survives_the_row_as_it_is_written() -> None:
    cell = an_active_cell()
    cell.hear(rebuild())
    row = cell.row

    assert assemble_row(decode_body(encode_body(row)), row.order) == row


def test_a_node_that_is_back_ends_a_failed_rebuild_but_not_one_that_is_still_asked_for() -> None:
    cell = Cell(place_on_node(), spawned(1, "n1"), rebuild())
    back = structs.replace(spawned(1, "n1"), number=2)
    assert cell.hear(structs.replace(failed(1, "n1"), number=1)) == []
    cell.hear(redeployed(failure="the node is deleted in Ironic", is_active=False))
    assert cell.row.state == "broken"
    cell.confirm_all()
    (said,) = cell.hear(back)
    assert isinstance(said, InstanceActive)
    assert said.instance.rebuild is not None
    assert said.instance.rebuild.failure == "the node is deleted in Ironic"

    asked = Cell(place_on_node(), spawned(1, "n1"), rebuild())
    asked.after_s(DEPLOY_S * 3)
    assert asked.row.state == "broken"
    asked.confirm_all()
    assert asked.hear(back) == []
    assert kinds(asked.hear(redeployed())) == [InstanceActive]
