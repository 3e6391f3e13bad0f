"""What endpoints share: the interfaces that they write to and read from, and the provider that a path names."""

from collections.abc import Mapping
from typing import Any, Protocol

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import ConsumerState, KindOfNames, TypeUsage, Write, WriteVerdict
from bus.messages.placement import ProviderState
from placement_worker.api.problems import ApiError
from placement_worker.api.refusals import no_such_provider
from placement_worker.api.request import Request
from placement_worker.api.validators import Validator, uuid_in
from placement_worker.replica import Replica

# How many rows are read from the store at once.
PAGE = 1_000


class Writer(Protocol):
    """Writes changes."""

    async def ask(self, message: Write) -> WriteVerdict: ...


class View(Protocol):
    """Has all providers."""

    async def caught_up(self) -> Replica:
        """All providers, with everything committed before the call."""


class Records(Protocol):
    """Data that is read from the store each time: there is too much of it for memory, or it is needed too rarely."""

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None: ...

    async def holders_of(
        self, provider: ProviderId, after: ConsumerId | None, limit: int
    ) -> tuple[ConsumerState, ...]: ...

    async def usages(self, project: str, user: str) -> tuple[TypeUsage, ...]: ...

    async def custom_names(self, of: KindOfNames, after: str, limit: int) -> tuple[str, ...]: ...


def path_provider(params: Mapping[str, str]) -> ProviderId:
    """The id in the path; an id that is not a UUID is a 404."""
    provider = uuid_in(params["uuid"])
    if provider is None:
        raise no_such_provider(params["uuid"])
    return ProviderId(provider)


def provider_of_path(replica: Replica, params: Mapping[str, str]) -> ProviderState:
    """The provider that the path names. Raises a 404 if there is none."""
    state = replica.get(path_provider(params))
    if state is None:
        raise no_such_provider(params["uuid"])
    return state


async def body_for_provider(validator: Validator, request: Request, view: View) -> Any:
    """Decode the body. If the provider does not exist, its 404 comes before any error in the body."""
    try:
        return validator.body(request.body)
    except ApiError:
        provider_of_path(await view.caught_up(), request.params)
        raise
