"""`moor group`: server groups, whose members are kept apart or together."""

import typer
from rich.markup import escape

from bus.messages.groups import AskGroups, CreateGroup, DeleteGroup, GroupsFound, GroupState
from moor.client import asked, asked_for_all
from moor.option_structs import with_arguments
from moor.options import AsJson, BusUrl, Project, fail, out
from moor.showing import grid_of, print_all, print_one
from moor.tables import Columns

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Server groups, whose instances are kept apart or together: create, list, show, delete.",
)

PAGE = 200


@app.command()
@with_arguments(name="NAME")
def create(order: CreateGroup, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Create a group. `moor boot --group ID` builds members of it."""
    answer = asked(bus, order, GroupsFound, operates=False)
    print_one(answer.groups[0], _print, as_json=as_json)


@app.command("list")
def list_groups(bus: BusUrl = "", *, project: Project = "", as_json: AsJson = False) -> None:
    """List all groups, with the number of their members."""
    question = AskGroups(project=project, limit=PAGE)
    found = asked_for_all(bus, question, GroupsFound, lambda page: page.groups, operates=False)
    print_all(found, GROUPS, "no server groups", as_json=as_json)


@app.command()
@with_arguments(id="ID")
def show(question: AskGroups, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    """Show one group with its members and their hosts."""
    print_one(_only(bus, question), _print, as_json=as_json)


@app.command()
@with_arguments(id="ID")
def delete(order: DeleteGroup, bus: BusUrl = "", *, as_json: AsJson = False) -> None:
    deleted = _only(bus, order)
    print_one(deleted, lambda gone: out.print(f"deleted group {gone.id}", highlight=False), as_json=as_json)


def _only(bus: str, message: AskGroups | DeleteGroup) -> GroupState:
    found = asked(bus, message, GroupsFound, operates=False).groups
    if not found:
        fail(
            f"there is no server group {message.id}, so nothing was done; `moor group list` shows all groups"
        )
    return found[0]


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
    out.print(grid, highlight=False)


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
    }
)
