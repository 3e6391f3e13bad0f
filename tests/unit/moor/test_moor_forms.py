"""Tables for any width lose no column and break no id; every command that shows things prints it in four forms."""

import io
import json
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from msgspec import Struct
from rich.console import Console

from moor.commands import app, command_of, names
from moor.flags import command
from moor.options import Output
from moor.showing import print_all
from moor.tables import Columns, Rows, unique_length

ASKED = (
    "list",
    "show",
    "history",
    "explain",
    "plan",
    "candidates",
    "usage",
    "audit",
    "settings",
    "tree",
    "inventory",
)


class Ship(Struct, frozen=True):
    id: UUID
    name: str
    port: str
    flag: str
    is_sunk: bool = False
    log: str = ""


SHIPS = (
    Ship(UUID("01a20d47-58ad-5123-b3a8-3dca306e9749"), "anna", "harbour-of-the-north", "f" * 12),
    Ship(UUID("01a20d47-58ad-5124-b3a8-3dca306e9749"), "berta", "quay", "g" * 14, log="all is well " * 9),
    Ship(UUID("01a20d47-58ad-5124-b3a9-3dca306e9749"), "carla", "quay", "h" * 30),
    Ship(UUID("01a20d47-58ad-5124-b3a9-3dca306e0000"), "dora", "", "", is_sunk=True),
)
COLUMNS = Columns[Ship](
    {
        "id": lambda each: str(each.id),
        "name": lambda each: each.name,
        "port": lambda each: each.port,
        "flag": lambda each: each.flag,
        "log": lambda each: each.log,
    },
    prose=("log",),
    ids={"id": lambda each: not each.is_sunk},
)


def printed(ships: tuple[Ship, ...], width: int) -> list[str]:
    out = io.StringIO()
    Console(file=out, width=width).print(Rows(ships, COLUMNS), crop=False)
    return out.getvalue().splitlines()


def test_ids_are_whole_if_there_is_room_and_of_what_is_only_found_by_the_whole_id() -> None:
    wide = "\n".join(printed(SHIPS[:1], 200))
    assert str(SHIPS[0].id) in wide
    narrow = "\n".join(printed(SHIPS[:1] + SHIPS[3:], 60))
    assert str(SHIPS[0].id) not in narrow
    assert str(SHIPS[0].id)[:18] in narrow
    assert str(SHIPS[3].id) in narrow


def test_a_short_id_has_the_time_and_a_part_of_the_rest_and_ends_with_a_digit() -> None:
    assert unique_length(["01a20d47-58ad-5123-b3a8-3dca306e9749"]) == 18
    assert unique_length([]) == 18
    # The 18 first characters are the same, and the next one is a dash.
    assert (
        unique_length(["01a20d47-58ad-5123-b3a8-3dca306e9749", "01a20d47-58ad-5123-c3a8-3dca306e9749"]) == 20
    )


def leaves(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    parts = getattr(command, "commands", {})
    if not parts or getattr(command, "invoke_without_command", False):
        yield name, command
    for part in parts.values():
        yield from leaves(part, f"{name} {part.name}")


ALL = dict(each for name in names() for each in leaves(command_of(name), name))


@pytest.mark.parametrize("name", ALL)
def test_every_command_that_shows_things_has_the_four_forms(name: str) -> None:
    flags = {flag for option in ALL[name].params for flag in option.opts}
    # The flag of `moor load` names a file.
    assert not flags & {"--json", "--wide"} or name == "load"
    if name.rsplit(maxsplit=1)[-1] in ASKED:
        assert "-o" in flags


def listed(ships: tuple[Ship, ...], *words: str) -> str:
    """What a command prints that lists these ships."""

    def list_ships(_output: Output = None) -> None:
        print_all(ships, COLUMNS, "no ships")

    return CliRunner().invoke(command(list_ships), words).output


def test_a_document_has_every_field_and_no_items_are_a_document_too() -> None:
    assert json.loads(listed(SHIPS[3:], "-o", "json")) == [
        {"id": str(SHIPS[3].id), "name": "dora", "port": "", "flag": "", "is_sunk": True, "log": ""}
    ]
    assert [listed((), "-o", form) for form in ("json", "yaml", "table")] == ["[]\n", "[]\n", "no ships\n"]


def test_another_form_is_refused() -> None:
    ended = CliRunner(env={"COLUMNS": "300"}).invoke(app, ["list", "-o", "xml"])
    assert ended.exit_code == 2
    assert "'xml' is none of table, wide, json, yaml" in ended.output
