"""`moor migrate`, `live-migrate`, `resize`, `confirm`, `revert`, `shelve` and `unshelve`: an instance moves to another host, and the command follows it."""

import asyncio
from pathlib import Path
from typing import Annotated
from uuid import UUID

import typer

from bus.messages.build import (
    Flavor,
    InstanceId,
    InstancesFound,
    InstanceState,
    MoveEnd,
    RequestId,
)
from bus.messages.moves import EndMove, MoveInstance
from moor.client import Client, answer_of, client
from moor.instances.flavors import FlavorsFile, flavor_named
from moor.instances.following import Timeout, followed, run_order, taken
from moor.instances.request_ids import new_request_ids
from moor.instances.request_options import Disk, ExtraSpecs, FlavorName, Ram, Resources, Traits, Vcpus
from moor.instances.requests import flavor_with
from moor.options import NOT_DONE, NOT_IN_TIME, AsJson, BusUrl, Project, command_settings, fail
from moor.settings import Settings
from moor.showing import instances_table, print_one
from moor.tables import print_table

InstanceArgument = Annotated[UUID, typer.Argument(metavar="ID", help="An active instance.")]
MovedArgument = Annotated[UUID, typer.Argument(metavar="ID", help="An instance that has moved.")]
To = Annotated[
    list[str] | None,
    typer.Option("--to", metavar="HOST", help="Only to this host of its cell; may be repeated."),
]
Deadline = Annotated[
    int | None,
    typer.Option(
        metavar="S",
        show_default=False,
        help="Seconds until a move that has not arrived fails. Default: 3600.",
    ),
]
ConfirmAfter = Annotated[
    int | None,
    typer.Option(
        metavar="S",
        show_default=False,
        help="Seconds until a move that arrived confirms itself; 0: at once. Default: 86400.",
    ),
]
MoveId = Annotated[
    UUID | None,
    typer.Option(
        "--request-id", show_default=False, help="An id of your choice: repeated, it is the same move."
    ),
]
Wait = Annotated[
    bool, typer.Option("--wait/--no-wait", help="Wait until it has arrived, or until the move is over.")
]


