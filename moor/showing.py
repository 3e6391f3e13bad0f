"""Prints instances and hosts in a terminal, and as JSON for programs (docs/commands.md lists the fields)."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any, Protocol, TypeVar, runtime_checkable

import msgspec
from msgspec import Struct
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from engine.flavors import Flavor
from engine.hosts import NODE, HostState
from engine.refusals import NoValidHost
from moor.client import CellHeard, InstanceDetails, InstancesFound, InstanceState, Size
from moor.options import WIDTH_OF_NO_TERMINAL, Form, form, out, say, wants_document
from moor.tables import GAP, Columns, Rows, lines_of, print_table, styled

T = TypeVar("T")

COLOURS: Mapping[str, str] = {
    "accepted": "cyan",
    "waiting": "yellow",
    "placed": "cyan",
    "building": "cyan",
    "active": "green",
    "rebuilding": "cyan",
    "moving": "cyan",
    "moved": "yellow",
    "stopped": "dim",
    "shelved": "dim",
    "offloaded": "dim",
    "error": "red",
    "deleting": "yellow",
    "deleted": "dim",
}
BAR = 24
# If more instances are followed, only their number in each state is shown.
FOLLOWED_MAX = 16
LINES_MAX = 20
# The fields of InstanceDetails that documents have. Only audits need the others.
_OF_ROW = ("size", "accepted_at", "placed_at", "move_placed_at", "priority", "group", "policy")
# The classes by which an operator sizes hosts.
MAIN_CLASSES = ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB")


@runtime_checkable
class HasDocument(Protocol):
    """A thing that is printed for programs in another way than by its own fields."""

    @property
    def document(self) -> Mapping[str, Any]: ...


def plain(value: object) -> Any:
    """The value as JSON types. All fields are included, so that programs find each field even when it is empty."""
    if isinstance(value, HasDocument):
        return plain(value.document)
    if isinstance(value, Struct):
        return {field: plain(getattr(value, field)) for field in value.__struct_fields__}
    if isinstance(value, tuple | list):
        return [plain(each) for each in value]
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    return msgspec.to_builtins(value)


def print_json(value: object) -> None:
    """Print a document for programs: JSON, or YAML if that is asked for."""
    if form() is not Form.YAML:
        text = json.dumps(plain(value), indent=2, ensure_ascii=False)
        # To find what has which colour takes most of the time, and programs see none.
        if out.is_terminal:
            out.print_json(text)
        else:
            say(text)
        return
    import yaml  # noqa: PLC0415 - only this form needs it

    say(
        yaml.safe_dump(plain(value), sort_keys=False, allow_unicode=True, width=WIDTH_OF_NO_TERMINAL).rstrip()
    )


def print_line(value: object) -> None:
    """Print one document of a stream at once: a line of JSON, as it is on the bus, or a YAML document."""
    if form() is not Form.YAML:
        # `out` would wrap it at the terminal's width.
        print(msgspec.json.encode(value).decode(), flush=True)
        return
    say("---")
    print_json(msgspec.to_builtins(value))


def print_all(
    found: Sequence[T],
    show: Columns[T] | Callable[[Sequence[T]], None],
    nothing: str = "",
    columns: Columns[T] | None = None,
) -> None:
    """Print the items as a document, or as a table with these columns, or by the function `show`: then `columns` say their names. In
    place of no items, print `nothing`.
    """
    named = show if isinstance(show, Columns) else columns
    if wants_document():
        print_json(found)
    elif form() is Form.NAME and named is not None:
        for each in found:
            say(named.name_of(each))
    elif not found:
        say(nothing)
    elif isinstance(show, Columns):
        print_table(found, show)
    else:
        show(found)


def shortened(lines: Sequence[str]) -> list[str]:
    """The first LINES_MAX of these lines; if there are more, also a line that says how many."""
    more = len(lines) - LINES_MAX
    return [*lines[:LINES_MAX], *([f"and {more} more"] if more > 0 else [])]


def print_one(found: T, show: Columns[T] | Callable[[T], None], columns: Columns[T] | None = None) -> None:
    """As `print_all`; a document has the item itself."""
    if wants_document():
        print_json(found)
    else:
        one = show if isinstance(show, Columns) else lambda _: show(found)
        print_all((found,), one, columns=columns)


def progress_of(states: Iterable[InstanceState]) -> RenderableType:
    """The live view of instances that a command follows."""
    known = list(states)
    counts = Counter(each.state for each in known)
    line = Text("   ").join(
        Text(f"{counts[state]} {state}", style=colour) for state, colour in COLOURS.items() if counts[state]
    )
    return line if len(known) > FOLLOWED_MAX else Group(line, Rows(known, INSTANCES))


class InstanceShown(Struct, frozen=True):
    """An instance with what a page of a list says of it beside its state."""

    state: InstanceState
    details: InstanceDetails
    cell: CellHeard | None

    @property
    def document(self) -> Mapping[str, Any]:
        """Its state, its size and times, and what is heard of its cell."""
        return {
            **plain(self.state),
            **{field: getattr(self.details, field) for field in _OF_ROW},
            "cell_life": self.cell.life if self.cell else "",
            "cell_heard_at": self.cell.heard_at if self.cell else None,
        }


def rows_in(page: InstancesFound) -> list[InstanceShown]:
    details = {each.id: each for each in page.details}
    cells = {each.cell: each for each in page.cells}
    return [
        InstanceShown(each, details.get(each.id) or InstanceDetails(id=each.id), cells.get(each.cell))
        for each in page.instances
    ]


def print_state(state: InstanceState) -> None:
    """Print one instance of which nothing but its state is known."""
    print_instance(InstanceShown(state, InstanceDetails(id=state.id), None))


def print_instances(rows: Iterable[InstanceShown]) -> None:
    for row in rows:
        print_instance(row)


def print_instance(row: InstanceShown) -> None:
    """Print one instance with all that is known of it."""
    state, known = row.state, row.details
    grid = grid_of(
        ("instance", str(state.id)),
        ("request", str(state.request_id)),
        ("name", escape(state.name)),
        ("project", escape(state.project)),
        ("state", instance_state(state)),
        ("host", escape(f"{state.host} in {state.cell}") if state.host else ""),
        ("cell", _last_heard(row.cell).removeprefix("cell ") if row.cell else ""),
        ("reason", escape(state.reason)),
        ("flavor", _flavor(state, known.size)),
        ("image", escape(known.image)),
        ("priority", str(known.priority or "")),
        ("group", f"{known.group} ({known.policy})" if known.group else ""),
        ("accepted", time_in_words(known.accepted_at)),
        ("placed", time_in_words(known.placed_at)),
        ("last moved", time_in_words(known.move_placed_at)),
        ("since", time_in_words(state.changed_at)),
        ("waits", _waits(state)),
        ("rebuild", _rebuild(state)),
        ("move", _move(state)),
    )
    for failure in state.failures:
        grid.add_row(
            "failed", f"[yellow]{failure.attempt}. {escape(f'{failure.host}: {failure.reason}')}[/yellow]"
        )
    out.print(grid)
    print_passed_over(state)
    if state.no_valid_host is not None:
        print_no_valid_host(state.name or str(state.id), state.no_valid_host)


def print_last_heard(rows: Sequence[InstanceShown]) -> None:
    """Print, below a list of instances, when each of their cells was last heard: how old the states may be."""
    heard = {each.cell.cell: each.cell for each in rows if each.cell}
    for line in shortened([_last_heard(heard[cell]) for cell in sorted(heard)]):
        out.print(line, style="dim")


def _last_heard(cell: CellHeard) -> str:
    if cell.life == "unknown":
        return f"cell {cell.cell}: no conductor was heard yet"
    down = " [red]and is down[/red]" if cell.life == "down" else ""
    return f"cell {cell.cell} was last heard {time_in_words(cell.heard_at)}{down}"


def _flavor(state: InstanceState, size: Size | None) -> str:
    """The flavor and the amounts of an instance, and the better ones that its request accepts and that it did not get."""
    better = ", ".join(each.flavor for each in state.passed_over) if state.flavor else ""
    if size is None and state.flavor is not None:
        asked = {name: amount for name, amount in amounts_of(state.flavor).items() if amount}
        size = Size(flavor=state.flavor.name, amounts=asked)
    words = size_in_words(size) if size is not None else ""
    return escape(words + (f", in place of {better}" if better else ""))


def size_in_words(size: Size) -> str:
    """The name of a flavor with the amounts: `small: 2 VCPU, 4096 MEMORY_MB, 10 DISK_GB`."""
    amounts = ", ".join(f"{amount} {name}" for name, amount in in_order(size.amounts))
    return f"{size.flavor}: {amounts}" if size.flavor else amounts


def in_order(amounts: Mapping[str, T]) -> list[tuple[str, T]]:
    """These amounts by class: processors, memory and disk first, then all others by name."""
    first = {name: place for place, name in enumerate(MAIN_CLASSES)}
    return sorted(amounts.items(), key=lambda each: (first.get(each[0], len(first)), each[0]))


def amounts_of(flavor: Flavor) -> dict[str, int]:
    """How much of each resource class an instance of this flavor holds; 0 for what the flavor says that it does not."""
    sizes = {
        "VCPU": flavor.vcpus,
        "MEMORY_MB": flavor.ram_mb,
        "DISK_GB": flavor.root_gb + flavor.ephemeral_gb,
    }
    return sizes | {
        key.partition(":")[2]: int(amount)
        for key, amount in flavor.extra_specs.items()
        if key.startswith("resources") and amount.isdecimal()
    }


def _waits(state: InstanceState) -> str:
    waiting = state.waiting
    if waiting is None:
        return ""
    priority = f", with priority {waiting.priority}" if waiting.priority else ""
    if waiting.since is None or state.move is None:
        return f"for room, until {time_in_words(waiting.until)}{priority}"
    times = f"since {time_in_words(waiting.since)}, until {time_in_words(waiting.until)}{priority}"
    return escape(f"for room to {state.move.kind}, {times}: {waiting.reason}")


def _rebuild(state: InstanceState) -> str:
    if state.rebuild is None:
        return ""
    image, failure = escape(state.rebuild.image.source), escape(state.rebuild.failure)
    if failure:
        return f"[yellow]{image}: {failure}[/yellow]"
    return f"{image}: under way" if state.state == "rebuilding" else image


def _move(state: InstanceState) -> str:
    move = state.move
    if move is None:
        return ""
    source = f" from {move.source}" if move.source else ""
    way = escape(f"{move.kind}{source}" + (f" to {move.destination}" if move.destination else ""))
    if state.waiting is not None:
        return f"{way}: [yellow]waits for room[/yellow]"
    if move.failure:
        return f"[yellow]{way}: {move.outcome}: {escape(move.failure)}[/yellow]"
    if move.confirm_by is not None and not move.outcome:
        return f"{way}: confirm or revert it, or it confirms itself at {time_in_words(move.confirm_by)}"
    return f"{way}: {move.outcome or 'under way'}"


def print_passed_over(state: InstanceState) -> None:
    """Print why the instance did not get the flavors that its request prefers, with the funnel of each."""
    for each in state.passed_over:
        if each.no_valid_host is None:
            out.print(f"\n[yellow]not {escape(each.flavor)}[/yellow]: {escape(each.reason)}")
        else:
            print_no_valid_host(each.flavor, each.no_valid_host)


def print_no_valid_host(name: str, found: NoValidHost) -> None:
    """Print the funnel: how many hosts each filter removed until none was left, and the hosts that lacked least."""
    out.print(f"\n[bold red]no host[/bold red] for {escape(name)} among {found.hosts}:")
    print_funnel(found)


def print_funnel(found: NoValidHost) -> None:
    left = found.hosts
    lines = [(f"{left}", "hosts", _bar(left, found.hosts), "")]
    for step in found.steps:
        left -= step.removed
        example = f"[dim]{escape(step.example)}[/dim]"
        lines.append((f"[red]-{step.removed}[/red]", escape(step.step), _bar(left, found.hosts), example))
    lines.append((f"[bold]{left}[/bold]", "left", "", ""))
    out.print(lines_of(lines, justify="right"))
    if found.nearest:
        out.print("nearest:")
        nearest = [
            (f"  {escape(each.host)}", f"[yellow]{escape(each.reason)}[/yellow]") for each in found.nearest
        ]
        out.print(lines_of(nearest))
    for each in found.unknown:
        out.print(f"[yellow]{escape(each)}[/yellow]")


def facts_of_host(host: HostState) -> tuple[tuple[str, str], ...]:
    """Everything about a host, each fact with its label; the texts have rich markup."""
    return (
        ("host", escape(host.name)),
        ("id", str(host.id)),
        ("kind", kind_of_host(host)),
        ("runs", escape(f"{host.hypervisor_type} {host.hypervisor_version or ''}".strip())),
        (
            "supports",
            escape(
                ", ".join(
                    "/".join(
                        part or "any" for part in (each.architecture, each.hypervisor_type, each.vm_mode)
                    )
                    for each in host.supports
                )
            ),
        ),
        (
            "capabilities",
            escape(", ".join(f"{key}={value}" for key, value in sorted(host.capabilities.items()))),
        ),
        ("cell", host.cell),
        ("name", f"hosts of cells {', '.join(host.also_in)} have it too" if host.also_in else ""),
        ("zone", escape(host.availability_zone)),
        ("place", host.place),
        ("projects", escape(", ".join(host.projects))),
        ("state", host_state(host)),
        ("reason", escape(host.setting.reason)),
        ("set by", escape(host.setting.by)),
        ("set at", time_in_words(host.setting.at)),
        ("told", "" if host.told >= host.setting.number else "its cell has not been told yet"),
        ("heard", time_in_words(host.heard_at)),
        ("instances", str(host.instances)),
        ("building", str(host.io_ops)),
        ("failed", f"{host.failed_builds} builds in a row" if host.failed_builds else ""),
        ("refused", escape(_refused(host))),
    )


def why_of_host(host: HostState) -> str:
    also = f"its name is in cells {', '.join((host.cell, *host.also_in))}" if host.also_in else ""
    return "; ".join(filter(None, (host.setting.reason, _refused(host), also)))


def _refused(host: HostState) -> str:
    return f"placement has an older state of it: {host.report_refused}" if host.report_refused else ""


def grid_of(*rows: tuple[str, str]) -> Table:
    """A table with one row for each label and its value; rows with an empty value are left out."""
    grid = Table.grid(padding=(0, GAP))
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column(overflow="fold")
    for label, value in rows:
        if value:
            grid.add_row(label, value)
    return grid


def kind_of_host(host: HostState) -> str:
    return "node" if host.kind == NODE else "hypervisor"


def time_in_words(at: datetime | None) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S %Z}" if at else ""


def cell_life(life: str) -> str:
    return {"up": "[green]up[/green]", "down": "[red]down[/red]"}.get(life, life)


def host_state(host: HostState) -> str:
    up = "[green]up[/green]" if host.up else "[red]down[/red]"
    mode = host.setting.mode
    if host.must_clean and mode != "dead":
        return f"{up} [yellow]must clean up{'' if mode == 'up' else f', {mode}'}[/yellow]"
    if mode == "up":
        return up
    return f"{up} [yellow]draining[/yellow]" if mode == "draining" else f"[red]{mode} by order[/red]"


def instance_state(state: InstanceState) -> str:
    colour = COLOURS.get(state.state, "white")
    return f"[{colour}]{state.state}[/{colour}]"


def _in_short(state: InstanceState) -> str:
    if state.waiting is not None and state.move is not None:
        return f"waits for room to {state.move.kind}: {state.waiting.reason}"
    tries = f"{len(state.failures)} failed before" if state.failures and state.state == "active" else ""
    return state.reason or tries


def _bar(left: int, hosts: int) -> str:
    filled = round(BAR * left / hosts) if hosts else 0
    return f"[green]{'█' * filled}[/green][dim]{'░' * (BAR - filled)}[/dim]"


INSTANCES = Columns[InstanceState](
    {
        "id": lambda each: str(each.id),
        "name": lambda each: each.name,
        "state": lambda each: styled(instance_state(each)),
        "cell": lambda each: each.cell,
        "host": lambda each: each.host,
        "flavor": lambda each: each.flavor.name if each.flavor else "",
        "reason": _in_short,
    },
    prose=("reason",),
    # A deleted instance is found by its whole id only.
    ids={"id": lambda each: each.state != "deleted"},
)


# A table of instances by their rows: a page of instances has more about each than its state.
BRIEF = INSTANCES.of(lambda row: row.state)


def _size(row: InstanceShown) -> Size:
    return row.details.size or Size()


# As INSTANCES, with all that a page of a list says of each instance.
WIDE = Columns[InstanceShown](
    {
        **{name: cell for name, cell in BRIEF.cells.items() if name not in ("flavor", "reason")},
        "flavor": lambda each: _size(each).flavor,
        "size": lambda each: size_in_words(Size(amounts=_size(each).amounts)),
        "accepted": lambda each: time_in_words(each.details.accepted_at),
        "placed": lambda each: time_in_words(each.details.placed_at),
        "since": lambda each: time_in_words(each.state.changed_at),
        "reason": lambda each: _in_short(each.state),
    },
    prose=("reason",),
    ids=BRIEF.ids,
)


# What waits for room.


def _why_it_waits(state: InstanceState) -> str:
    """The filter that removed the last host, with its example."""
    steps = state.no_valid_host.steps if state.no_valid_host else ()
    removing = [each for each in steps if each.removed]
    return f"{removing[-1].step}: {removing[-1].example}" if removing else state.reason


WAITING = Columns[InstanceState](
    {
        "id": lambda each: str(each.id),
        "name": lambda each: each.name,
        "until": lambda each: time_in_words(each.waiting.until) if each.waiting else "",
        "priority": lambda each: str(each.waiting.priority) if each.waiting else "",
        "why": _why_it_waits,
    },
    prose=("why",),
    numbers=("priority",),
    ids={"id": lambda _: True},
)
