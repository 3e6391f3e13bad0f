"""The table of resources: what its rows say fits the client's methods and the commands, and a list in a terminal is the list of a page. Tables for any
width lose no column and break no id; every command that shows things prints it in four forms.
"""

import inspect
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from uuid import UUID

import click
import pytest
from click.testing import CliRunner
from markupsafe import Markup
from msgspec import Struct, structs
from rich.console import Console

import moor.bare_metal.nodes
import moor.resources
from moor.bare_metal.nodes import NODE, NodeReader
from moor.client import Client, Flavor
from moor.commands import command_of, every, shown_by
from moor.dashboard.rendering import html_of, table_of
from moor.flags import command
from moor.options import Output
from moor.resource_commands import completes, flag_of
from moor.resources import FLAVOR, RESOURCES, TRAIT, ResourceKind
from moor.showing import print_all, print_json
from moor.tables import Amount, Columns, Rows, styled, unique_length
from tests.unit.moor.test_moor_typos import COMMANDS
from tools.operations import operations, users


@pytest.mark.parametrize("resource", [*RESOURCES, NODE], ids=lambda each: each.word)
def test_a_row_names_methods_of_the_client_and_commands_that_exist(resource: ResourceKind[Flavor]) -> None:
    arguments = inspect.signature(resource.list).parameters
    assert {*resource.filters} <= arguments.keys()
    assert all(flag_of(resource, name) for name in resource.filters)
    # Nodes are read from Ironic and the daemons, and not from the bus.
    of = NodeReader if resource.word == "node" else Client
    assert getattr(of, resource.list.__name__) is resource.list
    first, *rest = f"{resource.command} list".split()
    command = command_of(first)
    for verb in rest:
        command = getattr(command, "commands", {})[verb]
    flags = {parameter.name for parameter in command.params}
    assert {*resource.filters} <= flags
    assert ("project" in flags) == resource.inside
    assert (
        shown_by(resource.word) == f"`moor {f'{resource.command} list'.strip()}` shows all {resource.several}"
    )


def test_every_row_is_in_the_table_and_its_methods_are_about_one_thing() -> None:
    rows = {
        each.word: each
        for module in (moor.resources, moor.bare_metal.nodes)
        for each in vars(module).values()
        if isinstance(each, ResourceKind)
    }
    assert {each.word for each in (*RESOURCES, NODE)} == rows.keys()
    assert len(rows) == 21
    for row in rows.values():
        one = {
            method.__name__.partition("_")[2]
            for method in (row.show, row.delete)
            if method is not None and not method.__name__.startswith("_")
        }
        assert len(one) <= 1, row.word
        assert all(row.list.__name__.startswith(f"list_{name}") for name in one)


def test_completion_reads_on_until_it_has_found_what_begins_so() -> None:
    @asynccontextmanager
    async def nowhere(**_: object) -> AsyncIterator[None]:
        yield

    async def numbers(_: None) -> list[str]:
        return [f"web-{number}" for number in range(1000)] + ["zz"]

    kind = structs.replace(TRAIT, list=numbers, opened=nowhere)
    context = click.Context(click.Command("show"))
    parameter = click.Argument(["name"])
    assert completes(kind)(context, parameter, "z") == ["zz"]
    assert len(completes(kind)(context, parameter, "web")) == 200


def test_every_operation_is_used_by_commands_or_is_for_programs() -> None:
    unused = {name for name, where in users(operations()).items() if not where}
    # A program follows, counts and finds; commands do that by other methods.
    assert (
        unused
        == {
            *("console", "evacuate", "events", "find_request", "follow_console"),
            *("show_quota", "list_quotas"),
        }
        & unused
    )
    assert len(every()) > 40


def test_a_cell_of_a_page_says_what_the_terminal_says() -> None:
    assert html_of("<b>&") == Markup("&lt;b&gt;&amp;")
    assert html_of(styled("[red]down[/red] by order")) == Markup('<span class="bad">down</span> by order')
    assert "12 / 128" in html_of(Amount(12, 128))
    assert Amount(12, 128).text.plain == "12/128 █░░░░░░░"
    small = Flavor(name="small", vcpus=2)
    ((name, vcpus, *_),) = table_of(FLAVOR.columns, [small], lambda each: f"/x/{each.name}", "").rows
    assert (name.html, name.link, vcpus.html, vcpus.is_number) == ("small", "/x/small", "2", True)


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


ALL = {" ".join(words): found for words, found in COMMANDS}


@pytest.mark.parametrize("name", ALL)
def test_every_command_that_shows_things_has_the_four_forms(name: str) -> None:
    flags = {flag for option in ALL[name].params for flag in option.opts}
    # The flag of these names a file.
    assert not flags & {"--json", "--wide"} or name in ("load", "replay")
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


def test_a_name_that_a_stranger_chose_does_not_command_the_terminal() -> None:
    odd = structs.replace(SHIPS[2], name="\x1b[2Jred\x9b")
    shown = listed((odd,))

    assert r"\u001b[2" in shown
    # A column is as wide as what is shown.
    _, first, second = printed((odd, SHIPS[2]), 200)
    assert first.index("quay") == second.index("quay")
    assert not {"\x1b", "\x9b"} & {*shown}


def test_a_program_reads_what_was_printed_whatever_is_in_it(capsys: pytest.CaptureFixture[str]) -> None:
    odd = "fa:16:3e:00:00:01 :smile: [bold]x[/bold] \x07\x1b[31m\r\n\t\u2028é\x7f" + "a long line " * 100

    print_json({odd: [odd, 1, 2.5, None, True]})

    assert json.loads(capsys.readouterr().out) == {odd: [odd, 1, 2.5, None, True]}
