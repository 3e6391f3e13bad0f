"""Which node may be claimed, of which class, with which traits, in which cell, and why not."""

import asyncio
from typing import Any

import os_traits
import pytest
from msgspec.structs import replace

from bus.addresses import ADDRESSES
from engine.inventories import ConsumerId
from ironic_sync.__main__ import run
from ironic_sync.core.offers import (
    CellMap,
    CellPlan,
    cell_map,
    cell_of,
    class_of,
    decide_cell,
    keeping_class,
    offer_of,
    reasons_against,
    without_kept_class,
)
from ironic_sync.core.rows import NodeDeploy, NodeRow, Offer
from ironic_sync.settings import IronicSettings
from kit.settings import BadSetting
from tests.unit.ironic.captured import INSTANCE, NODE_ID, a_node

STANDARD = frozenset(os_traits.get_traits())
GOLD = "CUSTOM_GOLD"

# Ironic 39 has these, besides `available` and null.
STATES = """
enroll, verifying, manageable, active, deploy, deploying, wait call-back, deploy complete, deploy failed, deploy hold,
undeploy, deleting, deleted, cleaning, clean wait, clean failed, clean hold, error, rebuild, inspecting, inspect wait,
inspect failed, adopting, adopt failed, rescue, rescuing, rescue wait, rescue failed, unrescuing, unrescue failed,
service, servicing, service wait, service failed, service hold
"""
UNAVAILABLE_STATES = tuple(" ".join(state.split()) for state in STATES.split(","))


def a_row(**fields: Any) -> NodeRow:
    row = {
        key: fields.pop(key) for key in tuple(fields) if key in NodeRow.__struct_fields__ and key != "owner"
    }
    return NodeRow(**{"id": NODE_ID, "node": a_node(**fields), **row})


def offered(**fields: Any) -> Offer:
    return offer_of(a_row(**fields), STANDARD)


def reported(row: NodeRow) -> NodeRow:
    """The row after placement took its offer."""
    offer = offer_of(row, STANDARD)
    return replace(row, offer=offer, reported=offer)


@pytest.mark.parametrize("state", ["available", None])
def test_a_node_that_is_available_is_offered_whole(state: str | None) -> None:
    assert offered(provision_state=state) == Offer(resource_class=GOLD, reserved=False)


@pytest.mark.parametrize("state", UNAVAILABLE_STATES)
def test_every_other_state_of_ironic_reserves_the_node_and_says_why(state: str) -> None:
    offer = offered(provision_state=state)

    assert (offer.resource_class, offer.reserved) == (GOLD, True)
    assert len(offer.reasons) == 1
    assert offer.reasons[0].startswith(f"provision state is {state!r}: ")
    assert "not known" not in offer.reasons[0]


@pytest.mark.parametrize("state", ["", "AVAILABLE", "available ", "dreaming", "x" * 255])
def test_a_state_that_nobody_knows_reserves_the_node(state: str) -> None:
    offer = offered(provision_state=state)

    assert offer.reserved
    assert "not known" in offer.reasons[0]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"maintenance": True}, "the node is in maintenance"),
        ({"maintenance": True, "maintenance_reason": "disk"}, "the node is in maintenance: 'disk'"),
        ({"retired": True}, "the node is retired"),
        ({"protected": True, "provision_state": None}, "the node is protected"),
        ({"power_state": "error"}, "power state is 'error'"),
        ({"fault": "power failure"}, "fault is 'power failure'"),
        ({"instance_uuid": INSTANCE}, f"instance {INSTANCE} is on the node"),
        ({"is_deleted": True}, "the node is deleted in Ironic"),
        ({"is_doubted": True, "doubts": ("a", "b")}, "the node is read again: a; b"),
        (
            {"deploy": NodeDeploy(kind="undeploy", cell="c1", instance=ConsumerId(INSTANCE), attempt=1)},
            f"undeploy of instance {INSTANCE} is under way",
        ),
    ],
)
def test_each_thing_that_stands_against_an_offer_reserves_the_node(
    fields: dict[str, Any], reason: str
) -> None:
    assert offered(**fields) == Offer(resource_class=GOLD, reserved=True, reasons=(reason,))


@pytest.mark.parametrize("power", [None, "power on", "power off", "rebooting", "soft power off"])
def test_no_power_state_but_error_stands_against_an_offer(power: str | None) -> None:
    assert not offered(power_state=power).reserved


def test_a_doubt_that_does_not_hold_the_node_leaves_it_offered() -> None:
    assert not offered(doubts=("its traits changed",)).reserved


def test_every_reason_is_said_at_once() -> None:
    reasons = reasons_against(
        a_node(provision_state="clean failed", maintenance=True, retired=True, fault="f")
    )

    assert len(reasons) == 4


