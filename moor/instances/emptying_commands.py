"""`moor host drain HOST` and `moor evacuate HOST`: all instances of a host move away, or are built anew elsewhere, until the time is
up or a signal comes; those that stayed are shown with the reason.
"""

import shlex
import subprocess
from collections.abc import Sequence
from datetime import datetime, timedelta
from functools import partial
from typing import Annotated, Any

import typer

from bus.messages.build import MoveKind
from bus.messages.hosts import HostSet, SetHost
from engine.hosts import cell_and_name, host_in_cell
from kit.process import stopped_by_signals
from kit.times import now
from moor.asking import CommandClient, answer_of, ask_bus, hosts_of
from moor.client.hosts import DRAINING, EVACUATING, Emptied, Stayed, empty, instances_on
from moor.completing import complete_hosts
from moor.instances.move_commands import To, WaitForRoom
from moor.instances.requests import move_wait_of
from moor.options import NOT_DONE, BusUrl, Output, be_sure, fail, out, tell, wants_document
from moor.showing import check_known, check_one_cell, print_one
from moor.tables import Columns, print_table

EmptyingTimeout = Annotated[float, typer.Option(metavar="S", min=0.1, help="Seconds to wait for the end.")]
AtOnce = Annotated[int, typer.Option(min=1, help="How many instances move at the same time.")]

FENCE_S = 300.0
# As long as a host counts as heard, unless `host_down_s` says otherwise.
HEARD = timedelta(seconds=60)


def drain(
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="The host's name.", autocompletion=complete_hosts)
    ],
    bus: BusUrl = "",
    *,
    to: To = None,
    reason: Annotated[str, typer.Option(help="Why: `moor host` and refused builds show it.")] = "",
    wait_for_room: WaitForRoom = None,
    at_once: AtOnce = 10,
    timeout: EmptyingTimeout = 3600.0,
    _output: Output = None,
) -> None:
    """Set a host draining, and move its instances to other hosts of its cell: live, or else stopped meanwhile.

    With --wait-for-room, an instance waits for a host to which it can move live. A stopped one would need the same room.

    Ctrl-C ends the orders, and shows which instances are still there: what moves already goes on, and the host stays draining until
    `moor host set HOST up`.
    """
    how = {
        "hosts": to or (),
        "wait": move_wait_of(wait_for_room, None),
        "at_once": at_once,
        "timeout_s": timeout,
    }

    async def work(asking: CommandClient) -> Emptied:
        answer = await answer_of(asking, SetHost(host=host, mode="draining", reason=reason), HostSet)
        there = host_in_cell(answer.host.cell, answer.host.name)
        return await _emptied(asking, there, DRAINING, **how)

    _show_emptied(ask_bus(bus, work))


def evacuate(
    host: Annotated[
        str, typer.Argument(metavar="HOST", help="A host that is down.", autocompletion=complete_hosts)
    ],
    bus: BusUrl = "",
    *,
    to: To = None,
    fence: Annotated[
        str,
        typer.Option(
            metavar="COMMAND",
            help="A command that makes sure that the host is off, such as one that cuts its power. It gets the host's name as "
            "its last argument. If it fails, nothing is evacuated.",
        ),
    ] = "",
    yes: Annotated[
        bool,
        typer.Option(
            "--yes", help="Without --fence: nothing runs on the host, though it was heard just now."
        ),
    ] = False,
    wait_for_room: Annotated[
        int | None,
        typer.Option(
            metavar="S",
            show_default=False,
            help="Seconds that instances wait for room, if no host has it; 0: they stay. Default: 86400. They go before builds that "
            "wait, and stay if the host is up again before.",
        ),
    ] = None,
    at_once: AtOnce = 50,
    timeout: EmptyingTimeout = 3600.0,
    _output: Output = None,
) -> None:
    """Build all instances of a lost host anew on other hosts of its cell. They keep their ids.

    Their shares on the lost host stay held until it returns and cleans up, or is set dead. Instances for which no host has room
    wait for it, and are still evacuated when the command has ended.
    """
    there, heard_at = ask_bus(bus, lambda asking: _check_down(asking, host), operates=False)
    if fence:
        _fence(fence, cell_and_name(there)[1])
    elif heard_at is not None and (unheard := now() - heard_at) < HEARD:
        doubt = f"{there} is set down, and was heard {max(unheard.total_seconds(), 0):.0f} s ago: if its instances still run, second copies run beside them"
        be_sure(doubt, f"Evacuate {there}?", yes=yes)

    how = {
        "hosts": to or (),
        "wait": move_wait_of(wait_for_room, None),
        "at_once": at_once,
        "timeout_s": timeout,
    }
    _show_emptied(ask_bus(bus, lambda asking: _emptied(asking, there, EVACUATING, **how), operates=False))


async def _check_down(asking: CommandClient, host: str) -> tuple[str, datetime | None]:
    """End the command if the host is unknown or up, or if hosts of several cells have its name: fencing would switch off a
    healthy host after a wrong name. Returns the name with its cell, if the host is known; and when it was heard, unless it is silent.
    """
    found = await hosts_of(asking, host)
    check_one_cell("HOST", host, found)
    if not found and not await instances_on(asking, host):
        check_known("HOST", host, (each.name for each in await hosts_of(asking)))
    if any(each.up for each in found):
        fail(f"{host} is up, so nothing was evacuated: `moor host set {host} down` first", NOT_DONE)
    if not found:
        return host, None
    (known,) = found
    return host_in_cell(known.cell, known.name), None if known.silent_since else known.heard_at


def _fence(command: str, host: str) -> None:
    words = [*shlex.split(command), host]
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=FENCE_S, check=False)  # noqa: S603 - it is the operator's own command
    except (OSError, subprocess.TimeoutExpired) as problem:
        fail(f"--fence: {problem}: nothing was evacuated", NOT_DONE)
    if done.returncode:
        said = (done.stderr or done.stdout).strip()
        fail(
            f"--fence: {command!r} ended with code {done.returncode}: {said}: nothing was evacuated", NOT_DONE
        )


async def _emptied(asking: CommandClient, host: str, kinds: Sequence[MoveKind], **how: Any) -> Emptied:
    """Until the time is up, or a signal comes."""
    with stopped_by_signals() as told:
        tells = None if wants_document() else partial(tell, style="dim")
        return await empty(asking, host, kinds, **how, tell=tells, stop=told)


def _show_emptied(done: Emptied) -> None:
    """Print what became of the instances; end the command with an error if some stayed."""
    print_one(done, _print_emptied)
    if done.stayed:
        fail(f"{len(done.stayed)} instances are still on {done.host}", NOT_DONE)


def _print_emptied(done: Emptied) -> None:
    count = len(done.moved) + len(done.stayed)
    each = f", {done.seconds / count * 1000:.0f} ms each" if count else ""
    out.print(f"{len(done.moved)} of {count} instances have left {done.host} in {done.seconds:.1f} s{each}")
    if done.stayed:
        print_table(done.stayed, STAYED)


STAYED = Columns[Stayed](
    {
        "id": lambda each: str(each.instance),
        "name": lambda each: each.name,
        "why it stays": lambda each: each.reason,
    },
    prose=("why it stays",),
    ids={"id": lambda _: True},
)
