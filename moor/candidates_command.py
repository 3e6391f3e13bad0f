"""`moor candidates`: who could give what is asked for, as placement finds it."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
import typer

from bus.message import ProviderId
from bus.messages.candidates import (
    AskCandidates,
    AskMoreCandidates,
    Candidate,
    Candidates,
    CandidatesFound,
    StartAgain,
    TooCostly,
)
from bus.messages.placement import NotAllowed
from moor.client import Client, client
from moor.options import AsJson, BusUrl, fail, run, settled
from moor.providers import providers_of
from moor.providers_showing import candidates_table
from moor.showing import plain, print_json
from moor.tables import print_table

WHAT = (
    "CLASS=N; TRAIT, or TRAIT,TRAIT (one of them); no:TRAIT; better:TRAIT (if there is one with it); in:AGGREGATE,AGGREGATE"
    " (one of them); out:AGGREGATE; tree:PROVIDER"
)
ALONE = (
    "A part that one provider gives by itself: NAME followed by the same words, in quotes. May be repeated."
)


def candidates(
    words: Annotated[list[str] | None, typer.Argument(metavar="WORD...", help=WHAT)] = None,
    bus: BusUrl = "",
    *,
    group: Annotated[list[str] | None, typer.Option(metavar="'NAME WORD...'", help=ALONE)] = None,
    apart: Annotated[
        bool, typer.Option("--apart", help="No two of these parts from the same provider.")
    ] = False,
    together: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME,NAME", help="These parts from below one provider; may be repeated."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="No more than these.")] = 20,
    as_json: AsJson = False,
) -> None:
    """Who could give all of this? For instance VCPU=2 MEMORY_MB=4096 HW_CPU_X86_AVX2 no:CUSTOM_SLOW."""
    named = [text.split() for text in group or ()]
    asked = {
        "type": "candidates",
        "groups": [
            *([group_of("", words)] if words else []),
            *[group_of(name, rest) for name, *rest in named],
        ],
        "group_policy": _policy(named, apart=apart),
        "same_subtree": [part.split(",") for part in together or ()],
        "limit": limit,
    }
    try:
        question = msgspec.convert(asked, AskCandidates)
    except msgspec.ValidationError as wrong:
        raise typer.BadParameter(str(wrong)) from None
    found, names = run(_found(bus, question))
    if as_json:
        print_json([plain(each) for each in found])
    elif found:
        print_table(candidates_table(found, names))
    else:
        fail("nobody could give that now; `moor provider list` shows what there is")


def group_of(name: str, words: Sequence[str]) -> dict[str, Any]:
    """The words of one part, as the bus has them."""
    group: dict[str, Any] = {
        "suffix": name,
        "resources": {},
        "required": [],
        "forbidden": [],
        "preferred": {},
        "member_of": [],
        "forbidden_aggregates": [],
    }
    for word in words:
        resource, is_amount, amount = word.partition("=")
        if is_amount:
            group["resources"][resource] = _number(word, amount)
            continue
        what, is_named, value = word.partition(":")
        match what if is_named else "":
            case "tree":
                group["in_tree"] = value
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
        raise typer.BadParameter(f"{word!r}: {text!r} is no number")
    return int(text)


def _policy(named: Sequence[object], *, apart: bool) -> Literal["isolate", "none"] | None:
    if apart:
        return "isolate"
    return "none" if len(named) > 1 else None


async def _found(bus: str, question: AskCandidates) -> tuple[list[Candidate], dict[ProviderId, str]]:
    async with client(settled(bus=bus), operates=True) as asking:
        found: list[Candidate] = []
        more: AskCandidates | AskMoreCandidates = question
        while True:
            page = await _page(asking, more)
            found += page.candidates
            if page.next is None:
                break
            more = AskMoreCandidates(answer=page.next.answer, page=page.next.page)
        names = {each.id: each.name for each in await providers_of(asking)} if found else {}
    return found, names


async def _page(asking: Client, question: AskCandidates | AskMoreCandidates) -> Candidates:
    answer = await asking.ask(question)
    assert isinstance(answer, CandidatesFound), f"a question for candidates was answered by {answer!r}"
    verdict = answer.verdict
    if isinstance(verdict, StartAgain):
        fail("the answer was forgotten before all of it was read: ask again")
    if isinstance(verdict, NotAllowed):
        fail(f"{verdict.field}: {verdict.reason}", 2)
    if isinstance(verdict, TooCostly):
        fail(
            f"the search came to {verdict.spent} {verdict.what}, {verdict.budget} are the most: ask for fewer groups, or "
            "for fewer candidates by --limit"
        )
    if not isinstance(verdict, Candidates):
        fail(f"there is no such name: {', '.join(verdict.names)}", 2)
    return verdict
