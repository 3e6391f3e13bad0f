"""`moor quota`, `usage`, `trait`, `class` and `candidates`: what placement keeps beside providers, and what it would give."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Annotated, Any

import click
import msgspec
from msgspec import Struct
from rich.markup import escape
from rich.text import Text

from bus.messages.administration import (
    CANDIDATES_MAX,
    AskCandidates,
    AskQuotas,
    AskUsages,
    Candidate,
    Candidates,
    CandidatesFound,
    QuotasFound,
    SetQuota,
    TypeUsage,
    UnknownClass,
    UsagesFound,
    WriteAnswered,
)
from engine.inventories import INSTANCES, ProviderId, QuotaState
from engine.refusals import NotAllowed, TooCostly
from moor.asking import Asks, CommandClient, answer_of, ask_bus, providers_of, readable
from moor.client.errors import NotSendable
from moor.flags import Commands, argument, option
from moor.instances.requests import pairs_of
from moor.message_commands import command_that_sends
from moor.naming import unknown_with_near
from moor.options import BusUrl, Output, fail, out, put_once, wants_document
from moor.showing import print_all, print_one
from moor.tables import Columns, print_table

app = Commands("Quotas: how much a project may have of each resource class, and how many instances.")

NO_LIMIT = "none"

Pairs = Annotated[
    list[str],
    argument(
        metavar="NAME=LIMIT...",
        help=f"`{INSTANCES}` or a resource class, such as VCPU=64. `{NO_LIMIT}` removes a limit.",
    ),
]


@app.verb("set")
def set_quota(
    project: Annotated[str, argument(metavar="PROJECT")],
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
        raise click.BadParameter(
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


app.verb("show")(
    command_that_sends(
        AskQuotas,
        arguments={"project": "PROJECT"},
        words="Show the limits of a project, and what it uses.",
        answer=QuotasFound,
        items=lambda found: found.quotas,
        is_about_one=True,
        missing="project {project!r} has no limits; `moor quota usage {project}` shows what it holds",
        show=_print,
    )
)
app.verb("list")(
    command_that_sends(
        AskQuotas,
        fixed=("project",),
        words="List the limits of all projects that have some.",
        answer=QuotasFound,
        items=lambda found: found.quotas,
        show=lambda quotas: print_table(
            [row for quota in quotas for row in _limits_of(quota, [*quota.limits])], LIMITS
        ),
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


app.verb("usage")(
    command_that_sends(
        AskUsages,
        arguments={"project": "PROJECT"},
        words="Show how much a project holds of each class, by the type of consumer.",
        answer=UsagesFound,
        items=lambda found: found.usages,
        show=_print_usages,
        nothing="project {project!r} holds nothing",
        operates=True,
    )
)


# `moor candidates`: placement's allocation candidates for a question on the command line.

WORDS_HELP = (
    "CLASS=N (amount); TRAIT or TRAIT,TRAIT (required: any one of them); no:TRAIT (forbidden); better:TRAIT (preferred); "
    "in:AGGREGATE,AGGREGATE (in any one of them); out:AGGREGATE; tree:PROVIDER"
)
GROUP_HELP = "A request group that a single provider must satisfy: NAME and the same words, in quotes. May be repeated."


def candidates(
    words: Annotated[list[str] | None, argument(metavar="WORD...", help=WORDS_HELP)] = None,
    bus: BusUrl = "",
    *,
    group: Annotated[list[str] | None, option(metavar="'NAME WORD...'", help=GROUP_HELP)] = None,
    apart: Annotated[bool, option("--apart", help="No two groups from the same provider (isolate).")] = False,
    together: Annotated[
        list[str] | None,
        option(
            metavar="NAME,NAME",
            help="These groups from the subtree of one provider (same_subtree); may be repeated.",
        ),
    ] = None,
    limit: Annotated[int, option(min=1, max=CANDIDATES_MAX, help="How many candidates at most.")] = 20,
    _output: Output = None,
) -> None:
    """List the candidates that can provide all of this: VCPU=2 MEMORY_MB=4096 HW_CPU_X86_AVX2 no:CUSTOM_SLOW."""
    named: dict[str, str] = {}
    for text in group or ():
        put_once(named, text.split()[0] if text.strip() else "", text, "--group")
    asked = {
        "type": "candidates",
        "groups": [
            *([request_group("", words)] if words else []),
            *[request_group(name, text.split()[1:]) for name, text in named.items()],
        ],
        "group_policy": "isolate" if apart else "none" if len(named) > 1 else None,
        "same_subtree": [part.split(",") for part in together or ()],
        "limit": limit,
    }
    try:
        question = readable(msgspec.json.encode({"message": asked}))
    except NotSendable as wrong:
        raise click.BadParameter(str(wrong)) from None
    assert isinstance(question, AskCandidates), f"{asked!r} was read as {question!r}"
    found, names = ask_bus(bus, lambda asking: _found(asking, question))
    if not (found or wants_document()):
        fail("no provider can satisfy this now; `moor provider list` shows what exists")
    print_all(found, _columns(names))


def request_group(name: str, words: Sequence[str]) -> dict[str, Any]:
    """Parse the words for one request group, and return the group with the fields that it has in a message."""
    group: dict[str, Any] = {
        "suffix": name,
        "resources": {},
        "required": [],
        "forbidden": [],
        "preferred": {},
        "member_of": [],
        "forbidden_aggregates": [],
    }
    where = f"the group {name!r}" if name else "the request"
    for word in words:
        resource, is_amount, amount = word.partition("=")
        if is_amount:
            put_once(group["resources"], resource, _amount_in(word, amount), where)
            continue
        what, is_named, value = word.partition(":")
        match what if is_named else "":
            case "tree":
                put_once(group, "in_tree", value, where)
            case "in":
                group["member_of"].append(value.split(","))
            case "out":
                group["forbidden_aggregates"].append(value)
            case "no":
                group["forbidden"].append(value)
            case "better":
                group["preferred"][value] = 1.0
            case _:
                group["required"].append(word.split(","))
    return group


def _amount_in(word: str, text: str) -> int:
    if not text.isdecimal():
        raise click.BadParameter(f"{word!r}: the amount is {text!r}, must be a whole number")
    return int(text)


async def _found(
    asking: CommandClient, question: AskCandidates
) -> tuple[tuple[Candidate, ...], dict[ProviderId, str]]:
    verdict = (await answer_of(asking, question, CandidatesFound)).verdict
    if isinstance(verdict, NotAllowed):
        fail(f"{verdict.field}: {verdict.reason}", 2)
    if isinstance(verdict, TooCostly):
        fail(
            f"the search took {verdict.spent} {verdict.what}, and at most {verdict.budget} are allowed: ask for fewer "
            "groups, or for fewer candidates by --limit"
        )
    if not isinstance(verdict, Candidates):
        fail(f"unknown resource class or trait: {await unknown_with_near(asking, verdict.names)}", 2)
    found = verdict.candidates
    return found, {each.id: each.name for each in await providers_of(asking)} if found else {}


def _columns(names: Mapping[ProviderId, str]) -> Columns[Candidate]:
    """The table of candidates: what each provider gives, and for which request group if there are several."""
    return Columns(
        {
            "host": lambda each: _name(each.share.host, names),
            "gives": lambda each: _given(each, names),
        },
        prose=("gives",),
    )


def _given(candidate: Candidate, names: Mapping[ProviderId, str]) -> str:
    by_giver: dict[ProviderId, list[str]] = {}
    for amount in candidate.share.amounts:
        by_giver.setdefault(amount.provider, []).append(f"{amount.amount} {amount.resource}")
    parts = {
        giver: ", ".join(
            sorted(suffix for suffix, givers in candidate.mappings.items() if suffix and giver in givers)
        )
        for giver in by_giver
    }
    return "; ".join(
        f"{_name(giver, names)}: {', '.join(amounts)}" + (f" for {parts[giver]}" if parts[giver] else "")
        for giver, amounts in by_giver.items()
    )


def _name(provider: ProviderId, names: Mapping[ProviderId, str]) -> str:
    """The provider's name. Its id if `names` lacks it: `names` was read a moment before or after the provider."""
    return names.get(provider, str(provider))
