"""Finds what a text names: by its id, else by its name, else by the beginning of its id; and the names that are like an unknown one.

A scheduler looks instances and groups up in its database, so it costs the same with a million of them. If several have a name, or
ids that begin so, that is an error with the list of them, and nothing is done.
"""

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Generic, TypeVar, get_args
from uuid import UUID

from msgspec import Struct, structs

from bus.messages.books import AskNames, NamesFound
from bus.messages.build import AskInstances, InstancesFound, InstanceState
from bus.messages.hosts import AggregatesFound, AggregateState, AskAggregates, AskHosts, HostsFound
from bus.messages.placement import AskSnapshot, SnapshotPage
from bus.messages.projects import AskGroups, GroupsFound, GroupState
from bus.messages.questions import Question
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostState, host_in_cell, why_ambiguous
from engine.inventories import AggregateId, GroupId, ProviderState, near, near_in_words, standard_vocabulary
from kit.parts import batches_of
from moor.client.bus_client import (
    FOUND_AT_ONCE_MAX,
    Asks,
    BusClient,
    answer_of,
    answers_of,
    hosts_of,
    items_of,
    pages_of,
)
from moor.client.errors import Ambiguous, NotFound, Rejected
from moor.client.requests import StateName

T = TypeVar("T")

# An id, a name, or the beginning of an id.
Named = UUID | str

PAGE = 500
PREFIX_MIN = 4
# How many of the things that a text may mean are listed.
CANDIDATES_MAX = 8
_PREFIX = re.compile(rf"[0-9a-f]{{{PREFIX_MIN},32}}")


class NamedKind(Struct, Generic[T], frozen=True):
    """What can be named: the word for it, and what is listed of several that a text may mean."""

    what: str
    id_of: Callable[[T], UUID]
    name_of: Callable[[T], str]
    state_of: Callable[[T], str]


INSTANCES = NamedKind[InstanceState](
    "instance", lambda each: each.id, lambda each: each.name, lambda each: each.state
)
GROUPS = NamedKind[GroupState](
    "server group",
    lambda each: each.id,
    lambda each: each.name,
    lambda each: f"{each.policy}, {each.size} members",
)
AGGREGATES = NamedKind[AggregateState](
    "aggregate", lambda each: each.id, lambda each: each.name, lambda each: f"{each.hosts_count} hosts"
)
PROVIDERS = NamedKind[ProviderState](
    "provider", lambda each: each.id, lambda each: each.name, lambda each: each.cell
)


QUESTIONS = NamedKind[Question](
    "question",
    lambda each: each.id,
    lambda each: host_in_cell(each.cell, each.host),
    lambda each: each.life,
)


def id_in(named: Named) -> UUID | None:
    """The id that this is; None if it is a name, or the beginning of an id."""
    try:
        return named if isinstance(named, UUID) else UUID(named)
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
    """The only one of these, or None if there is none. Raises `Ambiguous`."""
    if len(found) > 1:
        lines = [_line(kind, each) for each in found[:CANDIDATES_MAX]]
        raise Ambiguous(kind.what, text, lines, more=len(found) > CANDIDATES_MAX)
    return found[0] if found else None


def _line(kind: NamedKind[T], each: T) -> str:
    return "  ".join(filter(None, (str(kind.id_of(each)), kind.name_of(each), kind.state_of(each))))


def one_of(kind: NamedKind[T], named: Named, everything: Iterable[T]) -> T:
    """The one of all these that is named. Raises `NotFound` or `Ambiguous`."""
    known, text = [*everything], str(named)
    id_, prefix = id_in(named), prefix_in(text)
    found = [each for each in known if kind.id_of(each) == id_]
    found = found or [each for each in known if kind.name_of(each) == text and text]
    found = found or [each for each in known if prefix and kind.id_of(each).hex.startswith(prefix)]
    one = the_one(kind, text, found)
    if one is None:
        raise NotFound(kind.what, text, near=near(text, map(kind.name_of, known)))
    return one


async def host_named(asking: Asks, name: str) -> HostState:
    """The only host of this name, `CELL/NAME` if several cells have it, or its id. Raises `NotFound` or `Rejected`."""
    found = (await answer_of(asking, AskHosts(name=name), HostsFound)).hosts if name else ()
    if not found:
        raise NotFound("host", name, near=near(name, [each.name for each in await hosts_of(asking)]))
    if len(found) > 1:
        raise Rejected("host", name, why_ambiguous(name, found))
    return found[0]


