"""Resource classes: the names that exist."""

from http import HTTPStatus
from typing import Final

from bus.messages.administration import (
    AlreadyThere,
    CreateClass,
    DeleteClass,
    Done,
    NameInUse,
    RenameClass,
    UnknownClass,
)
from bus.messages.placement import NotAllowed
from placement_worker.api.grammar import schemas
from placement_worker.api.grammar.backend import Backend
from placement_worker.api.grammar.names import classes_in_order
from placement_worker.api.grammar.refusals import NO_SUCH_CLASS, HttpRefusal, Refusals, refusal
from placement_worker.api.values.problems import not_found
from placement_worker.api.values.request import Reply, Request

_CREATE_REFUSED: Final[Refusals] = {
    AlreadyThere: HttpRefusal(HTTPStatus.CONFLICT, "Conflicting resource class already exists: {name}")
}
_RENAME_REFUSED: Final[Refusals] = {
    UnknownClass: HttpRefusal(HTTPStatus.NOT_FOUND, NO_SUCH_CLASS),
    AlreadyThere: HttpRefusal(HTTPStatus.CONFLICT, "Resource class already exists: {name}"),
    NotAllowed: HttpRefusal(HTTPStatus.BAD_REQUEST, "Cannot update standard resource class {name}"),
}
_DELETE_REFUSED: Final[Refusals] = {
    UnknownClass: HttpRefusal(HTTPStatus.NOT_FOUND, NO_SUCH_CLASS),
    NameInUse: HttpRefusal(
        HTTPStatus.CONFLICT, "{doing}: Class is in use in inventory. One that has it is {provider}."
    ),
    NotAllowed: HttpRefusal(HTTPStatus.BAD_REQUEST, "{doing}: Cannot delete standard resource class {name}."),
}


async def show_all(books: Backend, request: Request) -> Reply:
    rows = [_row(name, request) for name in classes_in_order(await books.names.every("classes"))]
    return Reply(body={"resource_classes": rows}, is_fresh=True)


async def show(books: Backend, request: Request) -> Reply:
    name = request.params["name"]
    if await books.names.unknown("classes", (name,)):
        raise not_found(NO_SUCH_CLASS.format(names=name))
    return Reply(body=_row(name, request), is_fresh=True)


async def create(books: Backend, request: Request) -> Reply:
    name = schemas.RESOURCE_CLASS.at(request.version).body(request.body)["name"]
    await books.write(CreateClass(name=name), f"Unable to create resource class {name}", _CREATE_REFUSED)
    return Reply(HTTPStatus.CREATED, headers={"location": _url(name, request)})


async def rename(books: Backend, request: Request) -> Reply:
    """Rename a resource class. Only until version 1.6 of the API."""
    name, to = request.params["name"], schemas.RESOURCE_CLASS.at(request.version).body(request.body)["name"]
    await books.write(
        RenameClass(name=name, to=to), f"Unable to rename resource class {name}", _RENAME_REFUSED, name=name
    )
    return Reply(body=_row(to, request), is_fresh=True)


async def ensure(books: Backend, request: Request) -> Reply:
    """Make sure that the resource class exists, whichever client created it. From version 1.7 of the API on."""
    name = request.params["name"]
    schemas.RESOURCE_CLASS.at(request.version).check({"name": name})
    verdict = await books.writer.ask(CreateClass(name=name))
    if not isinstance(verdict, Done | AlreadyThere):
        raise refusal(verdict, f"Unable to create resource class {name}")
    status = HTTPStatus.CREATED if isinstance(verdict, Done) else HTTPStatus.NO_CONTENT
    return Reply(status, headers={"location": _url(name, request)})


async def delete(books: Backend, request: Request) -> Reply:
    name = request.params["name"]
    await books.write(
        DeleteClass(name=name), f"Error in delete resource class {name}", _DELETE_REFUSED, name=name
    )
    return Reply(HTTPStatus.NO_CONTENT)


def _url(name: str, request: Request) -> str:
    return f"{request.prefix}/resource_classes/{name}"


def _row(name: str, request: Request) -> dict[str, object]:
    return {"name": name, "links": [{"rel": "self", "href": _url(name, request)}]}
