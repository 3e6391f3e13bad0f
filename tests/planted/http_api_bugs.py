"""Planted bugs in Placement's HTTP API."""

import math
from contextlib import AbstractContextManager
from http import HTTPStatus
from typing import Any

from msgspec import structs

from bus.messages.administration import NameTaken
from engine.refusals import DoesNotFit
from placement_worker.api import allocations, candidates, names, policy, providers, routing, service, values
from placement_worker.api.answers import RenderedAnswer
from placement_worker.api.auth import LoginTurns, RememberedChecks
from placement_worker.api.values import CONCURRENT_UPDATE, NEWEST, UNDEFINED, ApiError
from tests.planted.replacing import PlantedBug, replaced, replaced_in

# All modules that tell a verdict as an error.
_REFUSING = (names, providers, routing)


def usage_of_any_project() -> AbstractContextManager[None]:
    """The policy judges each request as one about the caller's own project."""

    def planted(real: Any) -> Any:
        return lambda self, rule, caller, _query: real(self, rule, caller, ())

    return replaced(policy.Policy, "check", planted)


def first_project_judged() -> AbstractContextManager[None]:
    """Of the projects that a query names, the policy judges the first; the handler reads the last."""

    def planted(real: Any) -> Any:
        def check(self: Any, rule: Any, caller: Any, query: Any) -> None:
            real(self, rule, caller, [each for each in query if each[0] == "project_id"][:1])

        return check

    return replaced(policy.Policy, "check", planted)


def newer_version_served() -> AbstractContextManager[None]:
    """A client that asks for a version that is too new gets the newest, and takes its answer for that of the version asked for."""

    def planted(real: Any) -> Any:
        def version_asked(header: str) -> Any:
            try:
                return real(header)
            except ApiError as problem:
                if "max_version" in problem.extra:
                    return NEWEST
                raise

        return version_asked

    return replaced(service, "version_asked", planted)


def holders_end_with_a_page() -> AbstractContextManager[None]:
    """Only the first page of a provider's consumers is read."""

    def planted(real: Any) -> Any:
        async def show(books: Any, request: Any) -> Any:
            class FirstPage:
                async def holders_of(self, provider: Any, after: Any, limit: int) -> Any:
                    return () if after else await books.store.holders_of(provider, after, limit)

            return await real(structs.replace(books, store=FirstPage()), request)

        return show

    return replaced(allocations, "show_provider_allocations", planted)


def lack_of_room_as_concurrent_update() -> AbstractContextManager[None]:
    """Clients that repeat a concurrent update repeat a claim that does not fit, without end."""

    def planted(real: Any) -> Any:
        def refusal(verdict: Any, *more: Any, **words: Any) -> ApiError:
            problem: ApiError = real(verdict, *more, **words)
            if isinstance(verdict, DoesNotFit):
                problem.code = CONCURRENT_UPDATE
            return problem

        return refusal

    return replaced_in(_REFUSING, "refusal", planted)


def taken_name_without_code() -> AbstractContextManager[None]:
    """The error for a name that is taken has the code of any other error."""

    def planted(real: Any) -> Any:
        def refusal(verdict: Any, *more: Any, **words: Any) -> ApiError:
            problem: ApiError = real(verdict, *more, **words)
            if isinstance(verdict, NameTaken):
                problem.code = UNDEFINED
            return problem

        return refusal

    return replaced_in(_REFUSING, "refusal", planted)


def first_shortage_told() -> AbstractContextManager[None]:
    """Of all that is short, the error names one."""

    def planted(real: Any) -> Any:
        def refusal(verdict: Any, *more: Any, **words: Any) -> ApiError:
            if isinstance(verdict, DoesNotFit):
                verdict = structs.replace(verdict, shortfalls=verdict.shortfalls[:1])
            problem: ApiError = real(verdict, *more, **words)
            return problem

        return refusal

    return replaced_in(_REFUSING, "refusal", planted)


def every_page_may_read() -> AbstractContextManager[None]:
    """The answer names the origin that asked, whichever origins the operator allows."""

    def planted(real: Any) -> Any:
        return lambda self, headers: (
            {"access-control-allow-origin": headers["origin"]} if "origin" in headers else real(self, headers)
        )

    return replaced(service.Cors, "headers", planted)


def answer_may_be_cached() -> AbstractContextManager[None]:
    """From 1.15 on an answer must say that it holds only now."""

    def planted(real: Any) -> Any:
        return lambda call, reply: real(call, structs.replace(reply, is_fresh=False))

    return replaced(service, "answer_to", planted)


def earlier_summary_told() -> AbstractContextManager[None]:
    """A summary of a provider that was written once is not written anew after the provider has changed."""

    def planted(real: Any) -> Any:
        def kept(self: Any, rows: Any, index: Any, version: Any) -> Any:
            for row in rows:
                if self._texts[row]:
                    self._changes[row] = index.changes[row]
            return real(self, rows, index, version)

        return kept

    return replaced(candidates.Summaries, "_kept", planted)