def migrate(
    id_: InstanceArgument,
    bus: BusUrl = "",
    *,
    to: To = None,
    project: Project = "",
    deadline: Deadline = None,
    confirm_after: ConfirmAfter = None,
    request_id: MoveId = None,
    wait: Wait = True,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Move an instance to another host; it is stopped meanwhile. Then confirm the move, or revert it."""
    order = MoveInstance(
        request_id=_move_id(request_id),
        instance=InstanceId(id_),
        kind="migrate",
        hosts=tuple(to or ()),
        project=project,
        deadline_s=deadline,
        confirm_s=confirm_after,
    )
    _run(command_settings(bus=bus), order, timeout_s=timeout, wait=wait, for_programs=as_json)


def live_migrate(
    id_: InstanceArgument,
    bus: BusUrl = "",
    *,
    to: To = None,
    project: Project = "",
    deadline: Deadline = None,
    request_id: MoveId = None,
    wait: Wait = True,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Move an instance to another host while it runs."""
    order = MoveInstance(
        request_id=_move_id(request_id),
        instance=InstanceId(id_),
        kind="live-migrate",
        hosts=tuple(to or ()),
        project=project,
        deadline_s=deadline,
    )
    _run(command_settings(bus=bus), order, timeout_s=timeout, wait=wait, for_programs=as_json)


def shelve(
    id_: InstanceArgument,
    bus: BusUrl = "",
    *,
    project: Project = "",
    request_id: MoveId = None,
    wait: Wait = True,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Stop an instance; it keeps its host and its share until it is unshelved."""
    order = MoveInstance(
        request_id=_move_id(request_id), instance=InstanceId(id_), kind="shelve", project=project
    )
    _run(command_settings(bus=bus), order, timeout_s=timeout, wait=wait, for_programs=as_json)


def unshelve(
    id_: Annotated[UUID, typer.Argument(metavar="ID", help="A shelved instance.")],
    bus: BusUrl = "",
    *,
    project: Project = "",
    request_id: MoveId = None,
    wait: Wait = True,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Run a shelved instance again, on its host."""
    order = MoveInstance(
        request_id=_move_id(request_id), instance=InstanceId(id_), kind="unshelve", project=project
    )
    _run(command_settings(bus=bus), order, timeout_s=timeout, wait=wait, for_programs=as_json)


def resize(
    id_: InstanceArgument,
    bus: BusUrl = "",
    *,
    flavor: FlavorName = "",
    flavors: FlavorsFile = None,
    vcpus: Vcpus = None,
    ram: Ram = None,
    disk: Disk = None,
    resources: Resources = None,
    trait: Traits = None,
    extra_spec: ExtraSpecs = None,
    to: To = None,
    project: Project = "",
    deadline: Deadline = None,
    confirm_after: ConfirmAfter = None,
    request_id: MoveId = None,
    wait: Wait = True,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Give an instance another size, on another host; on its own one with --to. Then confirm it, or revert it."""
    settings = command_settings(bus=bus)
    order = MoveInstance(
        request_id=_move_id(request_id),
        instance=InstanceId(id_),
        kind="resize",
        flavor=flavor_with(
            _known_flavor(flavor, flavors, settings),
            vcpus=vcpus,
            ram=ram,
            disk=disk,
            resources=resources,
            trait=trait,
            extra_spec=extra_spec,
        ),
        hosts=tuple(to or ()),
        project=project,
        deadline_s=deadline,
        confirm_s=confirm_after,
    )
    _run(settings, order, timeout_s=timeout, wait=wait, for_programs=as_json)


def confirm(
    id_: MovedArgument,
    bus: BusUrl = "",
    *,
    project: Project = "",
    wait: Wait = True,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Confirm a move that has arrived: its first host is freed."""
    end(id_, bus, "confirm", project, timeout_s=timeout, wait=wait, for_programs=as_json)


def revert(
    id_: MovedArgument,
    bus: BusUrl = "",
    *,
    project: Project = "",
    wait: Wait = True,
    timeout: Timeout = 120.0,
    as_json: AsJson = False,
) -> None:
    """Revert a move that has arrived: the instance runs on its first host again, with the size that it had."""
    end(id_, bus, "revert", project, timeout_s=timeout, wait=wait, for_programs=as_json)


def _move_id(given: UUID | None) -> RequestId:
    return RequestId(given) if given else new_request_ids(1)[0]


def _known_flavor(name: str, file: Path | None, settings: Settings) -> Flavor:
    return flavor_named(name, file, settings) if name else Flavor()


def _run(
    settings: Settings, order: MoveInstance, *, timeout_s: float, wait: bool, for_programs: bool
) -> None:
    work = _move(settings, order, timeout_s=timeout_s, wait=wait, for_programs=for_programs)
    run_order(work, order.request_id, f"the order stays, and will be done: {_how_to_follow(order)}")


def _how_to_follow(order: MoveInstance | EndMove) -> str:
    return f"`moor show {order.instance}` shows its state"


async def _move(
    settings: Settings, order: MoveInstance, *, timeout_s: float, wait: bool, for_programs: bool
) -> None:
    by_s = asyncio.get_running_loop().time() + timeout_s
    async with client(settings, patience_s=timeout_s) as asking:
        shown = {"request_id": str(order.request_id)} if for_programs else None
        answer = await taken(
            asking,
            order,
            InstancesFound,
            timeout_s=timeout_s,
            how_to_follow=_how_to_follow(order),
            shown=shown,
        )
        await _follow(
            asking, order, answer, order.request_id, by_s=by_s, wait=wait, for_programs=for_programs
        )


def end(
    id_: UUID,
    bus: str,
    how: MoveEnd,
    project: str,
    *,
    timeout_s: float,
    wait: bool,
    for_programs: bool,
) -> None:
    work = end_move(
        command_settings(bus=bus),
        InstanceId(id_),
        how,
        project,
        timeout_s=timeout_s,
        wait=wait,
        for_programs=for_programs,
    )
    run_order(work, None, f"the order stays, and will be done: `moor show {id_}` shows its state")


async def end_move(
    settings: Settings,
    instance: InstanceId,
    how: MoveEnd,
    project: str,
    *,
    timeout_s: float,
    wait: bool,
    for_programs: bool,
) -> None:
    """End the last move of the instance, and follow it."""
    by_s = asyncio.get_running_loop().time() + timeout_s
    async with client(settings, patience_s=timeout_s) as asking:
        move_id = await _last_move(asking, instance, project)
        order = EndMove(request_id=move_id, instance=instance, how=how, project=project)
        answer = await answer_of(asking, order, InstancesFound)
        await _follow(asking, order, answer, move_id, by_s=by_s, wait=wait, for_programs=for_programs)


async def _last_move(asking: Client, instance: InstanceId, project: str) -> RequestId:
    found = await asking.instances([instance], project)
    if not found:
        fail(f"there is no instance {instance}; `moor list` shows all instances")
    move = found[0].move
    if move is None:
        fail(f"instance {instance} has never moved: there is nothing to end")
    return move.request_id


async def _follow(
    asking: Client,
    order: MoveInstance | EndMove,
    answer: InstancesFound,
    move_id: RequestId,
    *,
    by_s: float,
    wait: bool,
    for_programs: bool,
) -> None:
    (state,), in_time = await followed(
        asking,
        (order.instance,),
        answer.instances,
        (lambda each: rests(each, move_id)) if wait else None,
        by_s=by_s,
        project=order.project,
        quiet=for_programs,
    )
    print_one(state, lambda shown: print_table(instances_table((shown,))), as_json=for_programs)
    if not in_time:
        fail(f"the move goes on: {_how_to_follow(order)}", NOT_IN_TIME)
    if wait and (why := _why_not_done(state, order, move_id)):
        fail(why, NOT_DONE)


def rests(state: InstanceState, move_id: RequestId) -> bool:
    """The move has arrived, or is over, or the instance is."""
    if state.state in ("deleting", "deleted") or state.move is None or state.move.request_id != move_id:
        return True
    return state.state == "moved" or bool(state.move.outcome)


def _why_not_done(state: InstanceState, order: MoveInstance | EndMove, move_id: RequestId) -> str:
    """Empty if the instance arrived, or the move has the end that was asked for."""
    move = state.move
    if move is None or move.request_id != move_id:
        return "another move came after this one"
    if state.state in ("deleting", "deleted"):
        return "the instance was deleted"
    if isinstance(order, EndMove):
        wanted = {"confirm": "confirmed", "revert": "reverted", "abort": "aborted"}[order.how]
        return (
            "" if move.outcome == wanted else f"the move is {move.outcome}: {move.failure or 'it came first'}"
        )
    if state.state == "moved" or move.outcome in ("confirmed", "done"):
        return ""
    reasons = "; ".join([move.failure, *(f"{each.host}: {each.reason}" for each in state.failures)])
    return f"the move has {move.outcome}: {reasons}"
