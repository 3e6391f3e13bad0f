"""Finds what the words of a command line name: by its id, else by its name, else by the beginning of its id.

A scheduler looks instances and groups up in its database, so a command costs the same with a million of them. If several have a
name, or ids that begin so, the command ends with the list of them, and nothing is done.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from difflib import get_close_matches
from typing import Generic, NoReturn, TypeVar
from uuid import UUID

import click
from msgspec import Struct, structs

from bus.messages.administration import AskNames, NamesFound
from bus.messages.build import AskInstances, BuildInstance, BuildRejected, InstancesFound, InstanceState
from bus.messages.hosts import AggregatesFound, AggregateState, AskAggregates
from bus.messages.planning import AskCapabilities, CapabilitiesFound
from bus.messages.stored_names import AskGroups, GroupsFound, GroupState
from engine.flavors import InstanceId, RequestId
from engine.inventories import AggregateId, GroupId
from moor.asking import (
    FOUND_AT_ONCE_MAX,
    PAGE,
    Asks,
    CommandClient,
    answer_of,
    answers_of,
    items_of,
    pages_of,
)
from moor.client.errors import Rejected
from moor.client.instances import found_by_ids
from moor.options import fail

T = TypeVar("T")

PREFIX_MIN = 4
# How many of the things that a text may mean are listed.
CANDIDATES_MAX = 8
_PREFIX = re.compile(rf"[0-9a-f]{{{PREFIX_MIN},32}}")


class NamedKind(Struct, Generic[T], frozen=True):
    """What can be named: the word for it, how to see all, and what is listed of several that a text may mean."""

    what: str
    shown_by: str
    id_of: Callable[[T], UUID]
    name_of: Callable[[T], str]
    state_of: Callable[[T], str]


INSTANCES = NamedKind[InstanceState](
    "instance",
    "`moor list` shows all instances",
    lambda each: each.id,
    lambda each: each.name,
    lambda each: each.state,
)
GROUPS = NamedKind[GroupState](
    "server group",
    "`moor group list` shows all groups",
    lambda each: each.id,
    lambda each: each.name,
    lambda each: f"{each.policy}, {each.size} members",
)
AGGREGATES = NamedKind[AggregateState](
    "aggregate",
    "`moor aggregate list` shows all aggregates",
    lambda each: each.id,
    lambda each: each.name,
    lambda each: f"{each.hosts_count} hosts",
)


def id_in(text: str) -> UUID | None:
    """The id that this text is; None if it is a name, or the beginning of an id."""
    try:
        return UUID(text)
    except ValueError:
        return None


def prefix_in(text: str) -> str:
    """The digits of an id that begins like this text. Empty if no id does, or if these are fewer than PREFIX_MIN."""
    digits = text.lower().replace("-", "")
    if not _PREFIX.fullmatch(digits):
        return ""
    as_printed = str(UUID(digits.ljust(32, "0")))
    return digits if text.lower() in (digits, as_printed[: len(text)]) else ""


def the_one(kind: NamedKind[T], text: str, found: Sequence[T]) -> T | None:
    """The only one of these, or None if there is none. If there are several, end the command with the list of them."""
    if len(found) > 1:
        lines = [_line(kind, each) for each in found[:CANDIDATES_MAX]]
        fail_ambiguous(kind.what, text, lines, more=len(found) > CANDIDATES_MAX)
    return found[0] if found else None


def fail_ambiguous(what: str, text: str, lines: Sequence[str], *, more: bool) -> NoReturn:
    shown = "".join(f"\n  {line}" for line in lines)
    others = "\n  and others" if more else ""
    fail(f"{what} {text!r} may be any of these, so nothing was done; give the whole id:{shown}{others}")


def _line(kind: NamedKind[T], each: T) -> str:
    return "  ".join(filter(None, (str(kind.id_of(each)), kind.name_of(each), kind.state_of(each))))


def fail_unknown(what: str, texts: Iterable[str], shown_by: str) -> NoReturn:
    fail(f"there is no {what} {', '.join(texts)}, so nothing was done; {shown_by}")


def one_of(kind: NamedKind[T], text: str, everything: Iterable[T]) -> T:
    """The one of all these that the text names, by its id, its name, or the beginning of its id."""
    known = [*everything]
    id_, prefix = id_in(text), prefix_in(text)
    found = [each for each in known if kind.id_of(each) == id_]
    found = found or [each for each in known if kind.name_of(each) == text and text]
    found = found or [each for each in known if prefix and kind.id_of(each).hex.startswith(prefix)]
    one = the_one(kind, text, found)
    if one is None:
        fail_unknown(kind.what, (repr(text),), kind.shown_by)
    return one


async def instance_ids(asking: CommandClient, texts: Sequence[str], project: str = "") -> list[InstanceId]:
    """The ids of the instances that these texts name. A whole id is not looked up: the order that names it is judged."""
    named = [text for text in dict.fromkeys(texts) if id_in(text) is None]
    found = await _named(asking, named, project)
    known = {text: the_one(INSTANCES, text, each) for text, each in zip(named, found, strict=True)}
    if unknown := [repr(text) for text, state in known.items() if state is None]:
        fail_unknown("instance", unknown, INSTANCES.shown_by)
    return [
        *dict.fromkeys(state.id if (state := known.get(text)) else InstanceId(UUID(text)) for text in texts)
    ]


async def instance_id(asking: CommandClient, text: str, project: str = "") -> InstanceId:
    (id_,) = await instance_ids(asking, [text], project)
    return id_


async def instances_or_requests(
    asking: CommandClient, texts: Sequence[str], project: str = ""
) -> dict[InstanceId, InstanceState]:
    """The instances that these texts name, and all instances of requests whose ids they give, or the beginning of one."""
    ids: dict[str, UUID] = {text: id_ for text in texts if (id_ := id_in(text)) is not None}
    named = [text for text in dict.fromkeys(texts) if text not in ids]
    instances, requests = await _ids_of_names(asking, named, project)
    ids |= {**instances, **requests}
    known, missing = await found_by_ids(asking, ids.values(), project)
    unknown = [repr(text) for text in named if text not in ids]
    unknown += [text for text, id_ in ids.items() if id_ in missing]
    if unknown:
        fail_unknown("instance and no request", unknown, INSTANCES.shown_by)
    return known


async def instances_named(asking: CommandClient, texts: Sequence[str]) -> dict[str, InstanceState]:
    """The instance that each of these texts names; texts that name none are left out."""
    found = zip(texts, await _named(asking, texts, ""), strict=True)
    known = {text: the_one(INSTANCES, text, each) for text, each in found}
    return {text: state for text, state in known.items() if state is not None}


async def instance_or_request_id(asking: CommandClient, text: str, project: str) -> UUID:
    """The id of the instance or of the request that this text names."""
    instances, requests = await _ids_of_names(asking, [text], project)
    for id_ in (*instances.values(), *requests.values()):
        return id_
    fail_unknown("instance and no request", (repr(text),), INSTANCES.shown_by)


async def _ids_of_names(
    asking: CommandClient, texts: Sequence[str], project: str
) -> tuple[dict[str, InstanceId], dict[str, RequestId]]:
    """Which instances and which requests these texts name. Those that name nothing are in neither."""
    instances: dict[str, InstanceId] = {}
    requests: dict[str, RequestId] = {}
    for text, found in zip(texts, await _named(asking, texts, project), strict=True):
        if (request := await _request_named(asking, text, found, project)) is not None:
            requests[text] = request
        elif (state := the_one(INSTANCES, text, found)) is not None:
            instances[text] = state.id
    return instances, requests


async def _named(asking: CommandClient, texts: Sequence[str], project: str) -> list[Sequence[InstanceState]]:
    """For each text, the instances with this name; else those whose ids begin so; else the deleted ones with this name."""
    if "" in texts:
        raise click.BadParameter("the name or id of an instance is empty")
    every = AskInstances(project=project, limit=CANDIDATES_MAX + 1)
    living = structs.replace(every, living=True)
    found: dict[str, Sequence[InstanceState]] = dict.fromkeys(texts, ())
    for questions in (
        {text: structs.replace(living, name=text) for text in texts},
        {text: structs.replace(living, id_prefix=prefix) for text in texts if (prefix := prefix_in(text))},
        {text: structs.replace(every, name=text) for text in texts},
    ):
        wanted = {text: question for text, question in questions.items() if not found[text]}
        answers = await answers_of(asking, [*wanted.values()], InstancesFound)
        found |= {text: page.instances for text, page in zip(wanted, answers, strict=True)}
    return [found[text] for text in texts]


async def _request_named(
    asking: CommandClient, text: str, found: Sequence[InstanceState], project: str
) -> RequestId | None:
    """The request whose id begins like this text, unless an instance has this name. The ids of a request and of its instances
    begin alike: if it has one instance, either is meant.
    """
    prefix = prefix_in(text)
    if not prefix or any(each.name == text for each in found):
        return None
    question = AskInstances(request_prefix=prefix, living=True, project=project, limit=FOUND_AT_ONCE_MAX)
    requests: dict[RequestId, int] = {}
    async for page in pages_of(asking, question, InstancesFound):
        for each in page.instances:
            requests[each.request_id] = requests.get(each.request_id, 0) + 1
        if len(requests) > CANDIDATES_MAX:
            break
    alone = {each.request_id for each in found if requests.get(each.request_id) == 1}
    others = [request for request in requests if request not in alone]
    if len(others) == 1 and not found:
        return others[0]
    if others:
        lines = [
            *(f"{id_}  request of {requests[id_]} instances" for id_ in others),
            *(_line(INSTANCES, each) for each in found),
        ]
        more = len(lines) > CANDIDATES_MAX
        fail_ambiguous("instance or request", text, lines[:CANDIDATES_MAX], more=more)
    return None


async def group_id(asking: Asks, text: str, project: str = "") -> GroupId:
    """The id of the server group that this text names. A whole id is not looked up."""
    if (id_ := id_in(text)) is not None:
        return GroupId(id_)
    if not text:
        raise click.BadParameter("the name or id of a server group is empty")
    prefix, limit = prefix_in(text), CANDIDATES_MAX + 1
    question = AskGroups(name=text, project=project, limit=limit)
    found = (await answer_of(asking, question, GroupsFound)).groups
    if not found and prefix:
        question = structs.replace(question, name="", id_prefix=prefix)
        found = (await answer_of(asking, question, GroupsFound)).groups
    one = the_one(GROUPS, text, found)
    if one is None:
        fail_unknown(GROUPS.what, (repr(text),), GROUPS.shown_by)
    return one.id


async def aggregate_ids(asking: Asks, texts: Sequence[str]) -> list[AggregateId]:
    """The ids of the aggregates that these texts name. Whole ids are not looked up: providers may name aggregates of which
    schedulers know nothing else.
    """
    if all(id_in(text) is not None for text in texts):
        return [*dict.fromkeys(AggregateId(UUID(text)) for text in texts)]
    known = await items_of(asking, AskAggregates(limit=PAGE), AggregatesFound, lambda page: page.aggregates)
    return [*dict.fromkeys(AggregateId(id_in(text) or one_of(AGGREGATES, text, known).id) for text in texts)]


# Names of traits and resource classes that are like one that nobody knows.

CUSTOM = "CUSTOM_"
NAMES_MAX = 3
# The keys of extra specs that ask for a trait or an amount, of the instance or of a group.
_ASKED = re.compile(r"(?:trait|resources)[^:]*:(CUSTOM_[A-Z0-9_]+)")


def standard_classes() -> list[str]:
    # Few commands need them, and they take a tenth of a second to load.
    import os_resource_classes  # noqa: PLC0415

    return [*os_resource_classes.STANDARDS]


def standard_traits() -> list[str]:
    import os_traits  # noqa: PLC0415 - as above

    return [*os_traits.get_traits()]


def standard_names() -> list[str]:
    return [*standard_classes(), *standard_traits()]


def near(name: str, known: Iterable[str]) -> str:
    """What an error says beside an unknown name: `; near it are VCPU, PCPU`. Empty if no known name is like it."""
    # That two names are custom does not make them alike.
    by_own: dict[str, list[str]] = {}
    for each in sorted({*known} - {name}):
        by_own.setdefault(each.removeprefix(CUSTOM), []).append(each)
    own = get_close_matches(name.upper().removeprefix(CUSTOM), by_own, n=NAMES_MAX)
    close = [each for found in own for each in by_own[found]][:NAMES_MAX]
    return f"; near it are {', '.join(close)}" if close else ""


def near_texts(name: str, known: Iterable[str]) -> str:
    """As `near`, for names that people choose."""
    close = get_close_matches(name, sorted({*known}), n=NAMES_MAX)
    return f"; near it are {', '.join(close)}" if close else ""


def hint_for(refused: BuildRejected | Rejected) -> str:
    """The standard names near the one that a scheduler refuses."""
    return near(refused.value, standard_names()) if "neither a standard one" in refused.reason else ""


async def unknown_with_near(asking: Asks, names: Iterable[str]) -> str:
    """These names, which placement does not know, each with those near it: standard ones, and custom ones."""
    known = standard_names()
    for kind in ("classes", "traits"):
        question = AskNames(of=kind, limit=PAGE)
        known += await items_of(asking, question, NamesFound, lambda page: page.names)
    return ", ".join(f"{name}{near(name, known)}" for name in names)


async def hints_for(asking: Asks, build: BuildInstance) -> list[str]:
    """For each custom trait and class that the request asks for and no host has: the names near it that some host has."""
    specs = [each.extra_specs for each in (build.flavor, *build.alternatives) if each is not None]
    asked = {
        found[1]
        for spec in specs
        for key, value in spec.items()
        if value != "forbidden" and (found := _ASKED.fullmatch(key))
    }
    if not asked:
        return []
    question = AskCapabilities(limit=PAGE)
    known = await items_of(asking, question, CapabilitiesFound, lambda page: page.capabilities)
    names = {each.name for each in known}
    return [f"no host has {name}{near(name, names)}" for name in sorted(asked - names)]
