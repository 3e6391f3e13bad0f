"""Resource classes and traits: the names that exist, and the traits of a provider. And the version document."""

from http import HTTPStatus
from typing import Final

from bus.messages.books import (
    AlreadyThere,
    CreateClass,
    CreateTrait,
    DeleteClass,
    DeleteTrait,
    Done,
    GenerationMoved,
    NameInUse,
    RenameClass,
    SetTraits,
    UnknownClass,
    UnknownTrait,
)
from engine.refusals import NotAllowed
from placement_worker.api import queries, schemas
from placement_worker.api.answers import (
    NO_SUCH_CLASS,
    NO_SUCH_TRAIT,
    HttpRefusal,
    Refusals,
    classes_in_order,
    refusal,
    standard_first,
)
from placement_worker.api.routing import Backend, path_provider
from placement_worker.api.values import (
    CONCURRENT_UPDATE,
    NEWEST,
    OLDEST,
    Reply,
    Request,
    bad_request,
    not_found,
    version_text,
)

_CLASS_CREATE_REFUSED: Final[Refusals] = {
    AlreadyThere: HttpRefusal(HTTPStatus.CONFLICT, "Conflicting resource class already exists: {name}")
}
_CLASS_RENAME_REFUSED: Final[Refusals] = {
    UnknownClass: HttpRefusal(HTTPStatus.NOT_FOUND, NO_SUCH_CLASS),
    AlreadyThere: HttpRefusal(HTTPStatus.CONFLICT, "Resource class already exists: {name}"),
    NotAllowed: HttpRefusal(HTTPStatus.BAD_REQUEST, "Cannot update standard resource class {name}"),
}
_CLASS_DELETE_REFUSED: Final[Refusals] = {
    UnknownClass: HttpRefusal(HTTPStatus.NOT_FOUND, NO_SUCH_CLASS),
    NameInUse: HttpRefusal(
        HTTPStatus.CONFLICT, "{doing}: Class is in use in inventory. One that has it is {provider}."
    ),
    NotAllowed: HttpRefusal(HTTPStatus.BAD_REQUEST, "{doing}: Cannot delete standard resource class {name}."),
}


async def show_classes(books: Backend, request: Request) -> Reply:
    rows = [_class_row(name, request) for name in classes_in_order(await books.names.every("classes"))]
    return Reply(body={"resource_classes": rows}, is_fresh=True)


async def show_class(books: Backend, request: Request) -> Reply:
    name = request.params["name"]
    if await books.names.unknown("classes", (name,)):
        raise not_found(NO_SUCH_CLASS.format(names=name))
    return Reply(body=_class_row(name, request), is_fresh=True)


async def create_class(books: Backend, request: Request) -> Reply:
    name = schemas.RESOURCE_CLASS.at(request.version).body(request.body)["name"]
    await books.write(
        CreateClass(name=name), f"Unable to create resource class {name}", _CLASS_CREATE_REFUSED
    )
    return Reply(HTTPStatus.CREATED, headers={"location": _class_url(name, request)})


async def rename_class(books: Backend, request: Request) -> Reply:
    """Rename a resource class. Only until version 1.6 of the API."""
    name, to = request.params["name"], schemas.RESOURCE_CLASS.at(request.version).body(request.body)["name"]
    await books.write(
        RenameClass(name=name, to=to),
        f"Unable to rename resource class {name}",
        _CLASS_RENAME_REFUSED,
        name=name,
    )
    return Reply(body=_class_row(to, request), is_fresh=True)


async def ensure_class(books: Backend, request: Request) -> Reply:
    """Make sure that the resource class exists, whichever client created it. From version 1.7 of the API on."""
    name = request.params["name"]
    schemas.RESOURCE_CLASS.at(request.version).check({"name": name})
    status = await _ensured(books, CreateClass(name=name), f"Unable to create resource class {name}")
    return Reply(status, headers={"location": _class_url(name, request)})


async def _ensured(books: Backend, order: CreateClass | CreateTrait, doing: str) -> HTTPStatus:
    verdict = await books.writer.ask(order)
    if not isinstance(verdict, Done | AlreadyThere):
        raise refusal(verdict, doing)
    return HTTPStatus.CREATED if isinstance(verdict, Done) else HTTPStatus.NO_CONTENT


