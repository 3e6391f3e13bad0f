"""The commands for bare metal read files and the state of nodes, without any server."""

import json
from pathlib import Path
from uuid import UUID

import pytest
import typer

from engine.flavors import ConfigDriveParts, Flavor, parts_of
from engine.inventories import ProviderId
from ironic_sync.core.node import Node
from ironic_sync.core.offers import CellMap
from ironic_sync.core.rows import NodeRow, Offer
from moor.bare_metal.nodes import NOT_HEARD, NOT_REPORTED, classes_of_nodes, mistakes_in, shown
from moor.clouds.cloud import cells_of_groups
from moor.instances.requests import config_drive_of, drive_of

ID = ProviderId(UUID(int=7))
NODE = Node(id=ID, name="n7", provision_state="available", resource_class="gold")
FREE = Offer(resource_class="CUSTOM_GOLD", reserved=False)
ROW = NodeRow(id=ID, cell="c1", owner="d1", epoch=3, node=NODE, offer=FREE, reported=FREE)


@pytest.mark.parametrize(
    ("flavor", "classes"),
    [
        (Flavor(extra_specs={"resources:CUSTOM_GOLD": "1"}), ("CUSTOM_GOLD",)),
        (Flavor(extra_specs={"resources:CUSTOM_GOLD": "0"}), ()),
        (Flavor(extra_specs={"resources:CUSTOM_GOLD": "preferred"}), ()),
        (Flavor(root_gb=5, extra_specs={"resources:CUSTOM_FPGA": "1"}), ()),
        (
            Flavor(root_gb=5, extra_specs={"resources:CUSTOM_GOLD": "1", "resources:DISK_GB": "0"}),
            ("CUSTOM_GOLD",),
        ),
        (Flavor(extra_specs={"resources:CUSTOM_FPGA": "1", "resources:VGPU": "1"}), ()),
    ],
)
def test_a_flavor_is_for_nodes_if_it_asks_for_their_classes_alone(
    flavor: Flavor, classes: tuple[str, ...]
) -> None:
    assert classes_of_nodes(flavor) == classes


def test_a_config_drive_is_a_url_or_a_file_as_ironic_takes_it(tmp_path: Path) -> None:
    zipped, text, other = (tmp_path / name for name in ("zipped", "text", "other"))
    zipped.write_bytes(b"\x1f\x8b a zipped image")
    text.write_text("H4sgYSB6aXBwZWQgaW1hZ2U=\n")
    other.write_text("#cloud-config")

    assert config_drive_of("http://drives/1") == "http://drives/1"
    assert config_drive_of("") == ""
    assert config_drive_of(str(zipped)) == "H4sgYSB6aXBwZWQgaW1hZ2U="
    assert config_drive_of(str(text)) == "H4sgYSB6aXBwZWQgaW1hZ2U="
    with pytest.raises(typer.BadParameter, match="neither a gzipped image nor the base64 of one"):
        config_drive_of(str(other))


def test_a_config_drive_is_made_of_user_data_metadata_and_a_key(tmp_path: Path) -> None:
    script, key = tmp_path / "setup.sh", tmp_path / "id.pub"
    script.write_text("#!/bin/sh\necho \\u0000 ä\n", encoding="utf-8")
    key.write_text("ssh-ed25519 AAAA ann\n")

    made = drive_of("", script, ["role=db", "note=a=b"], key)

    assert json.loads(made) == {
        "user_data": "#!/bin/sh\necho \\u0000 ä\n",
        "meta_data": {
            "meta": {"role": "db", "note": "a=b"},
            "public_keys": {"moor": "ssh-ed25519 AAAA ann"},
        },
    }
    assert parts_of(made) == ConfigDriveParts(**json.loads(made))
    assert drive_of("http://drives/1", None, None, None) == "http://drives/1"
    assert drive_of("", None, None, None) == ""


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"\x1f\x8b\x08", "--user-data is .*, which is no text"),
        (b"a\0b", "contains the character NUL"),
        (b"x" * (64 * 1024), r"has 655\d\d characters, and a message carries at most 65536"),
    ],
)
def test_user_data_that_no_message_can_carry_is_refused(content: bytes, why: str, tmp_path: Path) -> None:
    file = tmp_path / "data"
    file.write_bytes(content)

    with pytest.raises(typer.BadParameter, match=why):
        drive_of("", file, None, None)


