"""Resource classes: the names that exist."""

from http import HTTPStatus

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
from placement_worker.api import schemas
from placement_worker.api.endpoint_inputs import Writer
from placement_worker.api.names import classes_in_order
from placement_worker.api.problems import bad_request, conflict, not_found
from placement_worker.api.refusals import no_such_class, refusal
from placement_worker.api.reply import Reply
from placement_worker.api.request import Request
from placement_worker.api.validators import VersionedValidators
from placement_worker.known_names import KnownNames

NAMED = VersionedValidators(((1, 2), schemas.RESOURCE_CLASS))
_NAMED = NAMED.at((1, 2))


class ResourceClasses:
    def __init__(self, writer: Writer, names: KnownNames) -> None:
        self._writer = writer
        self._names = names

    async def show_all(self, request: Request) -> Reply:
        rows = [_row(name, request) for name in classes_in_order(await self._names.classes())]
        return Reply(body={"resource_classes": rows}, is_fresh=True)

    async def show(self, request: Request) -> Reply:
        name = request.params["name"]
        if not await self._names.is_class(name):
            raise not_found(no_such_class((name,)))
        return Reply(body=_row(name, request), is_fresh=True)

    async def create(self, request: Request) -> Reply:
        name = _NAMED.body(request.body)["name"]
        match verdict := await self._writer.ask(CreateClass(name=name)):
            case Done():
                return Reply(HTTPStatus.CREATED, headers={"location": _url(name, request)})
            case AlreadyThere():
                raise conflict(f"Conflicting resource class already exists: {name}")
            case _:
                raise refusal(verdict, f"Unable to create resource class {name}")

    async def rename(self, request: Request) -> Reply:
        """Until 1.6."""
        name, to = request.params["name"], _NAMED.body(request.body)["name"]
        match verdict := await self._writer.ask(RenameClass(name=name, to=to)):
            case Done():
                return Reply(body=_row(to, request), is_fresh=True)
            case UnknownClass():
                raise not_found(no_such_class((name,)))
            case AlreadyThere():
                raise conflict(f"Resource class already exists: {to}")
            case NotAllowed(field="name"):
                raise bad_request(f"Cannot update standard resource class {name}")
            case _:
                raise refusal(verdict, f"Unable to rename resource class {name}")

    async def ensure(self, request: Request) -> Reply:
        """From 1.7 on: make sure that the class exists, whichever client created it."""
        name = request.params["name"]
        _NAMED.check({"name": name})
        headers = {"location": _url(name, request)}
        match verdict := await self._writer.ask(CreateClass(name=name)):
            case Done():
                return Reply(HTTPStatus.CREATED, headers=headers)
            case AlreadyThere():
                return Reply(HTTPStatus.NO_CONTENT, headers=headers)
            case _:
                raise refusal(verdict, f"Unable to create resource class {name}")

    async def delete(self, request: Request) -> Reply:
        name = request.params["name"]
        doing = f"Error in delete resource class {name}"
        match verdict := await self._writer.ask(DeleteClass(name=name)):
            case Done():
                return Reply(HTTPStatus.NO_CONTENT)
            case UnknownClass():
                raise not_found(no_such_class((name,)))
            case NameInUse(provider=provider):
                raise conflict(f"{doing}: Class is in use in inventory. One that has it is {provider}.")
            case NotAllowed():
                raise bad_request(f"{doing}: Cannot delete standard resource class {name}.")
            case _:
                raise refusal(verdict, doing)


def _url(name: str, request: Request) -> str:
    return f"{request.prefix}/resource_classes/{name}"


def _row(name: str, request: Request) -> dict[str, object]:
    return {"name": name, "links": [{"rel": "self", "href": _url(name, request)}]}