async def delete_class(books: Backend, request: Request) -> Reply:
    name = request.params["name"]
    await books.write(
        DeleteClass(name=name), f"Error in delete resource class {name}", _CLASS_DELETE_REFUSED, name=name
    )
    return Reply(HTTPStatus.NO_CONTENT)


def _class_url(name: str, request: Request) -> str:
    return f"{request.prefix}/resource_classes/{name}"


def _class_row(name: str, request: Request) -> dict[str, object]:
    return {"name": name, "links": [{"rel": "self", "href": _class_url(name, request)}]}


# Traits: the names that exist, and those of a provider.


MOVED_MEANWHILE: Final[Refusals] = {
    GenerationMoved: HttpRefusal(
        HTTPStatus.CONFLICT,
        "{provider} is at generation {current}, given: {seen}. Resource provider's generation already changed. "
        "Please update the generation and try again.",
        CONCURRENT_UPDATE,
    )
}
_TRAIT_DELETE_REFUSED: Final[Refusals] = {
    UnknownTrait: HttpRefusal(HTTPStatus.NOT_FOUND, NO_SUCH_TRAIT),
    NameInUse: HttpRefusal(
        HTTPStatus.CONFLICT,
        "The trait {name} is in use by a resource provider. One of them is {provider}.",
    ),
    NotAllowed: HttpRefusal(HTTPStatus.BAD_REQUEST, "Cannot delete standard trait {name}."),
}


async def show_traits(books: Backend, request: Request) -> Reply:
    query = queries.TRAITS.at(request.version).query(request.query)
    names = await books.names.every("traits")
    if "name" in query:
        names = _named(names, query["name"])
    if "associated" in query:
        had = {trait for state in await books.view.caught_up() for trait in state.traits}
        is_had = _is_true(query["associated"])
        names = [name for name in names if (name in had) == is_had]
    return Reply(body={"traits": names}, is_fresh=True)


async def show_trait(books: Backend, request: Request) -> Reply:
    name = request.params["name"]
    if await books.names.unknown("traits", (name,)):
        raise not_found(NO_SUCH_TRAIT.format(names=name))
    return Reply(HTTPStatus.NO_CONTENT, is_fresh=True)


async def ensure_trait(books: Backend, request: Request) -> Reply:
    name = request.params["name"]
    if not schemas.CUSTOM_TRAIT.allows(name):
        raise bad_request(
            "The trait is invalid. A valid trait must be no longer than 255 characters, start with the prefix "
            '"CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"'
        )
    status = await _ensured(books, CreateTrait(name=name), f"Unable to create trait {name}")
    return Reply(status, headers={"location": f"{request.prefix}/traits/{name}"}, is_fresh=True)


async def delete_trait(books: Backend, request: Request) -> Reply:
    name = request.params["name"]
    await books.write(
        DeleteTrait(name=name), f"Unable to delete trait {name}", _TRAIT_DELETE_REFUSED, name=name
    )
    return Reply(HTTPStatus.NO_CONTENT)


async def show_provider_traits(books: Backend, request: Request) -> Reply:
    state = await books.provider(request)
    return _provider_traits(state.traits, state.generation)


async def replace_provider_traits(books: Backend, request: Request) -> Reply:
    # Placement checks this body before it looks for the provider; with all other bodies it is the other way round.
    said = schemas.TRAITS.at(request.version).body(request.body)
    provider = path_provider(request)
    traits = tuple(dict.fromkeys(said["traits"]))
    written = await books.write_provider(
        SetTraits(provider=provider, generation=int(said["resource_provider_generation"]), traits=traits),
        f"Unable to set the traits of resource provider {provider}",
        MOVED_MEANWHILE,
    )
    return _provider_traits(traits, written.generation)


async def delete_provider_traits(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    await books.write(
        SetTraits(provider=provider, generation=None, traits=()),
        f"Unable to delete the traits of resource provider {provider}",
    )
    return Reply(HTTPStatus.NO_CONTENT)


def _provider_traits(traits: tuple[str, ...], generation: int) -> Reply:
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


# The version document: which versions the service speaks. Clients read it first, without a token.


async def version_document(_: Request) -> Reply:
    version = {
        "id": f"v{version_text(OLDEST)}",
        "max_version": version_text(NEWEST),
        "min_version": version_text(OLDEST),
        "status": "CURRENT",
        # Relative to the URL of this document.
        "links": [{"rel": "self", "href": ""}],
    }
    return Reply(body={"versions": [version]}, is_fresh=True)
