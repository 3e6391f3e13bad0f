"""`moor console`: what the guest of an instance has written to its serial console."""

import asyncio
import sys
from typing import Annotated

import typer

from bus.errors import Operational
from bus.messages.build import InstanceState
from bus.messages.consoles import CONSOLE_BYTES_MAX, AskConsole, ConsoleFound
from moor.asking import Client
from moor.books.audit_command import clients
from moor.completing import complete_instances
from moor.naming import instances_or_requests
from moor.options import ID, BusUrl, command_settings, fail, run

LOOK_S = 1.0


def console(
    named: Annotated[str, typer.Argument(metavar=ID, help="An instance.", autocompletion=complete_instances)],
    bus: BusUrl = "",
    *,
    last: Annotated[
        int,
        typer.Option("--bytes", min=1, max=CONSOLE_BYTES_MAX, help="How many of the last bytes to show."),
    ] = 4096,
    follow: Annotated[
        bool, typer.Option("--follow", help="Go on, and show what is written from now on.")
    ] = False,
    patience: Annotated[
        float, typer.Option(min=0.1, metavar="SECONDS", help="How long to wait for each answer.")
    ] = 30.0,
) -> None:
    """Show what the guest of an instance has written to its serial console. For operators.

    Its host keeps the console until the instance is destroyed there. Simulated hosts have none.
    """
    settings = command_settings(bus=bus)

    async def work() -> None:
        async with clients(settings, patience) as (api, cells):
            states = [*(await instances_or_requests(api, [named])).values()]
            if len(states) != 1:
                fail(f"{named} names {len(states)} instances: name one of them")
            (state,) = states
            if not state.cell:
                fail(f"{state.id} is {state.state} and in no cell yet: it has no console")
            await _show(cells.get(state.cell, api), state, last, follow=follow)

    run(work())


async def _show(asking: Client, state: InstanceState, last: int, *, follow: bool) -> None:
    start, attempt, told = -last, 0, ""
    while True:
        found = await _ask(asking, AskConsole(cell=state.cell, instance=state.id, start=start, limit=last))
        if found.none and not follow:
            fail(found.none)
        if found.none and found.none != told:
            typer.echo(found.none, err=True)
        told = found.none
        if found.attempt != attempt and attempt:
            # It is another host's console, from its beginning.
            start, attempt = 0, found.attempt
            continue
        sys.stdout.write(found.text)
        sys.stdout.flush()
        if not follow:
            return
        if not found.none:
            start, attempt = found.next, found.attempt
        if found.next >= found.size:
            await asyncio.sleep(LOOK_S)


async def _ask(asking: Client, question: AskConsole) -> ConsoleFound:
    try:
        answer = await asking.ask(question)
    except Operational as problem:
        fail(f"the compute of cell {question.cell!r} does not answer: {problem}")
    if not isinstance(answer, ConsoleFound):
        fail(f"the compute of cell {question.cell!r} answers {answer!r}")
    return answer
