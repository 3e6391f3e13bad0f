"""`moor quota` and `moor candidates`: what projects may have and hold, and what placement would give."""

from collections.abc import Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Annotated, Any

import click
from rich.text import Text

from engine.inventories import INSTANCES, ProviderId
from moor.client import Candidate, Client, TypeUsage
from moor.flags import argument, option
from moor.options import BusUrl, Output, fail, pairs_of, put_once, wants_document, with_client
from moor.resource_commands import commands_of, print_thing
from moor.resources import QUOTA
from moor.showing import print_all
from moor.tables import Columns, print_table

app = commands_of(
    QUOTA, "Quotas: how much a project may have of each resource class, and how many instances."
)

NO_LIMIT = "none"
# How many candidates one question may ask for.
CANDIDATES_MAX = 1000

Project = Annotated[str, argument(metavar="PROJECT")]
Pairs = Annotated[
    list[str],
    argument(
        metavar="NAME=LIMIT...",
        help=f"`{INSTANCES}` or a resource class, such as VCPU=64. `{NO_LIMIT}` removes a limit.",
    ),
]


@app.verb("set")
def set_quota(project: Project, pairs: Pairs, bus: BusUrl = "", *, _output: Output = None) -> None:
    """Set limits of a project. Limits that are not named stay. Nothing is taken from a project that has more."""
    limits = {name: _limit(name, text) for name, text in pairs_of("NAME=LIMIT", pairs).items()}
    print_thing(QUOTA, with_client(bus, lambda moor: moor.set_quota(project, limits), operates=True))


def _limit(name: str, text: str) -> int | None:
    if text == NO_LIMIT:
        return None
    if not text.isdecimal() or not text.isascii():
        raise click.BadParameter(
            f"NAME=LIMIT is {f'{name}={text}'!r}: the limit must be a number of 0 or more, or {NO_LIMIT!r}"
        )
    return int(text)


@app.verb()
def usage(
    project: Project,
    bus: BusUrl = "",
    *,
    user: Annotated[str, option(help="Only what this user's consumers hold.")] = "",
    _output: Output = None,
) -> None:
    """Show how much a project holds of each class, by the type of consumer."""
    usages = with_client(bus, lambda moor: moor.usage(project, user=user), operates=True)
    print_all(usages, _print_usages, f"project {project!r} holds nothing")


def _print_usages(usages: Sequence[TypeUsage]) -> None:
    """One row per type of consumer, and a row with the totals if there are several types."""
    resources = sorted({resource for each in usages for resource in each.used})
    table = [(Text(each.type or "unknown"), each.consumers, each.used) for each in usages]
    if len(usages) > 1:
        total = {name: sum(each.used.get(name, 0) for each in usages) for name in resources}
        table.append((Text("all", "bold"), sum(each.consumers for each in usages), total))
    of_classes = {name: partial(lambda name, row: str(row[2].get(name, 0)), name) for name in resources}
    print_table(table, Columns({"consumers": itemgetter(0), "": lambda row: str(row[1]), **of_classes}))


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
    groups = [
        *([request_group("", words)] if words else []),
        *[request_group(name, text.split()[1:]) for name, text in named.items()],
    ]
    more = {
        "group_policy": "isolate" if apart else "none" if len(named) > 1 else None,
        "same_subtree": [part.split(",") for part in together or ()],
        "limit": limit,
    }

    async def work(moor: Client) -> tuple[Sequence[Candidate], dict[ProviderId, str]]:
        found = (await moor.candidates(groups, more)).candidates
        every = await moor.list_providers() if found else []
        return found, {each.id: each.name for each in every}

    found, names = with_client(bus, work, operates=True)
    if not (found or wants_document()):
        fail("no provider can satisfy this now; `moor provider list` shows what exists")
    # What each provider gives, and for which request group if there are several.
    columns = Columns[Candidate](
        {
            "host": lambda each: _name(each.share.host, names),
            "gives": lambda each: _given(each, names),
        },
        prose=("gives",),
    )
    print_all(found, columns)


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
