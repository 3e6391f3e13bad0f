"""The aggregates that a provider is a member of."""

from uuid import UUID

from bus.message import AggregateId
from bus.messages.administration import GenerationMoved, ProviderWritten, SetAggregates
from placement_worker.api import schemas
from placement_worker.api.endpoint_inputs import (
    View,
    Writer,
    body_for_provider,
    path_provider,
    provider_of_path,
)
from placement_worker.api.refusals import refusal
from placement_worker.api.reply import Reply
from placement_worker.api.request import Request
from placement_worker.api.traits import moved_meanwhile
from placement_worker.api.validators import VersionedValidators
from placement_worker.api.versions import Version

SET = VersionedValidators(((1, 1), schemas.AGGREGATES_1_1), ((1, 19), schemas.AGGREGATES_1_19))
_GENERATIONS: Version = (1, 19)


class Aggregates:
    def __init__(self, writer: Writer, view: View) -> None:
        self._writer = writer
        self._view = view

    async def show(self, request: Request) -> Reply:
        state = provider_of_path(await self._view.caught_up(), request.params)
        return _rendered(state.aggregates, state.generation, request.version)

    async def set(self, request: Request) -> Reply:
        provider = path_provider(request.params)
        said = await body_for_provider(SET.at(request.version), request, self._view)
        by_generation = request.version >= _GENERATIONS
        named = said["aggregates"] if by_generation else said
        aggregates = tuple(dict.fromkeys(AggregateId(UUID(one)) for one in named))
        verdict = await self._writer.ask(
            SetAggregates(
                provider=provider,
                generation=int(said["resource_provider_generation"]) if by_generation else None,
                aggregates=aggregates,
                moves_generation=by_generation,
            )
        )
        match verdict:
            case ProviderWritten(generation=generation):
                return _rendered(aggregates, generation, request.version)
            case GenerationMoved():
                raise moved_meanwhile(verdict)
            case _:
                raise refusal(verdict, f"Unable to set the aggregates of resource provider {provider}")


def _rendered(aggregates: tuple[AggregateId, ...], generation: int, version: Version) -> Reply:
    body: dict[str, object] = {"aggregates": [str(one) for one in aggregates]}
    if version >= _GENERATIONS:
        body["resource_provider_generation"] = generation
    return Reply(body=body, is_fresh=True)
