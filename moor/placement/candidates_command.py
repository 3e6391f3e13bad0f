"""`moor candidates`: placement's allocation candidates for a question on the command line."""

from collections.abc import Collection, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
import typer

from bus.messages.administration import CANDIDATES_MAX, AskCandidates, Candidate, Candidates, CandidatesFound
from engine.inventories import ProviderId
from engine.refusals import NotAllowed, TooCostly
from moor.asking import CommandClient, answer_of, ask_bus, providers_of, readable
from moor.client.errors import NotSendable
from moor.naming import unknown_with_near
from moor.options import BusUrl, Output, fail, put_once, wants_document
from moor.showing import print_all
from moor.tables import Columns

WORDS_HELP = (
    "CLASS=N (amount); TRAIT or TRAIT,TRAIT (required: any one of them); no:TRAIT (forbidden); better:TRAIT (preferred); "
    "in:AGGREGATE,AGGREGATE (in any one of them); out:AGGREGATE; tree:PROVIDER"
)
GROUP_HELP = "A request group that a single provider must satisfy: NAME and the same words, in quotes. May be repeated."


def candidates(
    words: Annotated[list[str] | None, typer.Argument(metavar="WORD...", help=WORDS_HELP)] = None,
    bus: BusUrl = "",
    *,
    group: Annotated[list[str] | None, typer.Option(metavar="'NAME WORD...'", help=GROUP_HELP)] = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="No two groups from the same provider (isolate).")
    ] = False,
    together: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME,NAME",
            help="These groups from the subtree of one provider (same_subtree); may be repeated.",
        ),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=CANDIDATES_MAX, help="How many candidates at most.")] = 20,
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
        "group_policy": _policy(named, apart=apart),
        "same_subtree": [part.split(",") for part in together or ()],
        "limit": limit,
    }
    try:
        question = readable(msgspec.json.encode({"message": asked}))
    except NotSendable as wrong:
        raise typer.BadParameter(str(wrong)) from None
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
            put_once(group["resources"], resource, _number(word, amount), where)
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


def _number(word: str, text: str) -> int:
    if not text.isdecimal():
        raise typer.BadParameter(f"{word!r}: the amount is {text!r}, must be a whole number")
    return int(text)


def _policy(named: Collection[str], *, apart: bool) -> Literal["isolate", "none"] | None:
    if apart:
        return "isolate"
    return "none" if len(named) > 1 else None


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
