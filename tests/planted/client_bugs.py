"""Planted bugs in the public client, and in the commands of `moor`."""

from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractContextManager, aclosing, contextmanager
from functools import wraps
from typing import Any

from msgspec import structs

from bus.messages.cell import ConsoleFound
from moor import naming, options, showing, tables
from moor.books import audit_command
from moor.books.auditing import AuditResult
from moor.broker import messages_command
from moor.client import bus_client, hosts, instances, requests
from moor.client.bus_client import BusClient, InstanceFollower, InstanceWatch
from moor.client.client import SyncClient
from moor.client.errors import Rejected
from moor.client.hosts import HostCalls, HostMoves
from moor.client.instances import InstanceCalls
from moor.client.requests import SentRequest
from moor.client.stored import QuotaCalls
from moor.instances import boot_command, hosts_command, instances_command, move_commands, stored_commands
from moor.instances import requests as instance_options
from moor.placement import providers_command, quota_command
from tests.planted.replacing import PlantedBug, replaced, replaced_in


def _first_page(owner: Any) -> AbstractContextManager[None]:
    """Only the first page of an answer is read."""

    def planted(real: Any) -> Any:
        async def pages_of(*question: Any) -> AsyncGenerator[Any, None]:
            async with aclosing(real(*question)) as pages:
                yield await anext(pages)

        return pages_of

    return replaced(owner, "pages_of", planted)


def list_cut_after_its_first_page() -> AbstractContextManager[None]:
    return _first_page(requests)


def explained_in_part() -> AbstractContextManager[None]:
    return _first_page(instances)


def sizes_of_the_first_only() -> AbstractContextManager[None]:
    """One question is asked for all instances that are named, and it has a limit."""

    def planted(real: Any) -> Any:
        @wraps(real)
        async def details(self: Any, *ids: Any) -> Any:
            return await real(self, *ids[: bus_client.FOUND_AT_ONCE_MAX])

        return details

    return replaced(InstanceCalls, "details", planted)


def list_not_by_name() -> AbstractContextManager[None]:
    """A list of the instances with a name, or of a cell, is that of all."""

    def planted(real: Any) -> Any:
        @wraps(real)
        def list_instances(self: Any, **wanted: Any) -> Any:
            return real(self, **{**wanted, "name": "", "cell": ""})

        return list_instances

    return replaced(InstanceCalls, "list_instances", planted)


def unknown_id_passed_over() -> AbstractContextManager[None]:
    """If one of several ids is unknown, the order is carried out for the others."""

    def planted(real: Any) -> Any:
        async def found_by_ids(*asked: Any) -> Any:
            known, unknown = await real(*asked)
            return known, [] if known else unknown

        return found_by_ids

    return replaced_in((instances, naming), "found_by_ids", planted)


def own_request_id_dropped() -> AbstractContextManager[None]:
    """A boot has a new id each time, also one that is sent again with the id of the first one."""

    def planted(real: Any) -> Any:
        @wraps(real)
        async def boot(self: Any, flavor: Any, **fields: Any) -> Any:
            return await real(self, flavor, **{**fields, "request_id": None})

        return boot

    return replaced(InstanceCalls, "boot", planted)


def failed_order_counts_as_done() -> AbstractContextManager[None]:
    """To wait until an order is done is to wait until it has ended."""
    return replaced(SentRequest, "until_done", lambda _real: SentRequest.until_ended)


def end_told_before_schedulers_know() -> AbstractContextManager[None]:
    """The client returns when the cell tells the end. A scheduler may not have heard of it, and refuses the next order."""

    def planted(_real: Any) -> Any:
        async def until_ended(self: Any, timeout_s: float | None = None) -> Any:
            async for _ in self.follow(timeout_s):
                pass
            return self.states

        return until_ended

    return replaced(SentRequest, "until_ended", planted)


def older_word_counts() -> AbstractContextManager[None]:
    """The state that arrives last counts, whichever is newer."""

    def planted(real: Any) -> Any:
        def take(self: Any, states: Any) -> None:
            for state in states:
                self.states.pop(state.id, None)
                real(self, (state,))

        return take

    return replaced(InstanceFollower, "take", planted)


def word_of_another_cell_counts() -> AbstractContextManager[None]:
    """An event about an instance counts, whichever cell tells it."""
    return replaced(InstanceFollower, "hear", lambda _real: lambda self, event: self.take((event.instance,)))


def left_instances_asked_about() -> AbstractContextManager[None]:
    """A caller that follows an instance no more is not struck off."""

    def planted(real: Any) -> Any:
        opened = []

        @contextmanager
        def of(*asked: Any) -> Iterator[Any]:
            opened.append(real(*asked))
            yield opened[-1].__enter__()

        return of

    return replaced(InstanceWatch, "of", planted)


