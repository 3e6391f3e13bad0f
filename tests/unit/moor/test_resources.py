"""The table of resources: what its rows say fits the client's methods and the commands, and a list in a terminal is the list of a page."""

import inspect

import pytest
from markupsafe import Markup

from moor.client import Client, Flavor
from moor.commands import command_of, every
from moor.dashboard.resource_pages import html_of, table_of
from moor.resource_commands import FILTERS
from moor.resources import FLAVOR, RESOURCES, ResourceKind
from moor.tables import Amount, styled
from tools.operations import operations, users


@pytest.mark.parametrize("resource", RESOURCES, ids=lambda each: each.word)
def test_a_row_names_methods_of_the_client_and_commands_that_exist(resource: ResourceKind[Flavor]) -> None:
    arguments = inspect.signature(resource.list).parameters
    assert {*resource.filters} <= arguments.keys() & FILTERS.keys()
    assert getattr(Client, resource.list.__name__) is resource.list
    first, *rest = f"{resource.command} list".split()
    command = command_of(first)
    for verb in rest:
        command = getattr(command, "commands", {})[verb]
    flags = {parameter.name for parameter in command.params}
    assert {*resource.filters} <= flags
    assert ("project" in flags) == resource.inside


def test_every_operation_is_used_by_commands_or_is_for_programs() -> None:
    unused = {name for name, where in users(operations()).items() if not where}
    # A program follows, counts and finds; commands do that by other methods.
    assert (
        unused
        == {
            *("console", "details", "evacuate", "events", "find_request", "follow_console", "list_nodes"),
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
