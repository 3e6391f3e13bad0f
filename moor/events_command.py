"""`moor events`: what happens, as it is said on the bus."""

import re
from collections.abc import Coroutine
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from bus.broker import AccessRefused
from bus.message import Message, type_of
from bus.messages.build import BuildAccepted, BuildRejected, InstanceState
from bus.messages.hosts import HostsReported
from bus.messages.placement import ProvidersChanged
from bus.topology import FACTS
from moor.client import client
from moor.options import BusUrl, Project, err, fail, out, run, settled
from moor.showing import COLOURS

# What becomes of builds and instances, and what hosts are. Heartbeats and the feed of the books are loud.
USUAL = ("build.#", "instance.#", "host.state.*", "inventory.refused.*")
HEARD = ("*", "#", *(fact.partition(".")[0] for fact in FACTS))
PATTERN = re.compile(r"(\*|#|[a-z0-9_-]+)(\.(\*|#|[a-z0-9_-]+))*")


def events(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN...",
            show_default=False,
            help="Routing keys, as AMQP has them: instance.error.*, instance.*.harbour, providers.changed, host.#. "
            r"[dim]\[else builds, instances, hosts][/dim]",
        ),
    ] = None,
    bus: BusUrl = "",
    *,
    project: Project = "",
    count: Annotated[
        int, typer.Option(metavar="N", min=0, help="End after so many; 0 goes on until Ctrl-C.")
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object a line, as on the bus.")] = False,
) -> None:
    """Everything that happens from now on."""
    wanted = tuple(patterns or USUAL)
    for pattern in wanted:
        if not PATTERN.fullmatch(pattern):
            raise typer.BadParameter(f"pattern {pattern!r}: words, * and #, with dots between")
        if pattern.partition(".")[0] not in HEARD:
            raise typer.BadParameter(
                f"pattern {pattern!r}: nothing is said under such a key; there are {', '.join(FACTS)}"
            )
    settings = settled(bus=bus)

    async def work() -> None:
        told = 0
        async with (
            client(settings, operates=True) as asking,
            aclosing(asking.listen(*wanted, project=project)) as heard,
        ):
            async for batch in heard:
                if not batch:
                    # Said again after a break: what was said meanwhile, nobody kept for us.
                    err.print(
                        f"listening for {', '.join(wanted)}", style="dim", highlight=False, markup=False
                    )
                for message in batch:
                    _print(message, as_json=as_json)
                    told += 1
                    if told == count:
                        return

    try:
        run(_refused_with_hint(work()))
    except KeyboardInterrupt:
        raise typer.Exit(0) from None


async def _refused_with_hint(work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except AccessRefused as refused:
        fail(
            f"the broker refused: {refused}; operators may hear {', '.join(FACTS)}, and an application its projects: --project NAME"
        )


def _print(message: Message, *, as_json: bool) -> None:
    if as_json:
        # As it is on the bus, a line each, whatever the terminal's width.
        print(msgspec.json.encode(message).decode(), flush=True)
        return
    now = datetime.now().astimezone()
    out.print(f"[dim]{now:%H:%M:%S}[/dim] {_in_short(message)}", highlight=False, soft_wrap=True)


def _in_short(message: Message) -> str:
    kind = f"{type_of(message):18}"
    instance = getattr(message, "instance", None)
    if isinstance(instance, InstanceState):
        return f"[{COLOURS.get(instance.state, 'white')}]{kind}[/] {_of_instance(instance)}"
    match message:
        case BuildAccepted():
            return (
                f"[cyan]{kind}[/] request {message.request_id}: {_some(len(message.instances), 'instance')}"
            )
        case BuildRejected():
            why = escape(f"{message.field} is {message.value!r}: {message.reason}")
            return f"[red]{kind}[/] request {message.request_id}: {why}"
        case HostsReported():
            more = f" and {len(message.hosts) - 1} more" if len(message.hosts) > 1 else ""
            return f"{kind} {escape(message.hosts[0].name)}{more}" if message.hosts else kind
        case ProvidersChanged():
            return f"{kind} {_some(len(message.providers) + len(message.usage), 'provider')}"
        case _:
            return f"{kind} {escape(msgspec.json.encode(message).decode())}"


def _of_instance(instance: InstanceState) -> str:
    where = f" on {instance.host}" if instance.host else ""
    why = f": {instance.reason}" if instance.reason else ""
    return escape(f"{instance.name or instance.id}{where}{why}")


def _some(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
