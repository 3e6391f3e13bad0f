"""`moor events`: prints the events on the bus as they come."""

import re
from collections.abc import Coroutine
from contextlib import aclosing
from datetime import datetime
from typing import Annotated, Any

import msgspec
import typer
from rich.markup import escape

from bus.message import Message, type_of
from bus.messages.build import BuildAccepted, BuildRejected, InstanceState
from bus.messages.hosts import HostChanged, HostsReported
from bus.messages.placement import ProvidersChanged
from bus.topology import FACTS
from kit.errors import AccessRefused
from moor.asking import client
from moor.options import BusUrl, Output, Project, command_settings, fail, out, run, tell, wants_document
from moor.showing import COLOURS, print_line

# Builds, instances and host states. Heartbeats and changes of placement's books are left out: there are too many.
DEFAULT_PATTERNS = ("build.#", "instance.#", "host.state.*", "host.changed.*", "inventory.refused.*")
FIRST_WORDS = ("*", "#", *(fact.partition(".")[0] for fact in FACTS))
PATTERN = re.compile(r"(\*|#|[a-z0-9_-]+)(\.(\*|#|[a-z0-9_-]+))*")


def events(
    patterns: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="PATTERN...",
            show_default=False,
            help="Routing keys, with the wildcards of AMQP: instance.error.*, instance.*.harbour, providers.changed, host.#. "
            r"[dim]\[default: builds, instances, hosts][/dim]",
        ),
    ] = None,
    bus: BusUrl = "",
    *,
    project: Project = "",
    count: Annotated[
        int, typer.Option(metavar="N", min=0, help="Stop after N events; 0: go on until Ctrl-C.")
    ] = 0,
    _output: Output = None,
) -> None:
    """Print the events that happen from now on.

    With -o json one object a line, as on the bus; with -o yaml one document after the other.
    """
    wanted = tuple(patterns or DEFAULT_PATTERNS)
    for pattern in wanted:
        if not PATTERN.fullmatch(pattern):
            raise typer.BadParameter(f"PATTERN is {pattern!r}: it must be words, * and #, separated by dots")
        if pattern.partition(".")[0] not in FIRST_WORDS:
            raise typer.BadParameter(
                f"PATTERN is {pattern!r}: no event has such a key; events are {', '.join(FACTS)}"
            )
    settings = command_settings(bus=bus)

    async def work() -> None:
        printed = 0
        async with (
            client(settings, operates=True) as asking,
            aclosing(asking.listen(*wanted, project=project)) as heard,
        ):
            async for batch in heard:
                if not batch:
                    # Printed again after a reconnect: events that came meanwhile are missing from the output.
                    tell(f"listening for {', '.join(wanted)}", "dim")
                for message in batch:
                    _print(message)
                    printed += 1
                    if printed == count:
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
            f"the broker refused: {refused}; operators may receive {', '.join(FACTS)}, an application only events of its "
            "projects: give --project NAME"
        )


def _print(message: Message) -> None:
    if wants_document():
        print_line(message)
        return
    now = datetime.now().astimezone()
    out.print(f"[dim]{now:%H:%M:%S}[/dim] {line_of(message)}", soft_wrap=True)


def line_of(message: Message) -> str:
    kind = f"{type_of(message):18}"
    instance = getattr(message, "instance", None)
    if isinstance(instance, InstanceState):
        return f"[{COLOURS.get(instance.state, 'white')}]{kind}[/] {_of_instance(instance, kind.strip())}"
    match message:
        case BuildAccepted():
            return (
                f"[cyan]{kind}[/] request {message.request_id}: {_some(len(message.instances), 'instance')}"
            )
        case BuildRejected():
            why = escape(f"{message.field} is {message.value!r}: {message.reason}")
            return f"[red]{kind}[/] request {message.request_id}: {why}"
        case HostsReported() | HostChanged():
            return f"{kind} {escape(_of_hosts(message))}"
        case ProvidersChanged():
            return f"{kind} {_some(len(message.providers) + len(message.usage), 'provider')}"
        case _:
            return f"{kind} {escape(msgspec.json.encode(message).decode())}"


def _of_instance(instance: InstanceState, kind: str) -> str:
    # `instance.moved` also tells that an instance is stopped, shelved or offloaded.
    state = "" if kind == f"instance.{instance.state}" else f" is {instance.state}"
    where = f" on {instance.host}" if instance.host else ""
    why = f": {instance.reason}" if instance.reason else ""
    return escape(f"{instance.name or instance.id}{state}{where}{why}")


def _of_hosts(message: HostsReported | HostChanged) -> str:
    if isinstance(message, HostsReported):
        more = f" and {len(message.hosts) - 1} more" if len(message.hosts) > 1 else ""
        return f"{message.hosts[0].name}{more}" if message.hosts else ""
    host, setting = message.host, message.host.setting
    by = f" by {setting.by}" if setting.by else ""
    cleaning = ", and must clean up" if host.must_clean else ""
    return f"{host.name} is set {setting.mode}{by}{cleaning}{f': {setting.reason}' if setting.reason else ''}"


def _some(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
