"""Which node may be claimed, of which class, with which traits, in which cell, and why not."""

import asyncio
from typing import Any

import os_traits
import pytest
from msgspec import structs
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


USED = reported(a_row(provision_state="active", instance_uuid=INSTANCE))
OF_SILVER = reported(replace(USED, node=a_node(instance_uuid=INSTANCE, resource_class="silver")))
SILVER = replace(reported(a_row()), node=a_node(resource_class="silver"))
STILL_HELD = f"the former class {GOLD} is still held"
# Rows, and what they offer, as far as it matters.
OFFERS: dict[str, tuple[NodeRow, dict[str, object]]] = {
    **{
        f"a node that is available is offered whole: {state}": (
            a_row(provision_state=state),
            structs.asdict(Offer(resource_class=GOLD, reserved=False)),
        )
        for state in ("available", None)
    },
    **{
        f"no power state but error stands against an offer: {power}": (
            a_row(power_state=power),
            {"reserved": False},
        )
        for power in (None, "power on", "power off", "rebooting", "soft power off")
    },
    "a doubt that does not hold the node leaves it offered": (
        a_row(doubts=("its traits changed",)),
        {"reserved": False},
    ),
    **{
        f"a node without a class offers nothing and says so: {name}": (
            a_row(resource_class=name),
            {
                "resource_class": "",
                "reserved": True,
                "reasons": ("the node has no resource class",),
            },
        )
        for name in (None, "")
    },
    "traits that placement does not take are left out and named without reserving the node": (
        a_row(traits=("HW_CPU_X86_VMX", "CUSTOM_GPU", "CUSTOM_gpu", "NOT_VALID")),
        {
            "traits": ("CUSTOM_GPU", "HW_CPU_X86_VMX"),
            "reserved": False,
            "reasons": (
                "trait 'CUSTOM_gpu' is left out: neither CUSTOM_ nor a standard name",
                "trait 'NOT_VALID' is left out: neither CUSTOM_ nor a standard name",
            ),
        },
    ),
    **{
        f"a property of the node says where it is: {said!r}": (
            a_row(properties={"place": said, "cpu_arch": "x86_64"}),
            {"place": place, "reserved": False, "reasons": why},
        )
        for said, place, why in (
            ("dc1/rack2", "dc1/rack2", ()),
            (7, "7", ()),
            (None, "", ()),
            (
                "/".join("d" * 9),
                "",
                (
                    "property place 'd/d/d/d/d/d/d/d/d' is left out: a place has at most 8 names, and this has 9",
                ),
            ),
        )
    },
    "a row without a node offers nothing": (
        NodeRow(id=NODE_ID),
        structs.asdict(Offer(reasons=("nothing is known of the node yet",))),
    ),
    "a deleted node keeps its class and stays reserved": (
        a_row(is_deleted=True),
        {"resource_class": GOLD, "reserved": True},
    ),
    "a class that changes on a free node replaces the former one": (
        SILVER,
        structs.asdict(Offer(resource_class="CUSTOM_SILVER", reserved=False)),
    ),
    **{
        f"the former class is kept and reserved while an instance is on the node: {name}": (
            replace(USED, node=a_node(resource_class=name, instance_uuid=INSTANCE)),
            {"resource_class": class_of(name), "kept_class": GOLD, "reserved": True},
        )
        for name in ("silver", None)
    },
    "the former class is a reason": (
        replace(USED, node=a_node(resource_class="silver", instance_uuid=INSTANCE)),
        {"reasons": (STILL_HELD, f"instance {INSTANCE} is on the node")},
    ),
    "a kept class stays through further changes": (
        replace(OF_SILVER, node=a_node(resource_class="bronze")),
        {"resource_class": "CUSTOM_BRONZE", "kept_class": GOLD, "reserved": True},
    ),
    "a class that comes back is no former class": (
        replace(OF_SILVER, node=a_node()),
        structs.asdict(Offer(resource_class=GOLD, reserved=False)),
    ),
}


@pytest.mark.parametrize("case", OFFERS)
def test_what_a_row_offers(case: str) -> None:
    row, says = OFFERS[case]
    offer = structs.asdict(offer_of(row, STANDARD, "place"))

    assert {name: offer[name] for name in says} == says


def test_a_kept_class_may_be_tried_without() -> None:
    bronze = reported(replace(OF_SILVER, node=a_node(resource_class="bronze")))

    assert without_kept_class(bronze, STANDARD) == Offer(resource_class="CUSTOM_BRONZE", reserved=False)


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


def test_placement_says_that_the_former_class_is_in_use_and_it_is_kept() -> None:
    offer = keeping_class(offer_of(SILVER, STANDARD), GOLD)

    assert (offer.resource_class, offer.kept_class, offer.reserved) == ("CUSTOM_SILVER", GOLD, True)
    assert offer.reasons == (STILL_HELD,)
    # And so it stays, once the row has it.
    assert offer_of(replace(SILVER, offer=offer), STANDARD) == offer
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


NOT_READ = "the node was not read yet, and Ironic's notifications have no shard"
NO_TABLE = "the node has conductor group 'rack9': no table names its cell"
HEARD, IN_RACK_9 = replace(ROW, read_at_us=0), replace(ROW, node=a_node(conductor_group="rack9"))
WITH_INSTANCE = a_node(conductor_group="rack1", shard="s3", instance_uuid=INSTANCE)


@pytest.mark.parametrize(
    ("row", "cells", "can_read", "plan"),
    [
        (ROW, CELLS, True, CellPlan("c1")),
        (replace(ROW, cell="c1"), CELLS, True, CellPlan("c1")),
        # A node that was never read gets no cell where shards decide.
        (HEARD, CELLS, True, CellPlan("", note=NOT_READ)),
        (replace(HEARD, cell="c2"), CELLS, True, CellPlan("c2")),
        # Without REST there is nothing to wait for, and without shards neither.
        (HEARD, CELLS, False, CellPlan("c1")),
        (HEARD, replace(CELLS, shards={}), True, CellPlan("c1")),
        (IN_RACK_9, CELLS, True, CellPlan("", note=NO_TABLE)),
        (
            replace(IN_RACK_9, cell="c1"),
            CELLS,
            True,
            CellPlan("c1", note=f"{NO_TABLE}, it stays in 'c1'"),
        ),
        # A free node moves to the cell of its new group; one with an instance stays.
        (
            replace(ROW, cell="c2"),
            CELLS,
            True,
            CellPlan("c2", "c1", "the node has conductor group 'rack1': it moves from 'c2' to 'c1'"),
        ),
        (
            replace(ROW, cell="c2", node=WITH_INSTANCE),
            CELLS,
            True,
            CellPlan(
                "c2",
                note="the node has shard 's3' and conductor group 'rack1': it stays in 'c2' while an instance is on it",
            ),
        ),
        (NodeRow(id=NODE_ID), CELLS, True, CellPlan("", note="nothing is known of the node yet")),
        (NodeRow(id=NODE_ID, cell="c1"), CELLS, True, CellPlan("c1")),
    ],
)
def test_which_cell_a_node_gets_and_why_not_the_one_of_the_tables(
    row: NodeRow, cells: CellMap, *, can_read: bool, plan: CellPlan
) -> None:
    assert decide_cell(row, cells, can_read=can_read) == plan


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
