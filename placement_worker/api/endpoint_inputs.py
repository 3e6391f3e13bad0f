"""What the endpoints stand on: whom they write to, whom they read from, and which provider a path names."""

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

# As many as are read from the store at once.
PAGE = 1_000


class Writer(Protocol):
    """Takes writes to the books."""

    async def ask(self, message: Write) -> WriteVerdict: ...


class View(Protocol):
    """Knows all providers."""

    async def caught_up(self) -> Replica:
        """With all that was committed before the call."""


class Records(Protocol):
    """What there is too much of to keep in memory, or too little to follow."""

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None: ...

    async def holders_of(
        self, provider: ProviderId, after: ConsumerId | None, limit: int
    ) -> tuple[ConsumerState, ...]: ...

    async def usages(self, project: str, user: str) -> tuple[TypeUsage, ...]: ...

    async def custom_names(self, of: KindOfNames, after: str, limit: int) -> tuple[str, ...]: ...


def path_provider(params: Mapping[str, str]) -> ProviderId:
    """The provider that the path names; one that cannot be does not exist."""
    provider = uuid_in(params["uuid"])
    if provider is None:
        raise no_such_provider(params["uuid"])
    return ProviderId(provider)


def provider_of_path(replica: Replica, params: Mapping[str, str]) -> ProviderState:
    """The same, as it stands."""
    state = replica.get(path_provider(params))
    if state is None:
        raise no_such_provider(params["uuid"])
    return state


async def body_for_provider(validator: Validator, request: Request, view: View) -> Any:
    """What the body says. Who names a provider that is not there is told so first, whatever the body is."""
    try:
        return validator.body(request.body)
    except ApiError:
        provider_of_path(await view.caught_up(), request.params)
        raise
