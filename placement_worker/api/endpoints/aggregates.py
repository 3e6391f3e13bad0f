"""The aggregates that a provider is a member of."""

from uuid import UUID

from bus.message import AggregateId
from bus.messages.administration import SetAggregates
from placement_worker.api.endpoints.traits import MOVED_MEANWHILE
from placement_worker.api.grammar import schemas
from placement_worker.api.grammar.backend import Backend, path_provider
from placement_worker.api.values.request import Reply, Request
from placement_worker.api.values.versions import Version

_GENERATIONS: Version = (1, 19)


async def show(books: Backend, request: Request) -> Reply:
    state = await books.provider(request)
    return _rendered(state.aggregates, state.generation, request.version)


async def replace(books: Backend, request: Request) -> Reply:
    provider = path_provider(request)
    said = await books.body_for_provider(schemas.AGGREGATES, request)
    by_generation = request.version >= _GENERATIONS
    named = said["aggregates"] if by_generation else said
    aggregates = tuple(dict.fromkeys(AggregateId(UUID(one)) for one in named))
    written = await books.write_provider(
        SetAggregates(
            provider=provider,
            generation=int(said["resource_provider_generation"]) if by_generation else None,
            aggregates=aggregates,
            moves_generation=by_generation,
        ),
        f"Unable to set the aggregates of resource provider {provider}",
        MOVED_MEANWHILE,
    )
    return _rendered(aggregates, written.generation, request.version)


def _rendered(aggregates: tuple[AggregateId, ...], generation: int, version: Version) -> Reply:
    body: dict[str, object] = {"aggregates": [str(one) for one in aggregates]}
    if version >= _GENERATIONS:
        body["resource_provider_generation"] = generation
    return Reply(body=body, is_fresh=True)