def body_without_limit() -> AbstractContextManager[None]:
    """A body is read to its end, however long it is."""

    def planted(_real: Any) -> Any:
        async def body_of(headers: Any, receive: Any) -> bytes:
            body, has_more = b"", values.has_body(headers)
            while has_more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise values.ClientGone
                body += message.get("body", b"")
                has_more = message.get("more_body", False)
            return body

        return body_of

    return replaced(service, "body_of", planted)


def expired_token_accepted() -> AbstractContextManager[None]:
    """A token that was right once is remembered for the usual while, although it ends earlier."""

    def planted(real: Any) -> Any:
        async def caller(self: Any, digest: bytes, check: Any) -> Any:
            async def without_end() -> Any:
                return (await check())[0], math.inf

            return await real(self, digest, without_end)

        return caller

    return replaced(RememberedChecks, "caller", planted)


def logins_never_forgotten() -> AbstractContextManager[None]:
    """A process remembers each login that was ever right."""

    def planted(real: Any) -> Any:
        def checked(self: Any, digest: bytes, checking: Any) -> None:
            before = dict(self._known)
            real(self, digest, checking)
            for one, known in before.items():
                self._known.setdefault(one, known)

        return checked

    return replaced(RememberedChecks, "_checked", planted)


def known_name_told_as_new() -> AbstractContextManager[None]:
    """The answer says that a trait was created, although it existed."""

    def planted(real: Any) -> Any:
        async def ensure_trait(books: Any, request: Any) -> Any:
            return structs.replace(await real(books, request), status=HTTPStatus.CREATED)

        return ensure_trait

    return replaced(names, "ensure_trait", planted)


def logins_of_an_address_without_limit() -> AbstractContextManager[None]:
    """Every address counts as one of this machine, which has no limit."""
    return replaced(LoginTurns, "of", lambda real: lambda self, name, _address: real(self, name, ""))


def links_without_prefix() -> AbstractContextManager[None]:
    """Links in answers begin at the root of the host, wherever the service is mounted."""

    def planted(real: Any) -> Any:
        return lambda scope, mounted_at: ("", real(scope, mounted_at)[1])

    return replaced(values, "path_of", planted)


def tree_ignored_beside_a_name() -> AbstractContextManager[None]:
    """A provider that is asked for by its name and its tree is found in any tree."""

    def planted(real: Any) -> Any:
        def provider_query(query: Any, version: Any) -> Any:
            asked = real(query, version)
            return (
                structs.replace(asked, group=structs.replace(asked.group, in_tree=None))
                if asked.name
                else asked
            )

        return provider_query

    return replaced(providers, "provider_query", planted)


def generations_of_several_not_judged() -> AbstractContextManager[None]:
    """A client that writes several consumers at once overwrites what another client has written meanwhile."""

    def planted(real: Any) -> Any:
        return lambda said, version: tuple(
            structs.replace(each, judges_generation=False) for each in real(said, version)
        )

    return replaced(allocations, "consumers_in", planted)


def user_of_usages_ignored() -> AbstractContextManager[None]:
    """A client that asks for the usage of a user gets that of the whole project."""

    def planted(real: Any) -> Any:
        async def show(books: Any, request: Any) -> Any:
            query = tuple(each for each in request.query if each[0] != "user_id")
            return await real(books, structs.replace(request, query=query))

        return show

    return replaced(allocations, "show_project_usages", planted)


def no_word_when_to_try_again() -> AbstractContextManager[None]:
    """An error that may be tried again does not say when."""

    def planted(real: Any) -> Any:
        def refusal_of(call: Any, problem: Any) -> RenderedAnswer:
            answer: RenderedAnswer = real(call, problem)
            kept = {name: value for name, value in answer.headers.items() if name != "retry-after"}
            return structs.replace(answer, headers=kept)

        return refusal_of

    return replaced(service, "refusal_of", planted)


BUGS: dict[str, PlantedBug] = {
    "a project's reader sees the usage of any project": usage_of_any_project,
    "a query about two projects is judged by one of them": first_project_judged,
    "a version that is too new is answered as the newest": newer_version_served,
    "a provider shows only the first page of its consumers": holders_end_with_a_page,
    "a lack of room is told as a concurrent update": lack_of_room_as_concurrent_update,
    "a taken name is told without its code": taken_name_without_code,
    "only one of several shortages is told": first_shortage_told,
    "every web page may read the answers": every_page_may_read,
    "an answer of this moment may be cached": answer_may_be_cached,
    "the summary of a changed provider is an earlier one": earlier_summary_told,
    "a body of any length is read": body_without_limit,
    "a token is accepted after its end": expired_token_accepted,
    "a login that was right once is never forgotten": logins_never_forgotten,
    "a trait that exists is told as created": known_name_told_as_new,
    "logins from one address are not limited": logins_of_an_address_without_limit,
    "links forget where the service is mounted": links_without_prefix,
    "a provider of another tree is found by its name": tree_ignored_beside_a_name,
    "several consumers are written over a later write": generations_of_several_not_judged,
    "the usage of a user is that of the whole project": user_of_usages_ignored,
    "a server that cannot answer does not say when to try again": no_word_when_to_try_again,
}
