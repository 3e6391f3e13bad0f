"""`Backend`, through which all endpoints read and write; and the id of the provider that a path names."""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct

from bus.message import ProviderId
from bus.messages.administration import Done, ProviderWritten, Write
from bus.messages.placement import ProviderState
from placement_worker.api.grammar.refusals import (
    AS_USUAL,
    NO_SUCH_CLASS,
    NO_SUCH_TRAIT,
    Refusals,
    no_such_provider,
    refusal,
)
from placement_worker.api.grammar.validators import VersionedValidators, uuid_in
from placement_worker.api.values.problems import ApiError, bad_request
from placement_worker.api.values.request import Request
from placement_worker.classes_and_traits import KnownNames
from placement_worker.replica import ProviderReplica
from placement_worker.store import Records
from placement_worker.view import ProviderView
from placement_worker.write_batcher import WriteBatcher

# How many rows are read from the store at once.
PAGE = 1_000


class Backend(Struct, frozen=True):
    """Where endpoints read and write.

    Providers are read from memory (`view`). `records` are read from the database each time: there is too much of them for
    memory, or they are needed too rarely.
    """

    writer: WriteBatcher
    view: ProviderView
    records: Records
    names: KnownNames

    async def write(
        self, order: Write, doing: str, special: Refusals = AS_USUAL, **words: str
    ) -> Done | ProviderWritten:
        """Have this order written. If placement refuses it, raise the HTTP error for that verdict.

        The error is the one that `refusal` chooses.
        """
        verdict = await self.writer.ask(order)
        if isinstance(verdict, Done | ProviderWritten):
            return verdict
        raise refusal(verdict, doing, special, **words)

    async def write_provider(self, order: Write, doing: str, special: Refusals = AS_USUAL) -> ProviderWritten:
        verdict = await self.write(order, doing, special)
        assert isinstance(verdict, ProviderWritten), f"{order!r} leaves a provider"
        return verdict

    async def check_names(
        self, replica: ProviderReplica, classes: Iterable[str], traits: Iterable[str]
    ) -> None:
        """Refuse a request that asks for a resource class or a trait that does not exist."""
        if unknown := await self.names.unknown("classes", classes, replica):
            names = NO_SUCH_CLASS.format(names=", ".join(unknown))
            raise bad_request(f"Invalid resource class in resources parameter: {names}")
        if unknown := await self.names.unknown("traits", traits, replica):
            raise bad_request(NO_SUCH_TRAIT.format(names=", ".join(unknown)))

    async def provider(self, request: Request) -> ProviderState:
        """The provider that the path names. Raises a 404 if there is none."""
        state = (await self.view.caught_up()).get(path_provider(request))
        if state is None:
            raise no_such_provider(request.params["uuid"])
        return state

    async def body_for_provider(self, validators: VersionedValidators, request: Request) -> Any:
        """Decode the body. If the provider does not exist, its 404 comes before any error in the body."""
        try:
            return validators.at(request.version).body(request.body)
        except ApiError:
            await self.provider(request)
            raise


def path_provider(request: Request) -> ProviderId:
    """The provider's id in the path. A text that is no UUID names no provider: a 404."""
    provider = uuid_in(request.params["uuid"])
    if provider is None:
        raise no_such_provider(request.params["uuid"])
    return ProviderId(provider)