def test_a_config_drive_is_whole_or_made_and_its_files_must_be_there(tmp_path: Path) -> None:
    with pytest.raises(typer.BadParameter, match="give one or the other"):
        drive_of("http://drives/1", None, ["a=b"], None)
    with pytest.raises(typer.BadParameter, match=r"--ssh-key is .*missing"):
        drive_of("", None, None, tmp_path / "missing")
    image = tmp_path / "image"
    image.write_bytes(b"\x1f\x8b" + bytes(60_000))
    with pytest.raises(typer.BadParameter, match="of --config-drive has 80004 characters"):
        drive_of(str(image), None, None, None)


def test_each_cell_has_a_conductor_group_and_what_is_stated_goes_before() -> None:
    usual = cells_of_groups(("a", "b"))
    assert (usual.groups, usual.default) == ({"a": "a", "b": "b"}, "a")

    stated = cells_of_groups(
        ("a", "b"), CellMap(groups={"a": "b", "rack1": "a"}, shards={"s": "a"}, default="b")
    )
    assert stated == CellMap(groups={"a": "b", "b": "b", "rack1": "a"}, shards={"s": "a"}, default="b")


def test_nodes_and_flavors_that_are_never_used_are_named() -> None:
    without = NodeRow(id=ID, owner="d1", node=NODE, cell_note="group 'rack9': no table names its cell")
    unnamed = Node(id=ID, name="n8", provision_state="available")
    nodes = [shown(ID, NODE, ROW), shown(ID, NODE, without), shown(ID, unnamed, None), shown(ID, None, ROW)]
    gold, silver = (
        Flavor(name=name, extra_specs={f"resources:CUSTOM_{name.upper()}": "1"})
        for name in ("gold", "silver")
    )

    assert mistakes_in(nodes, {}) == (
        "node n7: it has no cell: group 'rack9': no table names its cell",
        "node n8: it has no resource class",
    )
    assert mistakes_in(nodes[:1], {"gold": gold}) == ()
    assert mistakes_in(nodes[:1], {"silver": silver}) == (
        "class CUSTOM_GOLD of 1 node: no stored flavor requests it",
        "flavor silver: no node has CUSTOM_SILVER",
    )


@pytest.mark.parametrize(
    ("node", "row", "amount", "reasons"),
    [
        (NODE, ROW, 1, ()),
        (NODE, None, 0, ("no daemon knows the node yet",)),
        (None, ROW, 1, ("Ironic has no such node",)),
        (
            NODE,
            NodeRow(id=ID, cell="c1", owner="d1", node=NODE, offer=Offer(reasons=("why",)), reported=FREE),
            1,
            ("why", NOT_REPORTED),
        ),
        (
            Node(id=ID, provision_state="active", resource_class="gold"),
            ROW,
            1,
            (NOT_HEARD,),
        ),
        (
            NODE,
            NodeRow(id=ID, cell="c1", node=NODE, offer=FREE),
            0,
            ("no daemon has taken the node yet", NOT_REPORTED),
        ),
        (
            NODE,
            NodeRow(id=ID, owner="d1", node=NODE, offer=FREE, cell_note="no table names its cell"),
            0,
            ("no table names its cell",),
        ),
    ],
)
def test_the_reason_why_a_node_is_not_offered_is_shown(
    node: Node | None, row: NodeRow | None, amount: int, reasons: tuple[str, ...]
) -> None:
    offered = shown(ID, node, row).offered

    assert (offered.amount, offered.reasons) == (amount, reasons)