async def instance_ids(asking: BusClient, named: Sequence[Named], project: str = "") -> list[InstanceId]:
    """The ids of the instances that are named. A whole id is not looked up: the order that names it is judged."""
    texts = [text for text in dict.fromkeys(map(str, named)) if id_in(text) is None]
    found = await _named(asking, texts, project)
    known = {text: the_one(INSTANCES, text, each) for text, each in zip(texts, found, strict=True)}
    if unknown := [text for text, state in known.items() if state is None]:
        raise NotFound("instance", *unknown)
    return [
        *dict.fromkeys(
            state.id if (state := known.get(text)) else InstanceId(UUID(text)) for text in map(str, named)
        )
    ]


async def instances_or_requests(
    asking: BusClient, named: Sequence[Named], project: str = ""
) -> InstancesFound:
    """The instances that are named, and all instances of requests whose ids are given, or the beginning of one; with what pages say
    beside their states.
    """
    ids: dict[str, UUID] = {str(each): id_ for each in named if (id_ := id_in(each)) is not None}
    texts = [text for text in dict.fromkeys(map(str, named)) if text not in ids]
    instances, requests = await _ids_of_names(asking, texts, project)
    ids |= {**instances, **requests}
    pages, missing = await _found_by_ids(asking, ids.values(), project)
    unknown: list[UUID | str] = [text for text in texts if text not in ids]
    unknown += [id_ for id_ in ids.values() if id_ in missing]
    if unknown:
        raise NotFound("instance and no request", *unknown)
    states = {each.id: each for page in pages for each in page.instances}
    return InstancesFound(
        instances=tuple(states.values()),
        cells=tuple({each.cell: each for page in pages for each in page.cells}.values()),
        details=tuple({each.id: each for page in pages for each in page.details}.values()),
    )


async def instance_or_request_id(asking: BusClient, named: Named, project: str) -> UUID:
    """The id of the instance or of the request that is named."""
    if (id_ := id_in(named)) is not None:
        return id_
    instances, requests = await _ids_of_names(asking, [str(named)], project)
    for found in (*instances.values(), *requests.values()):
        return found
    raise NotFound("instance and no request", named)


async def instances_named(asking: BusClient, texts: Sequence[str]) -> dict[str, InstanceState]:
    """The instance that each of these texts names; texts that name none are left out."""
    found = zip(texts, await _named(asking, texts, ""), strict=True)
    known = {text: the_one(INSTANCES, text, each) for text, each in found}
    return {text: state for text, state in known.items() if state is not None}


async def _found_by_ids(
    asking: BusClient, ids: Iterable[UUID], project: str
) -> tuple[list[InstancesFound], list[UUID]]:
    """Pages of the instances with these ids; for an id of a request, of all its instances. And the ids that are neither.

    Schedulers obey a delete that arrives before its build request. So a mistyped id must not be sent: it would cancel a later
    request with that id.
    """
    wanted = [*dict.fromkeys(ids)]
    questions = [
        AskInstances(instances=tuple(map(InstanceId, some)), limit=FOUND_AT_ONCE_MAX, project=project)
        for some in batches_of(wanted, FOUND_AT_ONCE_MAX)
    ]
    found = await answers_of(asking, questions, InstancesFound)
    known = {each.id for page in found for each in page.instances}
    unknown = []
    for id_ in wanted:
        if InstanceId(id_) in known:
            continue
        question = AskInstances(request_id=RequestId(id_), limit=FOUND_AT_ONCE_MAX, project=project)
        of_request = [page async for page in pages_of(asking, question, InstancesFound)]
        found += of_request
        if not any(page.instances for page in of_request):
            unknown.append(id_)
    return found, unknown