def events_of_all_projects() -> AbstractContextManager[None]:
    """A client that names its project hears the events of all."""

    def planted(real: Any) -> Any:
        return lambda self, *patterns, **_project: real(self, *patterns)

    return replaced(BusClient, "listen", planted)


def refusal_without_its_request() -> AbstractContextManager[None]:
    """The error of a refused order does not say which order it was."""

    def planted(real: Any) -> Any:
        def granted(*answered: Any) -> Any:
            try:
                return real(*answered)
            except Rejected as refused:
                refused.request_id = None
                raise

        return granted

    return replaced_in((bus_client, instances), "granted", planted)


def first_of_two_hosts_shown() -> AbstractContextManager[None]:
    """Of two hosts with one name the client shows the first."""

    def planted(real: Any) -> Any:
        @wraps(real)
        async def show_host(self: Any, name: str) -> Any:
            try:
                return await real(self, name)
            except Rejected:
                found = [each async for each in self.list_hosts() if each.name == name]
                return found[0]

        return show_host

    return replaced(HostCalls, "show_host", planted)


def running_host_evacuated() -> AbstractContextManager[None]:
    """To evacuate a host that is up sets it down first, though its instances run."""

    def planted(real: Any) -> Any:
        @wraps(real)
        async def evacuate_host(self: Any, name: str, **more: Any) -> Any:
            await self.set_host(name, "down")
            return await real(self, name, **more)

        return evacuate_host

    return replaced(HostCalls, "evacuate_host", planted)


def named_hosts_of_a_drain_ignored() -> AbstractContextManager[None]:
    """A host is emptied to any hosts, whichever were named."""

    def planted(real: Any) -> Any:
        return lambda *emptied, **how: real(*emptied, **{**how, "hosts": ()})

    return replaced_in((hosts, hosts_command), "empty", planted)


def stayed_instances_not_told() -> AbstractContextManager[None]:
    """A host with instances that could not be moved away looks empty."""
    return replaced(HostMoves, "still_there", lambda _real: lambda _self: ())


def wait_of_a_move_forgotten() -> AbstractContextManager[None]:
    """A move that is to wait for room fails if there is none."""
    return replaced_in((requests, hosts), "wait_of", lambda _real: lambda _wait: None)


def limit_not_removed() -> AbstractContextManager[None]:
    """A limit of a quota that is set to None stays."""

    def planted(real: Any) -> Any:
        @wraps(real)
        async def set_quota(self: Any, project: str, limits: Any) -> Any:
            kept = {name: limit for name, limit in limits.items() if limit is not None}
            return await (real(self, project, kept) if kept else self.show_quota(project))

        return set_quota

    return replaced(QuotaCalls, "set_quota", planted)


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

    return replaced_in((instances, instances_command), "parts_of_console", planted)


def loop_that_was_left_goes_on() -> AbstractContextManager[None]:
    """A program without asyncio that leaves a loop over events stays subscribed to them."""

    def planted(real: Any) -> Any:
        left = []

        async def passed_on(items: Any) -> AsyncGenerator[Any, None]:
            left.append(items)
            async for item in items:
                yield item

        return lambda self, items: real(self, passed_on(items))

    return replaced(SyncClient, "iterate", planted)


def late_answer_exits_as_refusal() -> AbstractContextManager[None]:
    """When time is up, the exit code is that of an order that was not done."""

    def planted(real: Any) -> Any:
        return lambda why, *_code: real(why)

    return replaced_in((options, instances_command, boot_command), "fail", planted)


def empty_list_is_no_document() -> AbstractContextManager[None]:
    """A list without items prints nothing, also as JSON."""

    def planted(real: Any) -> Any:
        return lambda value: None if isinstance(value, list | tuple) and not value else real(value)

    return replaced_in((showing, instances_command), "print_json", planted)


def empty_fields_left_out() -> AbstractContextManager[None]:
    """A document has only the fields that are not empty, so programs do not find each field."""

    def planted(real: Any) -> Any:
        def plain(value: Any) -> Any:
            found = real(value)
            return (
                {name: each for name, each in found.items() if each not in ("", None)}
                if isinstance(found, dict)
                else found
            )

        return plain

    return replaced_in((showing, boot_command, instances_command), "plain", planted)


def short_ids_alike() -> AbstractContextManager[None]:
    """All ids of a narrow table are shortened to one length, though some begin alike."""
    return replaced(tables, "unique_length", lambda _real: lambda _ids: tables.SHORT_ID)


def first_of_a_name_taken() -> AbstractContextManager[None]:
    """A name that several instances have means the first of them."""
    return replaced(naming, "the_one", lambda _real: lambda _kind, _text, found: found[0] if found else None)


def name_of_another_project_found() -> AbstractContextManager[None]:
    """The instance that an order names may be that of another project than the command's."""

    def planted(real: Any) -> Any:
        return lambda asking, texts, _project="": real(asking, texts)

    return replaced_in((naming, instances_command, instance_options), "instance_ids", planted)


