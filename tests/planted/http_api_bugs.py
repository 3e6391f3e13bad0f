"""Planted bugs in Placement's HTTP API."""

import math
from http import HTTPStatus
from typing import Any

from msgspec import structs

from bus.messages.books import NameTaken
from engine.refusals import DoesNotFit
from placement_worker.api import allocations, candidates, names, policy, providers, routing, service, values
from placement_worker.api.answers import RenderedAnswer
from placement_worker.api.auth import LoginTurns, RememberedChecks
from placement_worker.api.values import CONCURRENT_UPDATE, NEWEST, UNDEFINED, ApiError
from tests.planted.replacing import planted, planted_by

# All modules that tell a verdict as an error.
_REFUSING = (names, providers, routing)


# The policy judges each request as one about the caller's own project.
planted_by("a project's reader sees the usage of any project", policy.Policy, "check", harm="unauthorised")(
    lambda real: lambda self, rule, caller, _query: real(self, rule, caller, ())
)


# Of the projects that a query names, the policy judges the first; the handler reads the last.
@planted("a query about two projects is judged by one of them", policy.Policy, "check", harm="unauthorised")
def first_project_judged(real: Any, self: Any, rule: Any, caller: Any, query: Any) -> None:
    real(self, rule, caller, [each for each in query if each[0] == "project_id"][:1])


# A client that asks for a version that is too new gets the newest, and takes its answer for that of the version asked for.
@planted("a version that is too new is answered as the newest", service, "version_asked")
def newer_version_served(real: Any, header: str) -> Any:
    try:
        return real(header)
    except ApiError as problem:
        if "max_version" in problem.extra:
            return NEWEST
        raise


# Only the first page of a provider's consumers is read.
@planted("a provider shows only the first page of its consumers", allocations, "show_provider_allocations")
async def holders_end_with_a_page(real: Any, books: Any, request: Any) -> Any:
    class FirstPage:
        async def holders_of(self, provider: Any, after: Any, limit: int) -> Any:
            return () if after else await books.store.holders_of(provider, after, limit)

    return await real(structs.replace(books, store=FirstPage()), request)


# Clients that repeat a concurrent update repeat a claim that does not fit, without end.
@planted("a lack of room is told as a concurrent update", _REFUSING, "refusal")
def lack_of_room_as_concurrent_update(real: Any, verdict: Any, *more: Any, **words: Any) -> ApiError:
    problem: ApiError = real(verdict, *more, **words)
    if isinstance(verdict, DoesNotFit):
        problem.code = CONCURRENT_UPDATE
    return problem


# The error for a name that is taken has the code of any other error.
@planted("a taken name is told without its code", _REFUSING, "refusal")
def taken_name_without_code(real: Any, verdict: Any, *more: Any, **words: Any) -> ApiError:
    problem: ApiError = real(verdict, *more, **words)
    if isinstance(verdict, NameTaken):
        problem.code = UNDEFINED
    return problem


# Of all that is short, the error names one.
@planted("only one of several shortages is told", _REFUSING, "refusal")
def first_shortage_told(real: Any, verdict: Any, *more: Any, **words: Any) -> ApiError:
    if isinstance(verdict, DoesNotFit):
        verdict = structs.replace(verdict, shortfalls=verdict.shortfalls[:1])
    problem: ApiError = real(verdict, *more, **words)
    return problem


# The answer names the origin that asked, whichever origins the operator allows.
planted_by("every web page may read the answers", service.Cors, "headers", harm="unauthorised")(
    lambda real: (
        lambda self, headers: (
            {"access-control-allow-origin": headers["origin"]} if "origin" in headers else real(self, headers)
        )
    )
)


# From 1.15 on an answer must say that it holds only now.
planted_by("an answer of this moment may be cached", service, "answer_to")(
    lambda real: lambda call, reply: real(call, structs.replace(reply, is_fresh=False))
)


# A summary of a provider that was written once is not written anew after the provider has changed.
@planted("the summary of a changed provider is an earlier one", candidates.Summaries, "_kept")
def earlier_summary_told(real: Any, self: Any, rows: Any, index: Any, version: Any) -> Any:
    for row in rows:
        if self._texts[row]:
            self._changes[row] = index.changes[row]
    return real(self, rows, index, version)


# A body is read to its end, however long it is.
@planted("a body of any length is read", service, "body_of")
async def body_without_limit(_real: Any, headers: Any, receive: Any) -> bytes:
    body, has_more = b"", values.has_body(headers)
    while has_more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise values.ClientGone
        body += message.get("body", b"")
        has_more = message.get("more_body", False)
    return body


# A token that was right once is remembered for the usual while, although it ends earlier.
@planted("a token is accepted after its end", RememberedChecks, "caller", harm="unauthorised")
async def expired_token_accepted(real: Any, self: Any, digest: bytes, check: Any) -> Any:
    async def without_end() -> Any:
        return (await check())[0], math.inf

    return await real(self, digest, without_end)


# A process remembers each login that was ever right.
@planted("a login that was right once is never forgotten", RememberedChecks, "_checked")
def logins_never_forgotten(real: Any, self: Any, digest: bytes, checking: Any) -> None:
    before = dict(self._known)
    real(self, digest, checking)
    for one, known in before.items():
        self._known.setdefault(one, known)


# The answer says that a trait was created, although it existed.
@planted("a trait that exists is told as created", names, "ensure_trait")
async def known_name_told_as_new(real: Any, books: Any, request: Any) -> Any:
    return structs.replace(await real(books, request), status=HTTPStatus.CREATED)


# Every address counts as one of this machine, which has no limit.
planted_by("logins from one address are not limited", LoginTurns, "of", harm="unauthorised")(
    lambda real: lambda self, name, _address: real(self, name, "")
)


# Links in answers begin at the root of the host, wherever the service is mounted.
planted_by("links forget where the service is mounted", values, "path_of")(
    lambda real: lambda scope, mounted_at: ("", real(scope, mounted_at)[1])
)


# A provider that is asked for by its name and its tree is found in any tree.
@planted("a provider of another tree is found by its name", providers, "provider_query")
def tree_ignored_beside_a_name(real: Any, query: Any, version: Any) -> Any:
    asked = real(query, version)
    return structs.replace(asked, group=structs.replace(asked.group, in_tree=None)) if asked.name else asked


# A client that writes several consumers at once overwrites what another client has written meanwhile.
planted_by("several consumers are written over a later write", allocations, "consumers_in", harm="destroyed")(
    lambda real: (
        lambda said, version: tuple(
            structs.replace(each, judges_generation=False) for each in real(said, version)
        )
    )
)


# A client that asks for the usage of a user gets that of the whole project.
@planted("the usage of a user is that of the whole project", allocations, "show_project_usages")
async def user_of_usages_ignored(real: Any, books: Any, request: Any) -> Any:
    query = tuple(each for each in request.query if each[0] != "user_id")
    return await real(books, structs.replace(request, query=query))


# An error that may be tried again does not say when.
@planted("a server that cannot answer does not say when to try again", service, "refusal_of")
def no_word_when_to_try_again(real: Any, call: Any, problem: Any) -> RenderedAnswer:
    answer: RenderedAnswer = real(call, problem)
    kept = {name: value for name, value in answer.headers.items() if name != "retry-after"}
    return structs.replace(answer, headers=kept)
