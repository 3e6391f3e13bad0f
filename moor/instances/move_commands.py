"""`moor migrate`, `live-migrate`, `resize`, `confirm`, `revert`, `shelve` and `unshelve`: an instance moves to another host, and the command
follows it. `moor stop`, `start` and `reboot` switch it where it is, and `moor rebuild` builds it anew there.
"""

from collections.abc import Sequence
from functools import partial
from typing import Annotated, Any
from uuid import UUID

import click
from msgspec import Struct

from bus.messages.build import FlavorChange, MoveEnd, MoveKind, RebuildInstance
from bus.messages.moves import AskHistory, AskMoves, Change, EndMove, HistoryFound, MoveInstance, MovesFound
from engine.flavors import InstanceId
from moor.asking import CommandClient, ask_bus, hosts_of, pages_of
from moor.client.bus_client import has_ended, rests, why_not_moved, why_not_rebuilt
from moor.client.requests import order_id
from moor.completing import complete_hosts, complete_images, complete_instances
from moor.flags import Commands, argument, option
from moor.instances.instances_command import End, Following, follow_order
from moor.instances.requests import (
    FlavorOptions,
    ImageOptions,
    OrderId,
    image_name_in,
    move_wait_of,
    stored_image,
)
from moor.message_commands import command_that_sends
from moor.naming import instance_id
from moor.options import ID, BusUrl, Output, Project, fail
from moor.showing import check_known, print_all, size_in_words, time_in_words
from moor.tables import Columns

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
        completes=complete_hosts,
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
            "project": self.project,
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
    _move(following, named, "migrate", request_id, **move.fields, confirm_s=confirm_after)


