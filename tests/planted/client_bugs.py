"""Planted bugs in the public client, and in the commands of `moor`."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager, nullcontext
from functools import wraps
from typing import Any

from msgspec import structs

from bus.messages.cell import ConsoleFound
from moor import options, resource_commands, showing, tables
from moor.broker import messages_command
from moor.client import bus_client, dead_letters, finding, hosts, instances, requests
from moor.client.books import auditing
from moor.client.books.auditing import AuditResult
from moor.client.bus_client import BusClient, InstanceFollower, InstanceWatch
from moor.client.client import ClientThread
from moor.client.errors import Rejected
from moor.client.instances import InstanceCalls
from moor.client.keeping import KeepingCalls
from moor.client.requests import SentRequest
from moor.client.stored import StoredCalls
from moor.instances import boot_command, hosts_command, instances_command, stored_commands
from moor.instances import requests as instance_options
from moor.placement import providers_command, quota_command
from tests.planted.replacing import planted, planted_as, planted_by, replaced, replaced_in


def _first_page(owner: Any) -> AbstractContextManager[None]:
    """Only the first page of an answer is read."""

    def planted(real: Any) -> Any:
        async def pages_of(*question: Any) -> AsyncGenerator[Any, None]:
            async with aclosing(real(*question)) as pages:
                yield await anext(pages)

        return pages_of

    return replaced(owner, "pages_of", planted)


planted_as("a list of the client ends after its first page")(lambda: _first_page(requests))


planted_as("a large request is explained in part")(lambda: _first_page(instances))


# One question is asked for all instances that are named, and it has a limit.
@planted_by("the sizes of many instances are told in part", InstanceCalls, "look")
def sizes_of_the_first_only(real: Any) -> Any:
    @wraps(real)
    async def look(self: Any, *ids: Any) -> Any:
        return await real(self, *ids[: bus_client.FOUND_AT_ONCE_MAX])

    return look


# A list of the instances with a name, or of a cell, is that of all.
@planted_by("a list by name or cell has all instances", InstanceCalls, "list_instances")
def list_not_by_name(real: Any) -> Any:
    @wraps(real)
    def list_instances(self: Any, **wanted: Any) -> Any:
        return real(self, **{**wanted, "name": "", "cell": ""})

    return list_instances


# If one of several ids is unknown, the order is carried out for the others.
@planted("an unknown id is passed over", finding, "_found_by_ids")
async def unknown_id_passed_over(real: Any, *asked: Any) -> Any:
    known, unknown = await real(*asked)
    return known, [] if known else unknown


# A boot has a new id each time, also one that is sent again with the id of the first one.
@planted_by("a boot sent again is built twice", InstanceCalls, "boot", harm="doubled")
def own_request_id_dropped(real: Any) -> Any:
    @wraps(real)
    async def boot(self: Any, flavor: Any, **fields: Any) -> Any:
        return await real(self, flavor, **{**fields, "request_id": None})

    return boot


# To wait until an order is done is to wait until it has ended.
planted_by("an order that has failed counts as done", SentRequest, "until_done", harm="lost")(
    lambda _real: SentRequest.until_ended
)


# The client returns when the cell tells the end. A scheduler may not have heard of it, and refuses the next order.
@planted("an end is told before schedulers know of it", BusClient, "until_known")
async def end_told_before_schedulers_know(_real: Any, self: Any, states: Any, project: str = "") -> None: ...


# The state that arrives last counts, whichever is newer.
@planted("an older word about an instance counts", InstanceFollower, "take")
def older_word_counts(real: Any, self: Any, states: Any) -> None:
    for state in states:
        self.states.pop(state.id, None)
        real(self, (state,))


# An event about an instance counts, whichever cell tells it.
planted_by(
    "the word of another cell about an instance counts", InstanceFollower, "hear", harm="unauthorised"
)(lambda _real: lambda self, event: self.take((event.instance,)))


# A caller that follows an instance no more is not struck off.
@planted_by("instances that nobody follows are asked about", InstanceWatch, "of")
def left_instances_asked_about(real: Any) -> Any:
    opened = []

    @contextmanager
    def of(*asked: Any) -> Iterator[Any]:
        opened.append(real(*asked))
        yield opened[-1].__enter__()

    return of


# A client that names its project hears the events of all.
planted_by("a client hears the events of all projects", BusClient, "listen", harm="unauthorised")(
    lambda real: lambda self, *patterns, **_project: real(self, *patterns)
)


# A program that listens twice hears a part of the events at each place.
planted_by("two listeners of one client share a queue", bus_client, "_own_name")(lambda _: nullcontext)


# The error of a refused order does not say which order it was.
@planted("a refusal does not tell its request", bus_client, "granted")
def refusal_without_its_request(real: Any, *answered: Any) -> Any:
    try:
        return real(*answered)
    except Rejected as refused:
        refused.request_id = None
        raise


# Of two hosts with one name the client shows the first.
@planted("of two hosts with one name the first is shown", hosts, "host_named")
async def first_of_two_hosts_shown(real: Any, asking: Any, name: str) -> Any:
    try:
        return await real(asking, name)
    except Rejected:
        return (await bus_client.hosts_of(asking, name))[0]


# To evacuate a host that is up sets it down first, though its instances run.
@planted_by("a host that runs is evacuated", KeepingCalls, "evacuate_host", harm="doubled")
def running_host_evacuated(real: Any) -> Any:
    @wraps(real)
    async def evacuate_host(self: Any, name: str, **more: Any) -> Any:
        await self.set_host(name, "down")
        return await real(self, name, **more)

    return evacuate_host


# A host is emptied to any hosts, whichever were named.
planted_by("the hosts named for a drain are ignored", KeepingCalls, "_emptied")(
    lambda real: lambda self, work, *more: real(self, structs.replace(work, to=()), *more)
)


# A host with instances that could not be moved away looks empty.
@planted("instances that stay on a drained host are not told", KeepingCalls, "_emptied")
async def what_stays_not_told(real: Any, *asked: Any) -> Any:
    return structs.replace(await real(*asked), stayed=())


# The campaign of a drain that its user has stopped goes on.
@planted("a drain that is stopped goes on", KeepingCalls, "cancel_campaign")
async def stopped_drain_goes_on(_real: Any, self: Any, campaign: Any, **_: Any) -> Any:
    return (await self.show_campaign(campaign)).campaign


# More moves at once than a budget allows, and the audit says that all is well.
planted_by("an audit passes over exceeded budgets", auditing, "faults_of_budgets")(
    lambda _real: lambda *_: ()
)


# Too few members of a group are left in peace, and the audit says that all is well.
planted_by("an audit passes over minimums of groups", auditing, "faults_of_minimums")(
    lambda _real: lambda *_: ()
)


# A movement whose instance is gone would hold its part of the budgets for ever.
planted_by("an audit passes over movements of nothing", auditing, "faults_of_movements")(
    lambda _real: lambda *_: ()
)


# A move that is to wait for room fails if there is none.
planted_by("the wait of a move is forgotten", requests, "wait_of")(lambda _real: lambda _wait: None)


# A limit of a quota that is set to None stays.
@planted_by("a limit that was removed stays", StoredCalls, "set_quota")
def limit_not_removed(real: Any) -> Any:
    @wraps(real)
    async def set_quota(self: Any, project: str, limits: Any) -> Any:
        kept = {name: limit for name, limit in limits.items() if limit is not None}
        return await (real(self, project, kept) if kept else self.show_quota(project))

    return set_quota


@planted_as("the console on the next host is read from the middle")
def next_console_read_from_the_middle() -> AbstractContextManager[None]:
    """After a move, the console on the new host is read from where that of the old one ended."""

    class OneAttempt:
        def __init__(self, asking: Any) -> None:
            self._asking = asking

        async def ask(self, question: Any) -> Any:
            answer = await self._asking.ask(question)
            return structs.replace(answer, attempt=1) if isinstance(answer, ConsoleFound) else answer

    def planted(real: Any) -> Any:
        return lambda asking, question: real(OneAttempt(asking), question)

    return replaced(instances, "parts_of_console", planted)


# A program without asyncio that leaves a loop over events stays subscribed to them.
@planted_by("a loop that was left goes on hearing", ClientThread, "iterate")
def loop_that_was_left_goes_on(real: Any) -> Any:
    left = []

    async def passed_on(items: Any) -> AsyncGenerator[Any, None]:
        left.append(items)
        async for item in items:
            yield item

    return lambda self, items: real(self, passed_on(items))


# When time is up, the exit code is that of an order that was not done.
planted_by("a late answer exits as a refusal", (options, instances_command, boot_command), "fail")(
    lambda real: lambda why, *_code: real(why)
)


# A list without items prints nothing, also as JSON.
planted_by("an empty list is no JSON", (showing, instances_command), "print_json")(
    lambda real: lambda value: None if isinstance(value, list | tuple) and not value else real(value)
)


# A document has only the fields that are not empty, so programs do not find each field.
@planted("JSON has no empty fields", (showing, boot_command), "plain")
def empty_fields_left_out(real: Any, value: Any) -> Any:
    found = real(value)
    return (
        {name: each for name, each in found.items() if each not in ("", None)}
        if isinstance(found, dict)
        else found
    )


# All ids of a narrow table are shortened to one length, though some begin alike.
planted_by("short ids of two instances are alike", tables, "unique_length")(
    lambda _real: lambda _ids: tables.SHORT_ID
)


# A name that several instances have means the first of them.
planted_by("a name of several instances means the first", finding, "the_one", harm="destroyed")(
    lambda _real: lambda _kind, _text, found: found[0] if found else None
)


# The instance that an order names may be that of another project than the command's.
planted_by("a name means an instance of another project", instances, "instance_ids", harm="unauthorised")(
    lambda real: lambda asking, texts, _project="": real(asking, texts)
)


@planted_as("a misspelt filter is an empty list")
def misspelt_filter_is_an_empty_list() -> AbstractContextManager[None]:
    """A host or cell that does not exist looks like one without instances."""

    async def nothing(*_: Any) -> None: ...

    owners = (resource_commands, instances_command)
    return replaced_in(owners, "check_named", lambda _real: nothing)


# A host that is heard is set dead without a question.
planted_by("a host is set dead without a question", hosts_command, "why_unsure", harm="doubled")(
    lambda _real: lambda *_doubt, **_yes: ""
)


# A name that a stranger chose commands the terminal.
planted_by("a name commands the terminal", options, "printable", harm="unauthorised")(
    lambda _real: lambda text: text
)


# A list that ends at --limit does not say that there are more.
planted_by("a list that was cut looks whole", instances_command, "tell")(
    lambda real: lambda text, *style: None if "--limit" in text else real(text, *style)
)


@planted_as("of a value given twice the last counts")
def last_of_two_values_counts() -> AbstractContextManager[None]:
    """What a command line gives twice counts as it is given last."""

    def planted(_real: Any) -> Any:
        def put_once(given: Any, name: str, value: Any, _where: str) -> None:
            given[name] = value

        return put_once

    owners = (options, instance_options, stored_commands, providers_command, quota_command)
    return replaced_in(owners, "put_once", planted)


# A boot that is cut off has not said by which id its request is found.
planted_by("a boot that is cut off has not told its id", (instances_command, boot_command), "run_order")(
    lambda real: lambda following, work, _request, *stays: real(following, work, None, *stays)
)


# An order with --no-wait waits for its end.
@planted("an order without waiting waits", (instances_command, boot_command), "ended")
async def no_wait_waits(real: Any, moor: Any, sent: Any, following: Any) -> Any:
    return await real(moor, sent, structs.replace(following, wait=True))


# An audit that could not mend a fault exits as if it had.
planted_by("faults that stay exit as mended", AuditResult, "is_all_mended")(
    lambda _real: property(lambda _result: True)
)


# Dead letters of one type are one group, whatever they died of: --like decides on all of them.
planted_by(
    "dead letters of other reasons are decided together",
    (dead_letters, messages_command),
    "group_of",
    harm="destroyed",
)(lambda _real: lambda letter: (letter.queue, letter.type))
