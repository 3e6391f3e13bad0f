"""`moor group`: server groups, whose members are kept apart or together."""

from functools import partial

import typer
from rich.markup import escape

from bus.messages.stored_names import AskGroups, CreateGroup, DeleteGroup, GroupsFound, GroupState
from moor.completing import complete_groups
from moor.message_commands import command_that_sends
from moor.naming import group_id
from moor.options import ID, out
from moor.showing import grid_of
from moor.tables import Columns

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Server groups, whose instances are kept apart or together: create, list, show, delete.",
)


def _print(group: GroupState) -> None:
    grid = grid_of(
        ("group", str(group.id)),
        ("name", escape(group.name)),
        ("project", escape(group.project)),
        ("policy", _policy(group)),
        ("members", str(group.size)),
    )
    for member in group.members:
        grid.add_row("", f"{member.consumer} on {escape(member.host)}")
    out.print(grid)


def _policy(group: GroupState) -> str:
    if group.policy != "anti-affinity" or group.max_per_host == 1:
        return group.policy
    return f"{group.policy}, at most {group.max_per_host} on a host"


GROUPS = Columns[GroupState](
    {
        "id": lambda each: str(each.id),
        "name": lambda each: each.name,
        "project": lambda each: each.project,
        "policy": _policy,
        "members": lambda each: str(each.size),
    },
    ids={"id": lambda _: True},
)

_about_groups = partial(
    command_that_sends,
    answer=GroupsFound,
    items=lambda found: found.groups,
    missing="there is no server group {id}, so nothing was done; `moor group list` shows all groups",
)
app.command("create")(
    _about_groups(
        CreateGroup,
        arguments={"name": "NAME"},
        words="Create a group. `moor boot --group NAME` builds members of it.",
        is_about_one=True,
        show=_print,
    )
)
app.command("list")(
    _about_groups(
        AskGroups,
        fixed=("id", "id_prefix"),
        words="List all groups, with the number of their members.",
        show=GROUPS,
        nothing="no server groups",
    )
)
app.command("show")(
    _about_groups(
        AskGroups,
        arguments={"id": ID},
        named=group_id,
        completes=complete_groups,
        fixed=("name", "id_prefix"),
        words="Show one group with its members and their hosts.",
        is_about_one=True,
        show=_print,
    )
)
app.command("delete")(
    _about_groups(
        DeleteGroup,
        arguments={"id": ID},
        named=group_id,
        completes=complete_groups,
        is_about_one=True,
        show=lambda group: out.print(f"deleted group {group.id}"),
    )
)