def live_migrate(
    named: InstanceArgument,
    *,
    move: MoveOptions,
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Move an instance to another host while it runs."""
    _move(following, [named], "live-migrate", request_id, **move.fields)


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
    _move(following, [named], "offload" if offload else "shelve", request_id, project=project)


def unshelve(
    named: Annotated[str, argument(metavar=ID, help="A shelved instance.", completes=complete_instances)],
    *,
    move: MoveOptions,
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Run a shelved instance again: on its host; or on any suitable one, if it was offloaded."""
    _move(following, [named], "unshelve", request_id, **move.fields)


def stop(
    named: Annotated[str, argument(metavar=ID, help="An instance.", completes=complete_instances)],
    *,
    project: Project = "",
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Switch an instance off; it keeps its host and its share, also when it moves. Harmless if it is stopped."""
    _move(following, [named], "stop", request_id, project=project)


def start(
    named: Annotated[str, argument(metavar=ID, help="A stopped instance.", completes=complete_instances)],
    *,
    project: Project = "",
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Run a stopped instance again, on its host. Harmless if it is active."""
    _move(following, [named], "start", request_id, project=project)


def reboot(
    named: InstanceArgument,
    *,
    project: Project = "",
    request_id: OrderId = None,
    following: Following,
) -> None:
    """Stop an active instance, and start it again."""
    _move(following, [named], "reboot", request_id, project=project)


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
    if flavor.flavor:
        if unset:
            raise click.BadParameter(
                f"--unset is {unset[0]!r}, but --flavor names a whole flavor: --unset removes from the one that the instance has"
            )
        size: dict[str, Any] = {"flavor": flavor.read(following.settings, project=move.project)}
    else:
        size = {"change": flavor.change(unset or ())}
        if size["change"] == FlavorChange():
            raise click.BadParameter(
                "nothing is named that changes: give --vcpus, --ram, --flavor or another option of the size"
            )
    _move(
        following,
        [named],
        "resize",
        request_id,
        **size,
        **move.fields,
        confirm_s=confirm_after,
    )


def confirm(named: MovedArgument, *, project: Project = "", following: Following) -> None:
    """Confirm a move that has arrived: its first host is freed."""
    end(following, named, "confirm", project)


def revert(named: MovedArgument, *, project: Project = "", following: Following) -> None:
    """Revert a move that has arrived: the instance runs on its first host again, with the size that it had."""
    end(following, named, "revert", project)


def _move(
    following: Following,
    named: Sequence[str],
    kind: MoveKind,
    request_id: UUID | None,
    *,
    project: str,
    **fields: Any,
) -> None:
    request = order_id(request_id)

    async def order(_: CommandClient, instances: Sequence[InstanceId]) -> MoveInstance:
        first, *others = instances
        return MoveInstance(
            request_id=request,
            instance=first,
            kind=kind,
            project=project,
            together=tuple(others),
            **fields,
        )

    follow_order(following, named, order, _ARRIVAL, request=request, project=project)


def end(following: Following, named: str, how: MoveEnd, project: str) -> None:
    """End the last move of the instance, and follow it."""

    async def order(asking: CommandClient, instances: Sequence[InstanceId]) -> EndMove:
        found = await asking.instances(instances, project)
        if not found:
            fail(f"there is no instance {named}; `moor list` shows all instances")
        state = found[0]
        if state.move is None:
            fail(f"instance {named} has never moved: there is nothing to end")
        return EndMove(request_id=state.move.request_id, instance=state.id, how=how, project=project)

    follow_order(following, [named], order, _ARRIVAL, request=None, project=project)


_ARRIVAL = End[MoveInstance | EndMove](
    "the move", lambda state, order: rests(state, order.request_id), why_not_moved
)


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
            completes=complete_images,
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
    request = order_id(request_id)

    async def order(asking: CommandClient, instances: Sequence[InstanceId]) -> RebuildInstance:
        (instance,) = instances
        if not given:
            await stored_image(asking, image_name_in(image), project)
        return RebuildInstance(
            request_id=request,
            instance=instance,
            image=given,
            image_name="" if given else image,
            project=project,
            deadline_s=deadline,
        )

    end = End[RebuildInstance]("the rebuild", lambda state, _: has_ended(state), why_not_rebuilt)
    follow_order(following, [named], order, end, request=request, project=project)


# `moor history`, and `moor migration list|show|abort`: the orders for instances, their senders, and their ends.

PAGE = 200


migration_app = Commands("Moves of instances: those under way, how others ended, and how one ends.")
migration_app.verb()(confirm)
migration_app.verb()(revert)


def _changes(found: HistoryFound) -> Sequence[Change] | None:
    return None if found.instance is None else found.changes


def _moves(found: HistoryFound) -> Sequence[Change] | None:
    changes = _changes(found)
    return changes and [each for each in changes if each.what not in ("boot", "rebuild", "delete")]


def how_it_ended(change: Change) -> str:
    if not change.outcome:
        return "goes on"
    at = f" at {time_in_words(change.ended_at)}" if change.ended_at else ""
    by = f" by {change.ended_by}" if change.ended_by else ""
    why = f": {change.failure}" if change.failure else ""
    return f"{change.outcome}{at}{by}{why}"


HISTORY = Columns[Change](
    {
        "when": lambda each: time_in_words(each.asked_at),
        "what": lambda each: each.what,
        "by": lambda each: each.by,
        "from": lambda each: each.source,
        "to": lambda each: each.destination,
        "size": lambda each: size_in_words(each.size) if each.size else "",
        "how it ended": how_it_ended,
    },
    prose=("size", "how it ended"),
)
MOVES = Columns[Change](
    {
        "instance": lambda each: str(each.instance),
        "what": lambda each: each.what,
        "from": lambda each: each.source,
        "to": lambda each: each.destination,
        "how it ended": how_it_ended,
    },
    prose=("how it ended",),
    # The instance of a move that is over may be deleted.
    ids={"instance": lambda each: not each.outcome},
)
_about_an_instance = partial(
    command_that_sends,
    AskHistory,
    arguments={"instance": ID},
    named=instance_id,
    completes=complete_instances,
    answer=HistoryFound,
    missing="there is no instance {instance}; `moor list` shows all instances",
    show=HISTORY,
)
history = _about_an_instance(
    words="Show the orders for an instance: when each came, from which user, and how it ended.",
    items=_changes,
)


@migration_app.verb("list")
def list_moves(
    bus: BusUrl = "",
    *,
    host: Annotated[str, option(help="Only moves from this host, or to it.", completes=complete_hosts)] = "",
    ended: Annotated[bool, option("--all", help="Also moves that are over.")] = False,
    limit: Annotated[int, option(min=1, help="How many at most.")] = 1000,
    _output: Output = None,
) -> None:
    """List the moves of all instances, the newest first."""

    async def work(asking: CommandClient) -> list[Change]:
        found: list[Change] = []
        question = AskMoves(host=host, ended=ended, limit=min(limit, PAGE))
        async for page in pages_of(asking, question, MovesFound):
            found += page.moves
            if len(found) >= limit:
                break
        if host and not found:
            check_known("--host", host, (each.name for each in await hosts_of(asking)))
        return found[:limit]

    print_all(ask_bus(bus, work, operates=False), MOVES, "no moves")


migration_app.verb("show")(
    _about_an_instance(
        words="Show the moves of one instance, with who ended them.",
        items=_moves,
        nothing="it has never moved",
    )
)


@migration_app.verb("abort")
def abort(
    named: Annotated[str, argument(metavar=ID, help="An instance that moves.", completes=complete_instances)],
    *,
    project: Project = "",
    following: Following,
) -> None:
    """Abort the move of an instance that has not arrived: it stays on its host, or comes back there."""
    end(following, named, "abort", project)