async def _ids_of_names(
    asking: BusClient, texts: Sequence[str], project: str
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


async def _named(asking: BusClient, texts: Sequence[str], project: str) -> list[Sequence[InstanceState]]:
    """For each text, the instances with this name, or of several the one that lives; else those whose ids begin so; else the deleted
    ones with this name.
    """
    if "" in texts:
        raise Rejected("instance", "", "the name or id of an instance is empty")
    every = AskInstances(project=project, limit=CANDIDATES_MAX + 1)
    living = structs.replace(every, living=True)
    found: dict[str, Sequence[InstanceState]] = dict.fromkeys(texts, ())
    for questions in (
        {text: structs.replace(living, name=text) for text in texts},
        {text: structs.replace(living, id_prefix=prefix) for text in texts if (prefix := prefix_in(text))},
        {text: structs.replace(every, name=text) for text in texts},
    ):
        wanted = {text: question for text, question in questions.items() if not found[text]}
        pages = await _first_of(asking, [*wanted.values()])
        found |= dict(zip(wanted, pages, strict=True))
        for text, question in wanted.items():
            some = found[text]
            if (
                question.living
                and question.name
                and len(some) > 1
                and any(each.state in _GONE for each in some)
            ):
                found[text] = await _living_first(asking, question, some)
    return [found[text] for text in texts]


# An instance that is so is hardly meant by its name, if another one has it.
_GONE = ("error", "deleting", "deleted")
_ALIVE = tuple(each for each in get_args(StateName) if each not in _GONE)


async def _living_first(
    asking: BusClient, question: AskInstances, found: Sequence[InstanceState]
) -> Sequence[InstanceState]:
    """The only one that lives; or all of several, those that live before the others. Thousands may have ended in error under one name."""
    pages = await _first_of(asking, [structs.replace(question, state=state) for state in _ALIVE])
    alive = [each for page in pages for each in page]
    if len(alive) == 1:
        return alive
    return [*{each.id: each for each in (*alive, *found)}.values()][: question.limit]


async def _first_of(asking: BusClient, questions: Sequence[AskInstances]) -> list[Sequence[InstanceState]]:
    """The first instances that each of these questions asks for. A page of few may say that there are more."""
    pages = await answers_of(asking, questions, InstancesFound)
    found: list[Sequence[InstanceState]] = []
    for question, page in zip(questions, pages, strict=True):
        some, after = page.instances, page.next
        while after is not None and len(some) < question.limit:
            more = await answer_of(asking, structs.replace(question, after=after), InstancesFound)
            some, after = (*some, *more.instances), more.next
        found.append(some[: question.limit])
    return found


async def _request_named(
    asking: BusClient, text: str, found: Sequence[InstanceState], project: str
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
        raise Ambiguous("instance or request", text, lines[:CANDIDATES_MAX], more=more)
    return None


async def group_id(asking: Asks, named: Named, project: str = "") -> GroupId:
    """The id of the server group that is named. A whole id is not looked up."""
    if (id_ := id_in(named)) is not None:
        return GroupId(id_)
    text = str(named)
    if not text:
        raise Rejected("group", "", "the name or id of a server group is empty")
    prefix, limit = prefix_in(text), CANDIDATES_MAX + 1
    question = AskGroups(name=text, project=project, limit=limit)
    found = (await answer_of(asking, question, GroupsFound)).groups
    if not found and prefix:
        question = structs.replace(question, name="", id_prefix=prefix)
        found = (await answer_of(asking, question, GroupsFound)).groups
    one = the_one(GROUPS, text, found)
    if one is None:
        first = (
            await answer_of(asking, AskGroups(project=project, limit=FOUND_AT_ONCE_MAX), GroupsFound)
        ).groups
        raise NotFound(GROUPS.what, text, near=near(text, map(GROUPS.name_of, first)))
    return one.id


async def aggregate_ids(asking: Asks, named: Sequence[Named]) -> list[AggregateId]:
    """The ids of the aggregates that are named. Whole ids are not looked up: providers may name aggregates of which schedulers know
    nothing else.
    """
    if all(id_in(each) is not None for each in named):
        return [*dict.fromkeys(AggregateId(id_) for each in named if (id_ := id_in(each)))]
    known = await items_of(asking, AskAggregates(limit=PAGE), AggregatesFound, lambda page: page.aggregates)
    return [*dict.fromkeys(AggregateId(id_in(each) or one_of(AGGREGATES, each, known).id) for each in named)]


async def provider_named(asking: Asks, named: Named) -> ProviderState:
    every = await items_of(asking, AskSnapshot(limit=PAGE), SnapshotPage, lambda page: page.providers)
    return one_of(PROVIDERS, named, every)


async def unknown_with_near(asking: Asks, names: Iterable[str]) -> str:
    """These names, which placement does not know, each with those near it: standard ones, and custom ones."""
    known = [*standard_vocabulary().names]
    for kind in ("classes", "traits"):
        known += await items_of(asking, AskNames(of=kind, limit=PAGE), NamesFound, lambda page: page.names)
    return ", ".join(f"{name}{near_in_words(near(name, known))}" for name in names)
