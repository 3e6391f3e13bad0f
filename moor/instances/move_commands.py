"""`moor migrate`, `live-migrate`, `resize`, `confirm`, `revert`, `shelve` and `unshelve`: an instance moves to another host, and the command
follows it. `moor stop`, `start` and `reboot` switch it where it is, and `moor rebuild` builds it anew there.
"""

from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Annotated, Any
from uuid import UUID

import click
from msgspec import Struct

from kit.clock import now
from moor.client import Change, Client, FlavorChange, SentRequest, order_id
from moor.flags import Commands, argument, option
from moor.instances.instances_command import Following, follow_order
from moor.instances.requests import FlavorOptions, ImageOptions, OrderId, image_name_in, move_wait_of
from moor.options import ID, BusUrl, Output, Project, check_writable, say, tell, with_client
from moor.resource_commands import (
    complete_instances,
    completes,
    first_of,
    with_filters,
)
from moor.resources import HISTORY, HOST, IMAGE, MIGRATION
from moor.showing import print_all
from moor.traces import ArrivedInstance, arrived, write_trace

InstanceArgument = Annotated[
    str, argument(metavar=ID, help="An active instance.", completes=complete_instances)
]
MovedArgument = Annotated[
    str, argument(metavar=ID, help="An instance that has moved.", completes=complete_instances)
]
To = Annotated[
    list[str] | None,
    option(
        "--to",
        metavar="HOST",
        help="Only to this host of its cell; may be repeated.",
        completes=completes(HOST),
    ),
]
ConfirmAfter = Annotated[
    int | None,
    option(
        metavar="S",
        show_default=False,
        help="Seconds until a move that arrived confirms itself; 0: at once. Default: 86400.",
    ),
]


WaitForRoom = Annotated[
    int | None,
    option(
        metavar="S",
        show_default=False,
        help="If no host has room, wait for it, at most so many seconds (2592000). Without it, the move is refused at once.",
    ),
]


class MoveOptions(Struct, frozen=True):
    to: To = None
    project: Project = ""
    deadline: Annotated[
        int | None,
        option(
            metavar="S",
            show_default=False,
            help="Seconds until a move that has not arrived fails; with --wait-for-room, from the choice of a host. Default: 3600.",
        ),
    ] = None
    wait_for_room: WaitForRoom = None
    priority: Annotated[
        int | None,
        option(
            show_default=False,
            help="With --wait-for-room: room that becomes free goes to the highest priority first (0 to 100; 0 if not given).",
        ),
    ] = None

    @property
    def fields(self) -> dict[str, Any]:
        """The fields that these options set in the order."""
        return {
            "hosts": tuple(self.to or ()),
            "deadline_s": self.deadline,
            "wait": move_wait_of(self.wait_for_room, self.priority),
        }