@pytest.mark.parametrize(
    ("resource_class", "name"),
    [
        ("baremetal", "CUSTOM_BAREMETAL"),
        ("baremetal-gold", "CUSTOM_BAREMETAL_GOLD"),
        ("a--b..c", "CUSTOM_A_B_C"),
        ("CUSTOM_X", "CUSTOM_CUSTOM_X"),
        ("Größe 1", "CUSTOM_GR_E_1"),
        ("-", "CUSTOM__"),
        ("", ""),
        (None, ""),
        ("g" * 248, f"CUSTOM_{'G' * 248}"),
        ("g" * 249, ""),
    ],
)
def test_a_class_has_the_name_that_nova_gives_it(resource_class: str | None, name: str) -> None:
    assert class_of(resource_class) == name


@pytest.mark.parametrize(
    ("resource_class", "reason"),
    [(None, "no resource class"), ("", "no resource class")],
)
def test_a_node_without_a_class_offers_nothing_and_says_so(resource_class: str | None, reason: str) -> None:
    offer = offered(resource_class=resource_class)

    assert (offer.resource_class, offer.reserved) == ("", True)
    assert reason in offer.reasons[0]


def test_traits_that_placement_does_not_take_are_left_out_and_named_without_reserving_the_node() -> None:
    offer = offered(traits=("HW_CPU_X86_VMX", "CUSTOM_GPU", "CUSTOM_gpu", "NOT_VALID"))

    assert offer.traits == ("CUSTOM_GPU", "HW_CPU_X86_VMX")
    assert not offer.reserved
    assert len(offer.reasons) == 2
    assert "trait 'NOT_VALID' is left out: neither CUSTOM_ nor a standard name" in offer.reasons


def test_a_row_without_a_node_offers_nothing() -> None:
    assert offer_of(NodeRow(id=NODE_ID), STANDARD) == Offer(reasons=("nothing is known of the node yet",))


def test_a_deleted_node_keeps_its_class_and_stays_reserved() -> None:
    assert offered(is_deleted=True).resource_class == GOLD


def test_a_class_that_changes_on_a_free_node_replaces_the_former_one() -> None:
    row = reported(a_row())

    changed = replace(row, node=a_node(resource_class="silver"))

    assert offer_of(changed, STANDARD) == Offer(resource_class="CUSTOM_SILVER", reserved=False)


@pytest.mark.parametrize("resource_class", ["silver", None])
def test_the_former_class_is_kept_and_reserved_while_an_instance_is_on_the_node(
    resource_class: str | None,
) -> None:
    row = reported(a_row(provision_state="active", instance_uuid=INSTANCE))

    offer = offer_of(
        replace(row, node=a_node(resource_class=resource_class, instance_uuid=INSTANCE)), STANDARD
    )

    assert (offer.resource_class, offer.kept_class) == (class_of(resource_class), GOLD)
    assert offer.reserved
    assert f"the former class {GOLD} is still held" in offer.reasons


def test_a_kept_class_stays_through_further_changes_until_it_is_tried_without() -> None:
    row = reported(a_row(instance_uuid=INSTANCE))
    row = reported(replace(row, node=a_node(instance_uuid=INSTANCE, resource_class="silver")))
    row = reported(replace(row, node=a_node(resource_class="bronze")))

    assert row.offer is not None
    assert (row.offer.resource_class, row.offer.kept_class) == ("CUSTOM_BRONZE", GOLD)
    assert row.offer.reserved
    assert without_kept_class(row, STANDARD) == Offer(resource_class="CUSTOM_BRONZE", reserved=False)


def test_a_class_that_comes_back_is_no_former_class() -> None:
    row = reported(a_row(instance_uuid=INSTANCE))
    row = reported(replace(row, node=a_node(instance_uuid=INSTANCE, resource_class="silver")))

    back = offer_of(replace(row, node=a_node()), STANDARD)

    assert back == Offer(resource_class=GOLD, reserved=False)


def test_placement_says_that_the_former_class_is_in_use_and_it_is_kept() -> None:
    row = reported(a_row())
    changed = replace(row, node=a_node(resource_class="silver"))

    offer = keeping_class(offer_of(changed, STANDARD), GOLD)

    assert (offer.resource_class, offer.kept_class, offer.reserved) == ("CUSTOM_SILVER", GOLD, True)
    assert offer.reasons == (f"the former class {GOLD} is still held",)
    # And so it stays, once the row has it.
    assert offer_of(replace(changed, offer=offer), STANDARD) == offer
    assert keeping_class(offer, GOLD) is offer
    assert keeping_class(offer, "CUSTOM_SILVER") is offer


CELLS = CellMap(groups={"rack1": "c1", "rack2": "c2", "": "c0"}, shards={"s3": "c3"})
ROW = NodeRow(id=NODE_ID, node=a_node(conductor_group="rack1"), read_at_us=1)


