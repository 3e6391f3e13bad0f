"""`moor quota` and `moor usage`: the limits of projects on each resource class and on instances, and what projects hold."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Annotated

import typer
from msgspec import Struct
from rich.markup import escape
from rich.text import Text

from bus.messages.administration import (
    AskQuotas,
    AskUsages,
    QuotasFound,
    SetQuota,
    TypeUsage,
    UnknownClass,
    UsagesFound,
    WriteAnswered,
)
from engine.inventories import INSTANCES, QuotaState
from moor.asking import Asks, answer_of, ask_bus
from moor.instances.requests import pairs_of
from moor.message_commands import command_that_sends
from moor.options import BusUrl, Output, fail, out
from moor.showing import print_one
from moor.tables import Columns, print_table

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    help="Quotas: how much a project may have of each resource class, and how many instances.",
)

NO_LIMIT = "none"

Pairs = Annotated[
    list[str],
    typer.Argument(
        metavar="NAME=LIMIT...",
        help=f"`{INSTANCES}` or a resource class, such as VCPU=64. `{NO_LIMIT}` removes a limit.",
    ),
]


@app.command("set")
def set_quota(
    project: Annotated[str, typer.Argument(metavar="PROJECT")],
    pairs: Pairs,
    bus: BusUrl = "",
    *,
    _output: Output = None,
) -> None:
    """Set limits of a project. Limits that are not named stay. Nothing is taken from a project that has more."""
    limits = {name: _limit(name, text) for name, text in pairs_of("NAME=LIMIT", pairs).items()}
    order = SetQuota(project=project, limits=limits)
    print_one(ask_bus(bus, lambda asking: _set(asking, order)), _print)


async def _set(asking: Asks, order: SetQuota) -> QuotaState:
    verdict = (await answer_of(asking, order, WriteAnswered)).verdict
    if isinstance(verdict, UnknownClass):
        fail(f"there is no resource class {', '.join(verdict.names)}, so nothing was done")
    found = await answer_of(asking, AskQuotas(project=order.project), QuotasFound)
    return next(iter(found.quotas), QuotaState(project=order.project, limits={}))


def _limit(name: str, text: str) -> int | None:
    if text == NO_LIMIT:
        return None
    if not text.isdecimal() or not text.isascii():
        raise typer.BadParameter(
            f"NAME=LIMIT is {f'{name}={text}'!r}: the limit must be a number of 0 or more, or {NO_LIMIT!r}"
        )
    return int(text)


class _Limit(Struct, frozen=True):
    project: str
    name: str
    used: int
    limit: int | None


LIMITS = Columns[_Limit](
    {
        "project": lambda each: each.project,
        "of": lambda each: each.name,
        "used": lambda each: str(each.used),
        "limit": lambda each: "no limit" if each.limit is None else str(each.limit),
        "free": lambda each: "" if each.limit is None else str(max(0, each.limit - each.used)),
    }
)


def _limits_of(quota: QuotaState, names: Sequence[str]) -> list[_Limit]:
    return [
        _Limit(quota.project, name, quota.used.get(name, 0), quota.limits.get(name))
        for name in sorted(names, key=lambda name: (name != INSTANCES, name))
    ]


def _print(quota: QuotaState) -> None:
    if not quota.limits:
        out.print(f"project {escape(quota.project)} has no limits")
        return
    print_table(_limits_of(quota, [*{**quota.limits, **quota.used}]), LIMITS)


def _print_all(quotas: Sequence[QuotaState]) -> None:
    print_table([row for quota in quotas for row in _limits_of(quota, [*quota.limits])], LIMITS)


app.command("show")(
    command_that_sends(
        AskQuotas,
        arguments={"project": "PROJECT"},
        words="Show the limits of a project, and what it uses.",
        answer=QuotasFound,
        items=lambda found: found.quotas,
        is_about_one=True,
        missing="project {project!r} has no limits; `moor usage {project}` shows what it holds",
        show=_print,
    )
)
app.command("list")(
    command_that_sends(
        AskQuotas,
        fixed=("project",),
        words="List the limits of all projects that have some.",
        answer=QuotasFound,
        items=lambda found: found.quotas,
        show=_print_all,
        nothing="no project has a limit",
    )
)


def _print_usages(usages: Sequence[TypeUsage]) -> None:
    """One row per type of consumer, and a row with the totals if there are several types."""
    resources = sorted({resource for each in usages for resource in each.used})
    table = [(Text(each.type or "unknown"), each.consumers, each.used) for each in usages]
    if len(usages) > 1:
        total = {name: sum(each.used.get(name, 0) for each in usages) for name in resources}
        table.append((Text("all", "bold"), sum(each.consumers for each in usages), total))
    of_classes = {name: partial(_amount_of, name) for name in resources}
    print_table(table, Columns({"consumers": itemgetter(0), "": lambda row: str(row[1]), **of_classes}))


def _amount_of(resource: str, row: tuple[Text, int, Mapping[str, int]]) -> str:
    return str(row[2].get(resource, 0))


usage = command_that_sends(
    AskUsages,
    arguments={"project": "PROJECT"},
    words="Show how much a project holds of each class, by the type of consumer.",
    answer=UsagesFound,
    items=lambda found: found.usages,
    show=_print_usages,
    nothing="project {project!r} holds nothing",
    operates=True,
)