def migrate(
    named: Annotated[
        list[str],
        argument(
            metavar=f"{ID}...",
            help="Active instances. Several move to one host.",
            completes=complete_instances,
        ),
    ],
    *,
    move: MoveOptions,
    confirm_after: ConfirmAfter = None,
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Move instances to another host; they are stopped meanwhile. Then confirm the move of one, or revert it.

    Several move to one host with room for all, and need no confirmation. The members of an affinity group move in no other way.
    """
    first, *others = named
    _move(
        following,
        named,
        request_id,
        move.project,
        lambda moor, id_: moor.migrate(first, together=others, confirm_s=confirm_after, **move.fields, **id_),
    )


def live_migrate(
    named: InstanceArgument,
    *,
    move: MoveOptions,
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Move an instance to another host while it runs."""
    _move(
        following,
        [named],
        request_id,
        move.project,
        lambda moor, id_: moor.live_migrate(named, **move.fields, **id_),
    )


def shelve(
    named: InstanceArgument,
    *,
    offload: Annotated[
        bool, option("--offload", help="Save it as an image, and free its host; also if it is shelved.")
    ] = False,
    project: Project = "",
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Stop an instance; it keeps its host and its share until it is unshelved, unless it is offloaded."""
    _move(
        following,
        [named],
        request_id,
        project,
        lambda moor, id_: (moor.offload if offload else moor.shelve)(named, **id_),
    )


def unshelve(
    named: Annotated[str, argument(metavar=ID, help="A shelved instance.", completes=complete_instances)],
    *,
    move: MoveOptions,
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Run a shelved instance again: on its host; or on any suitable one, if it was offloaded."""
    _move(
        following,
        [named],
        request_id,
        move.project,
        lambda moor, id_: moor.unshelve(named, **move.fields, **id_),
    )


def stop(
    named: Annotated[str, argument(metavar=ID, help="An instance.", completes=complete_instances)],
    *,
    project: Project = "",
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Switch an instance off; it keeps its host and its share, also when it moves. Harmless if it is stopped."""
    _move(following, [named], request_id, project, lambda moor, id_: moor.stop(named, **id_))


def start(
    named: Annotated[str, argument(metavar=ID, help="A stopped instance.", completes=complete_instances)],
    *,
    project: Project = "",
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Run a stopped instance again, on its host. Harmless if it is active."""
    _move(following, [named], request_id, project, lambda moor, id_: moor.start(named, **id_))


def reboot(
    named: InstanceArgument,
    *,
    project: Project = "",
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Stop an active instance, and start it again."""
    _move(following, [named], request_id, project, lambda moor, id_: moor.reboot(named, **id_))


def resize(
    named: InstanceArgument,
    *,
    flavor: FlavorOptions,
    unset: Annotated[
        list[str] | None,
        option(
            metavar="KEY", help="An extra spec that is removed, such as resources1:VGPU; may be repeated."
        ),
    ] = None,
    move: MoveOptions,
    confirm_after: ConfirmAfter = None,
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Give an instance another size, on another host; on its own one with --to. Then confirm it, or revert it.

    Only what the options name changes: `--disk 0` drops the disk, and without --disk it stays. --flavor replaces the whole size.
    """
    change = None
    if not flavor.flavor:
        change = flavor.change(unset or ())
        if change == FlavorChange():
            raise click.BadParameter(
                "nothing is named that changes: give --vcpus, --ram, --flavor or another option of the size"
            )
    elif unset:
        raise click.BadParameter(
            f"--unset is {unset[0]!r}, but --flavor names a whole flavor: --unset removes from the one that the instance has"
        )

    async def send(moor: Client, id_: dict[str, Any]) -> SentRequest:
        size = change if change is not None else await flavor.read(moor)
        return await moor.resize(named, size, confirm_s=confirm_after, **move.fields, **id_)

    _move(following, [named], request_id, move.project, send)


def confirm(named: MovedArgument, *, project: Project = "", following: Following) -> None:
    """Confirm a move that has arrived: its first host is freed."""
    _end(following, named, project, lambda moor: moor.confirm(named))


def revert(named: MovedArgument, *, project: Project = "", following: Following) -> None:
    """Revert a move that has arrived: the instance runs on its first host again, with the size that it had."""
    _end(following, named, project, lambda moor: moor.revert(named))


def _move(
    following: Following,
    named: Sequence[str],
    request_id: UUID | None,
    project: str,
    send: Callable[[Client, dict[str, Any]], Awaitable[SentRequest]],
    *,
    what: str = "the move",
) -> None:
    request = order_id(request_id)
    given = {"request_id": request}
    follow_order(
        following, named, lambda moor: send(moor, given), what=what, request=request, project=project
    )


def _end(
    following: Following, named: str, project: str, send: Callable[[Client], Awaitable[SentRequest]]
) -> None:
    """End the last move of the instance, and follow it."""
    follow_order(following, [named], send, what="the move", request=None, project=project)


def rebuild(
    named: Annotated[
        str,
        argument(
            metavar=ID,
            help="An instance that is active, or in error on its host.",
            completes=complete_instances,
        ),
    ],
    *,
    image: Annotated[
        str,
        option(
            metavar="NAME|ID|URL",
            help="The image to build it from: the name of a stored one, or its own id, a uuid, or its URL.",
            completes=completes(IMAGE),
        ),
    ],
    of_image: ImageOptions,
    project: Project = "",
    deadline: Annotated[
        int | None,
        option(
            metavar="S",
            show_default=False,
            help="Seconds until an unfinished rebuild fails. Default: 7200.",
        ),
    ] = None,
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Build the instance anew on its host, from another image; what is on its disk is lost."""
    given = of_image.read(image)
    if not image:
        raise click.BadParameter("--image is empty: name the image to build it from")

    async def send(moor: Client, id_: dict[str, Any]) -> SentRequest:
        if not given:
            # A name that is not stored ends the command before anything is ordered.
            await moor.show_image(image_name_in(image))
        return await moor.rebuild(named, given or image, deadline_s=deadline, **id_)

    _move(following, [named], request_id, project, send, what="the rebuild")


# `moor history`, and `moor migration list|show|abort`: the orders for instances, their senders, and their ends.

migration_app = Commands("Moves of instances: those under way, how others ended, and how one ends.")
migration_app.verb()(confirm)
migration_app.verb()(revert)


history_app = Commands(
    "What was done with instances: the orders for one, or all arrivals as a trace for `moor replay`.",
    otherwise="show",
)


@history_app.verb("show")
def show_history(
    named: Annotated[str, argument(metavar=ID, help="An instance.", completes=complete_instances)],
    bus: BusUrl = "",
    *,
    project: Project = "",
    _output: Output = None,
) -> None:
    """Show the orders for an instance: when each came, from which user, and how it ended."""
    print_all(with_client(bus, lambda moor: _changes(moor, named), project=project), HISTORY)


@history_app.verb("export")
def export(
    file: Annotated[Path, argument(metavar="FILE", help="Where to write it: CSV.")],
    bus: BusUrl = "",
    *,
    project: Project = "",
) -> None:
    """Write which instances were asked for, when, and how long each lived, as a trace for `moor replay`. It names no instance, no
    project and no host.

    Schedulers forget deleted instances after a while ([scheduler] horizon_s), so a trace goes back only so far.
    """
    check_writable("FILE", file)
    count, left_out = with_client(bus, lambda moor: _export(moor, file), project=project)
    say(f"{count:,} instances are in {file}")
    if left_out:
        tell(f"{left_out:,} are left out: they never had a host, or are on bare-metal nodes", "yellow")


async def _export(moor: Client, file: Path) -> tuple[int, int]:
    found: list[ArrivedInstance] = []
    left_out = 0
    async for page in moor.list_instances(order="age").pages():
        for state, details in zip(page.instances, page.details, strict=True):
            amounts = details.size.amounts if details.size is not None and details.placed_at else {}
            ended_at = state.changed_at if state.state == "deleted" else None
            one = arrived(details.accepted_at, ended_at, str(state.request_id), amounts)
            if one is None:
                left_out += 1
            else:
                found.append(one)
    return write_trace(file, found, now()), left_out


async def _changes(moor: Client, named: str) -> list[Change]:
    return [each async for each in moor.history((await moor.show(named)).id)]


@migration_app.verb("list")
@with_filters(MIGRATION)
def list_moves(
    bus: BusUrl = "",
    *,
    limit: Annotated[int, option(min=1, help="How many at most.")] = 1000,
    _output: Output = None,
    **filters: Any,
) -> None:
    """List the moves of all instances, the newest first."""
    moves = with_client(bus, lambda moor: first_of(MIGRATION, moor, limit, **filters))
    print_all(moves, MIGRATION.columns, "no moves")


@migration_app.verb("show")
def show_moves(
    named: Annotated[str, argument(metavar=ID, help="An instance.", completes=complete_instances)],
    bus: BusUrl = "",
    *,
    project: Project = "",
    _output: Output = None,
) -> None:
    """Show the moves of one instance, with who ended them."""
    changes = with_client(bus, lambda moor: _changes(moor, named), project=project)
    moves = [each for each in changes if each.what not in ("boot", "rebuild", "delete")]
    print_all(moves, HISTORY, "it has never moved")


@migration_app.verb("abort")
def abort(
    named: Annotated[str, argument(metavar=ID, help="An instance that moves.", completes=complete_instances)],
    *,
    project: Project = "",
    following: Following,
) -> None:
    """Abort the move of an instance that has not arrived: it stays on its host, or comes back there."""
    _end(following, named, project, lambda moor: moor.abort(named))
