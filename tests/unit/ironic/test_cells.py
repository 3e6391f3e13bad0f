"""Which cell a node belongs to, and what becomes of a node whose group or shard changes."""

import asyncio

import pytest
from msgspec.structs import replace

from bus.addresses import ADDRESSES
from ironic_sync.__main__ import run
from ironic_sync.core.offers import CellMap, CellPlan, cell_map, cell_of, decide_cell
from ironic_sync.core.rows import NodeRow
from ironic_sync.settings import IronicSettings
from kit.settings import BadSetting
from tests.unit.ironic.captured import INSTANCE, NODE_ID, a_node

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
