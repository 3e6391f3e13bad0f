"""`moor group`: server groups, whose members are kept apart or together."""

from typing import Annotated
from uuid import UUID, uuid4

import typer
from rich.markup import escape

from bus.message import GroupId
from bus.messages.groups import AskGroups, CreateGroup, DeleteGroup, GroupsFound, GroupState
from moor.client import asked, asked_for_all
from moor.options import AsJson, BusUrl, Project, fail, out, read_uuid, wrong_value
from moor.showing import grid_of, print_all, print_one
from moor.tables import Columns

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Server groups, whose instances are kept apart or together: create, list, show, delete.",
)

POLICIES = ("affinity", "anti-affinity", "soft-affinity", "soft-anti-affinity")
PAGE = 200

Id = Annotated[
    UUID, typer.Argument(parser=read_uuid, metavar="ID", help="A group's id, from `moor group list`.")
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The group's name, for people.")],
    bus: BusUrl = "",
    *,
    policy: Annotated[
        str,
        typer.Option(
            metavar="|".join(POLICIES), help="Together or apart; a soft policy is only a preference."
        ),
    ],
    max_per_host: Annotated[
        int, typer.Option(min=1, help="With anti-affinity: how many members one host may have.")
    ] = 1,
    project: Project = "",
    id_: Annotated[
        UUID | None,
        typer.Option(
            "--id",
            parser=read_uuid,
            show_default=False,
            help="An id of your choice: repeated with the same content, it is the same group.",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create a group. `moor boot --group ID` builds members of it."""
    if policy not in POLICIES:
        with wrong_value():
            raise ValueError(f"--policy is {policy!r}, must be one of {', '.join(POLICIES)}")
    order = CreateGroup(
        id=GroupId(id_ or uuid4()),
        policy=policy,  # type: ignore[arg-type]
        max_per_host=max_per_host,
        name=name,
        project=project,
    )
    answer = asked(bus, order, GroupsFound, operates=False)
    print_one(answer.groups[0], _print, as_json=as_json)


@app.command("list")
def list_groups(bus: BusUrl = "", *, project: Project = "", as_json: AsJson = False) -> None:
    """List all groups, with the number of their members."""
    question = AskGroups(project=project, limit=PAGE)
    found = asked_for_all(bus, question, GroupsFound, lambda page: page.groups, operates=False)
    print_all(found, GROUPS, "no server groups", as_json=as_json)


@app.command()
def show(group: Id, bus: BusUrl = "", *, project: Project = "", as_json: AsJson = False) -> None:
    """Show one group with its members and their hosts."""
    question = AskGroups(id=GroupId(group), project=project)
    found = asked(bus, question, GroupsFound, operates=False)
    print_one(_only(group, found), _print, as_json=as_json)


@app.command()
def delete(group: Id, bus: BusUrl = "", *, project: Project = "", as_json: AsJson = False) -> None:
    """Delete a group: nothing can join it any more. Its members stay, and are kept apart or together as long as they live."""
    order = DeleteGroup(id=GroupId(group), project=project)
    deleted = _only(group, asked(bus, order, GroupsFound, operates=False))
    print_one(deleted, lambda gone: out.print(f"deleted group {gone.id}", highlight=False), as_json=as_json)


def _only(group: UUID, found: GroupsFound) -> GroupState:
    if not found.groups:
        fail(f"there is no server group {group}, so nothing was done; `moor group list` shows all groups")
    return found.groups[0]


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