def misspelt_filter_is_an_empty_list() -> AbstractContextManager[None]:
    """A host or cell that does not exist looks like one without instances."""
    owners = (instances_command, hosts_command, audit_command, move_commands, providers_command)
    return replaced_in(owners, "check_known", lambda _real: lambda *_: None)


def dead_host_not_asked_about() -> AbstractContextManager[None]:
    """A host that is heard is set dead without a question."""
    return replaced(hosts_command, "be_sure", lambda _real: lambda *_doubt, **_yes: None)


def control_characters_printed() -> AbstractContextManager[None]:
    """A name that a stranger chose commands the terminal."""
    return replaced(options, "printable", lambda _real: lambda text: text)


def cut_list_looks_whole() -> AbstractContextManager[None]:
    """A list that ends at --limit does not say that there are more."""

    def planted(real: Any) -> Any:
        return lambda text, *style: None if "--limit" in text else real(text, *style)

    return replaced(instances_command, "tell", planted)


def last_of_two_values_counts() -> AbstractContextManager[None]:
    """What a command line gives twice counts as it is given last."""

    def planted(_real: Any) -> Any:
        def put_once(given: Any, name: str, value: Any, _where: str) -> None:
            given[name] = value

        return put_once

    owners = (options, instance_options, stored_commands, providers_command, quota_command)
    return replaced_in(owners, "put_once", planted)


def request_id_not_told_first() -> AbstractContextManager[None]:
    """A boot that is cut off has not said by which id its request is found."""

    def planted(real: Any) -> Any:
        return lambda work, _request, stays: real(work, None, stays)

    return replaced_in((instances_command, boot_command), "run_order", planted)


def no_wait_waits() -> AbstractContextManager[None]:
    """An order with --no-wait waits for its end."""

    def planted(real: Any) -> Any:
        async def followed(*order: Any, **how: Any) -> Any:
            *others, following = order
            return await real(*others, structs.replace(following, wait=True), **how)

        return followed

    return replaced_in((instances_command, boot_command), "followed", planted)


def faults_that_stay_exit_as_mended() -> AbstractContextManager[None]:
    """An audit that could not mend a fault exits as if it had."""
    return replaced(AuditResult, "is_all_mended", lambda _real: property(lambda _result: True))


def letters_of_other_reasons_alike() -> AbstractContextManager[None]:
    """Dead letters of one type are one group, whatever they died of: --like decides on all of them."""
    return replaced(messages_command, "_group", lambda _real: lambda queue, kind, _reason: (queue, kind))


BUGS: dict[str, PlantedBug] = {
    "a list of the client ends after its first page": list_cut_after_its_first_page,
    "a large request is explained in part": explained_in_part,
    "the sizes of many instances are told in part": sizes_of_the_first_only,
    "a list by name or cell has all instances": list_not_by_name,
    "an unknown id is passed over": unknown_id_passed_over,
    "a boot sent again is built twice": own_request_id_dropped,
    "an order that has failed counts as done": failed_order_counts_as_done,
    "an end is told before schedulers know of it": end_told_before_schedulers_know,
    "an older word about an instance counts": older_word_counts,
    "the word of another cell about an instance counts": word_of_another_cell_counts,
    "instances that nobody follows are asked about": left_instances_asked_about,
    "a client hears the events of all projects": events_of_all_projects,
    "a refusal does not tell its request": refusal_without_its_request,
    "of two hosts with one name the first is shown": first_of_two_hosts_shown,
    "a host that runs is evacuated": running_host_evacuated,
    "the hosts named for a drain are ignored": named_hosts_of_a_drain_ignored,
    "instances that stay on a drained host are not told": stayed_instances_not_told,
    "the wait of a move is forgotten": wait_of_a_move_forgotten,
    "a limit that was removed stays": limit_not_removed,
    "the console on the next host is read from the middle": next_console_read_from_the_middle,
    "a loop that was left goes on hearing": loop_that_was_left_goes_on,
    "a late answer exits as a refusal": late_answer_exits_as_refusal,
    "an empty list is no JSON": empty_list_is_no_document,
    "JSON has no empty fields": empty_fields_left_out,
    "short ids of two instances are alike": short_ids_alike,
    "a name of several instances means the first": first_of_a_name_taken,
    "a name means an instance of another project": name_of_another_project_found,
    "a misspelt filter is an empty list": misspelt_filter_is_an_empty_list,
    "a host is set dead without a question": dead_host_not_asked_about,
    "a name commands the terminal": control_characters_printed,
    "a list that was cut looks whole": cut_list_looks_whole,
    "of a value given twice the last counts": last_of_two_values_counts,
    "a boot that is cut off has not told its id": request_id_not_told_first,
    "an order without waiting waits": no_wait_waits,
    "faults that stay exit as mended": faults_that_stay_exit_as_mended,
    "dead letters of other reasons are decided together": letters_of_other_reasons_alike,
}
