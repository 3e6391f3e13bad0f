"""The table of resources: what its rows say fits the client's methods and the commands, and a list in a terminal is the list of a page."""

import inspect
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import click
import pytest
from markupsafe import Markup
from msgspec import structs

import moor.bare_metal.nodes
import moor.resources
from moor.bare_metal.nodes import NodeReader
from moor.client import Client, Flavor
from moor.commands import command_of, every
from moor.dashboard.rendering import html_of, table_of
from moor.resource_commands import completes, flag_of
from moor.resources import FLAVOR, TRAIT, ResourceKind, resources, shown_by
from moor.tables import Amount, styled
from tools.operations import operations, users


@pytest.mark.parametrize("resource", resources(), ids=lambda each: each.word)
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
    assert {each.word for each in resources()} == rows.keys()
    assert len(rows) == 16
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
