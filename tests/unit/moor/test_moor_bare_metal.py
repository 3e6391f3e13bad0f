"""The commands for bare metal read files and the state of nodes, without any server."""

from pathlib import Path

import click
import pytest

from ironic_sync.core.offers import CellMap
from moor.clouds.cloud import cells_of_groups
from moor.instances.requests import DriveOptions


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

    with pytest.raises(click.BadParameter, match=why):
        DriveOptions(user_data=file).read()


def test_each_cell_has_a_conductor_group_and_what_is_stated_goes_before() -> None:
    usual = cells_of_groups(("a", "b"))
    assert (usual.groups, usual.default) == ({"a": "a", "b": "b"}, "a")

    stated = cells_of_groups(
        ("a", "b"), CellMap(groups={"a": "b", "rack1": "a"}, shards={"s": "a"}, default="b")
    )
    assert stated == CellMap(groups={"a": "b", "b": "b", "rack1": "a"}, shards={"s": "a"}, default="b")
