"""Traits: the names that exist, and those of a provider."""

from http import HTTPStatus
from typing import Final

from bus.messages.administration import (
    AlreadyThere,
    CreateTrait,
    DeleteTrait,
    Done,
    GenerationMoved,
    NameInUse,
    SetTraits,
    UnknownTrait,
)
from bus.messages.placement import NotAllowed
from placement_worker.api.grammar import query_schemas, schemas
from placement_worker.api.grammar.backend import Backend, path_provider
from placement_worker.api.grammar.names import standard_first
from placement_worker.api.grammar.refusals import NO_SUCH_TRAIT, HttpRefusal, Refusals, refusal
from placement_worker.api.values.problems import CONCURRENT_UPDATE, bad_request, not_found
from placement_worker.api.values.request import Reply, Request

MOVED_MEANWHILE: Final[Refusals] = {
    GenerationMoved: HttpRefusal(
        HTTPStatus.CONFLICT,
        "{provider} is at generation {current}, given: {seen}. Resource provider's generation already changed. "
        "Please update the generation and try again.",
        CONCURRENT_UPDATE,
    )
}
_DELETE_REFUSED: Final[Refusals] = {
    UnknownTrait: HttpRefusal(HTTPStatus.NOT_FOUND, NO_SUCH_TRAIT),
    NameInUse: HttpRefusal(
        HTTPStatus.CONFLICT,
        "The trait {name} is in use by a resource provider. One of them is {provider}.",
    ),
    NotAllowed: HttpRefusal(HTTPStatus.BAD_REQUEST, "Cannot delete standard trait {name}."),
}


async def show_all(books: Backend, request: Request) -> Reply:
    query = query_schemas.TRAITS.at(request.version).query(request.query)
    names = await books.names.every("traits")
    if "name" in query:
        names = _named(names, query["name"])
    if "associated" in query:
        had = {trait for state in await books.view.caught_up() for trait in state.traits}
        is_had = _is_true(query["associated"])
        names = [name for name in names if (name in had) == is_had]
    return Reply(body={"traits": names}, is_fresh=True)


async def show(books: Backend, request: Request) -> Reply:
    name = request.params["name"]
    if await books.names.unknown("traits", (name,)):
        raise not_found(NO_SUCH_TRAIT.format(names=name))
    return Reply(HTTPStatus.NO_CONTENT, is_fresh=True)


async def create(books: Backend, request: Request) -> Reply:
    name = request.params["name"]
    if not schemas.CUSTOM_TRAIT.allows(name):
        raise bad_request(
            "The trait is invalid. A valid trait must be no longer than 255 characters, start with the prefix "
            '"CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"'
        )
    verdict = await books.writer.ask(CreateTrait(name=name))
    if not isinstance(verdict, Done | AlreadyThere):
        raise refusal(verdict, f"Unable to create trait {name}")
    status = HTTPStatus.CREATED if isinstance(verdict, Done) else HTTPStatus.NO_CONTENT
    return Reply(status, headers={"location": f"{request.prefix}/traits/{name}"}, is_fresh=True)


async def delete(books: Backend, request: Request) -> Reply:
    name = request.params["name"]
    await books.write(DeleteTrait(name=name), f"Unable to delete trait {name}", _DELETE_REFUSED, name=name)
    return Reply(HTTPStatus.NO_CONTENT)


async def show_of_provider(books: Backend, request: Request) -> Reply:
    state = await books.provider(request)
    return _of(state.traits, state.generation)


async def replace_of_provider(books: Backend, request: Request) -> Reply:
    # Placement checks this body before it looks for the provider; with all other bodies it is the other way round.
    said = schemas.TRAITS.at(request.version).body(request.body)
    provider = path_provider(request)
    traits = tuple(dict.fromkeys(said["traits"]))
    written = await books.write_provider(
        SetTraits(provider=provider, generation=int(said["resource_provider_generation"]), traits=traits),
        f"Unable to set the traits of resource provider {provider}",
        MOVED_MEANWHILE,
    )
    return _of(traits, written.generation)


async def delete_of_provider(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    await books.write(
        SetTraits(provider=provider, generation=None, traits=()),
        f"Unable to delete the traits of resource provider {provider}",
    )
    return Reply(HTTPStatus.NO_CONTENT)


def _of(traits: tuple[str, ...], generation: int) -> Reply:
    return Reply(
        body={"traits": standard_first(traits), "resource_provider_generation": generation}, is_fresh=True
    )


def _named(names: list[str], asked: str) -> list[str]:
    """Those of the names that a query's `name` asks for: `in:` and a list of names, or `startswith:` and a prefix."""
    how, colon, what = asked.partition(":")
    if not colon:
        raise bad_request(
            "Badly formatted name parameter. Expected name query string parameter in form: "
            f'?name=[in|startswith]:[name1,name2|prefix]. Got: "{asked}"'
        )
    match how:
        case "in":
            wanted = set(what.split(","))
            return [name for name in names if name in wanted]
        case "startswith":
            return [name for name in names if name.startswith(what)]
        case _:
            raise bad_request(
                f'Badly formatted name parameter. It must begin with in: or startswith:. Got: "{asked}"'
            )


def _is_true(word: str) -> bool:
    match word.lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise bad_request(
                f'The query parameter "associated" only accepts "true" or "false", not "{word}"'
            )