@pytest.mark.parametrize(
    ("group", "shard", "cells", "cell"),
    [
        ("rack1", None, CELLS, "c1"),
        ("rack1", "s3", CELLS, "c3"),
        ("rack1", "s4", CELLS, "c1"),
        ("", None, CELLS, "c0"),
        ("rack9", None, CELLS, ""),
        ("rack9", None, replace(CELLS, default="c9"), "c9"),
        ("", "s3", CellMap(default="c9"), "c9"),
    ],
)
def test_a_shard_goes_before_a_group_and_the_default_takes_the_rest(
    group: str, shard: str | None, cells: CellMap, cell: str
) -> None:
    assert cell_of(a_node(conductor_group=group, shard=shard), cells) == cell


def test_a_new_node_gets_its_cell() -> None:
    assert decide_cell(ROW, CELLS, can_read=True) == CellPlan("c1")
    assert decide_cell(replace(ROW, cell="c1"), CELLS, can_read=True) == CellPlan("c1")


def test_a_node_that_was_never_read_gets_no_cell_where_shards_decide() -> None:
    heard = replace(ROW, read_at_us=0)

    unknown = decide_cell(heard, CELLS, can_read=True)
    assert (unknown.cell, unknown.wanted) == ("", "")
    assert "not read yet" in unknown.note
    assert decide_cell(replace(heard, cell="c2"), CELLS, can_read=True) == CellPlan("c2")
    # Without REST there is nothing to wait for, and without shards neither.
    assert decide_cell(heard, CELLS, can_read=False) == CellPlan("c1")
    assert decide_cell(heard, replace(CELLS, shards={}), can_read=True) == CellPlan("c1")


def test_a_node_that_no_table_names_has_no_cell_or_keeps_the_one_it_has() -> None:
    row = replace(ROW, node=a_node(conductor_group="rack9"))

    unknown = decide_cell(row, CELLS, can_read=True)
    kept = decide_cell(replace(row, cell="c1"), CELLS, can_read=True)

    assert (unknown.cell, unknown.wanted) == ("", "")
    assert "'rack9'" in unknown.note
    assert (kept.cell, kept.wanted) == ("c1", "")
    assert kept.note.endswith("no table names its cell, it stays in 'c1'")


def test_a_free_node_moves_to_the_cell_of_its_new_group() -> None:
    moves = decide_cell(replace(ROW, cell="c2"), CELLS, can_read=True)

    assert (moves.cell, moves.wanted) == ("c2", "c1")
    assert moves.note == "the node has conductor group 'rack1': it moves from 'c2' to 'c1'"


def test_a_node_with_an_instance_keeps_its_cell_and_says_so() -> None:
    row = replace(ROW, cell="c2", node=a_node(conductor_group="rack1", shard="s3", instance_uuid=INSTANCE))

    kept = decide_cell(row, CELLS, can_read=True)

    assert (kept.cell, kept.wanted) == ("c2", "")
    assert "shard 's3' and conductor group 'rack1'" in kept.note
    assert "while an instance is on it" in kept.note


def test_of_a_row_without_a_node_nothing_is_decided() -> None:
    assert decide_cell(NodeRow(id=NODE_ID), CELLS, can_read=True) == CellPlan(
        "", note="nothing is known of the node yet"
    )
    assert decide_cell(NodeRow(id=NODE_ID, cell="c1"), CELLS, can_read=True) == CellPlan("c1")


def test_the_only_cell_of_a_cloud_is_that_of_all_nodes_that_no_table_names() -> None:
    assert cell_map(("c1",)) == CellMap(default="c1")
    assert cell_map(("c1",), groups={"rack1": "c1"}).default == "c1"
    assert cell_map(("c1",), default="c2").default == "c2"
    assert cell_map(("c1", "c2")).names == ()
    assert cell_map(("c1", "c2"), shards={"s1": "c2"}).names == ("c2",)


def test_a_daemon_does_not_start_without_a_cell_for_any_node() -> None:
    """Its nodes would be known, and none would ever be offered."""
    for stated in ({}, {"MOOR_CELLS": "harbour,island"}):
        addresses = ADDRESSES.read({"MOOR_BUS_URL": "memory://", "MOOR_DB_URL": "sqlite:////x", **stated})
        with pytest.raises(BadSetting, match=r"ironic_cell is '' .*MOOR_IRONIC_CELL.*MOOR_IRONIC_GROUPS"):
            asyncio.run(run(addresses, "d1", IronicSettings()))


def test_the_cells_that_a_node_may_be_in_are_those_of_all_tables() -> None:
    """A daemon takes the orders of each of them."""
    cells = CellMap(groups={"rack1": "c2", "rack2": ""}, shards={"s1": "c1"}, default="c9")

    assert cells.names == ("c1", "c2", "c9")
    assert CellMap(groups={"rack1": "c2"}).names == ("c2",)
