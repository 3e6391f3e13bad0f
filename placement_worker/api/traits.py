"""Traits: the names that exist, and those of a provider."""

from http import HTTPStatus

from bus.messages.administration import (
    AlreadyThere,
    CreateTrait,
    DeleteTrait,
    Done,
    GenerationMoved,
    NameInUse,
    ProviderWritten,
    SetTraits,
    UnknownTrait,
)
from bus.messages.placement import NotAllowed
from placement_worker.api import query_schemas, schemas
from placement_worker.api.endpoint_inputs import View, Writer, path_provider, provider_of_path
from placement_worker.api.names import standard_first
from placement_worker.api.problems import CONCURRENT_UPDATE, ApiError, bad_request, conflict, not_found
from placement_worker.api.refusals import no_such_trait, refusal
from placement_worker.api.reply import Reply
from placement_worker.api.request import Request
from placement_worker.api.validators import Validator, VersionedValidators
from placement_worker.known_names import KnownNames

LISTED = VersionedValidators(((1, 6), query_schemas.TRAITS))
OF_PROVIDER = VersionedValidators(((1, 6), schemas.TRAITS))
_NAME = Validator(schemas.CUSTOM_TRAIT)


class Traits:
    def __init__(self, writer: Writer, view: View, names: KnownNames) -> None:
        self._writer = writer
        self._view = view
        self._names = names

    async def show_all(self, request: Request) -> Reply:
        query = LISTED.at(request.version).query(request.query)
        names = await self._names.traits()
        if "name" in query:
            names = _named(names, query["name"])
        if "associated" in query:
            replica = await self._view.caught_up()
            had = {trait for state in replica for trait in state.traits}
            is_had = _is_true(query["associated"])
            names = [name for name in names if (name in had) == is_had]
        return Reply(body={"traits": names}, is_fresh=True)

    async def show(self, request: Request) -> Reply:
        name = request.params["name"]
        if not await self._names.is_trait(name):
            raise not_found(no_such_trait((name,)))
        return Reply(HTTPStatus.NO_CONTENT, is_fresh=True)

    async def create(self, request: Request) -> Reply:
        name = request.params["name"]
        if not _NAME.allows(name):
            raise bad_request(
                "The trait is invalid. A valid trait must be no longer than 255 characters, start with the prefix "
                '"CUSTOM_" and use following characters: "A"-"Z", "0"-"9" and "_"'
            )
        headers = {"location": f"{request.prefix}/traits/{name}"}
        match verdict := await self._writer.ask(CreateTrait(name=name)):
            case Done():
                return Reply(HTTPStatus.CREATED, headers=headers, is_fresh=True)
            case AlreadyThere():
                return Reply(HTTPStatus.NO_CONTENT, headers=headers, is_fresh=True)
            case _:
                raise refusal(verdict, f"Unable to create trait {name}")

    async def delete(self, request: Request) -> Reply:
        name = request.params["name"]
        match verdict := await self._writer.ask(DeleteTrait(name=name)):
            case Done():
                return Reply(HTTPStatus.NO_CONTENT)
            case UnknownTrait():
                raise not_found(no_such_trait((name,)))
            case NameInUse(provider=provider):
                raise conflict(
                    f"The trait {name} is in use by a resource provider. One of them is {provider}."
                )
            case NotAllowed():
                raise bad_request(f"Cannot delete standard trait {name}.")
            case _:
                raise refusal(verdict, f"Unable to delete trait {name}")

    async def show_of(self, request: Request) -> Reply:
        state = provider_of_path(await self._view.caught_up(), request.params)
        return _of(state.traits, state.generation)

    async def set_of(self, request: Request) -> Reply:
        # Placement checks this body before it looks for the provider; with all other bodies it is the other way round.
        said = OF_PROVIDER.at(request.version).body(request.body)
        provider = path_provider(request.params)
        traits = tuple(dict.fromkeys(said["traits"]))
        verdict = await self._writer.ask(
            SetTraits(provider=provider, generation=int(said["resource_provider_generation"]), traits=traits)
        )
        match verdict:
            case ProviderWritten(generation=generation):
                return _of(traits, generation)
            case GenerationMoved():
                raise moved_meanwhile(verdict)
            case _:
                raise refusal(verdict, f"Unable to set the traits of resource provider {provider}")

    async def delete_of(self, request: Request) -> Reply:
        provider = path_provider(request.params)
        verdict = await self._writer.ask(SetTraits(provider=provider, generation=None, traits=()))
        if not isinstance(verdict, ProviderWritten):
            raise refusal(verdict, f"Unable to delete the traits of resource provider {provider}")
        return Reply(HTTPStatus.NO_CONTENT)


def moved_meanwhile(verdict: GenerationMoved) -> ApiError:
    return conflict(
        f"{verdict.provider} is at generation {verdict.current}, given: {verdict.seen}. Resource provider's generation "
        "already changed. Please update the generation and try again.",
        CONCURRENT_UPDATE,
    )


def _of(traits: tuple[str, ...], generation: int) -> Reply:
    return Reply(
        body={"traits": standard_first(traits), "resource_provider_generation": generation}, is_fresh=True
    )


def _named(names: list[str], asked: str) -> list[str]:
    """Filter by `in:` a list of names, or by `startswith:` a prefix."""
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
