"""Requests to a placement's HTTP API, OpenStack's or ours, and its answers as values."""

import asyncio
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import TypeVar
from urllib.parse import quote
from uuid import UUID

import httpx
import msgspec
from msgspec import Struct, field

from engine.inventories import AggregateId, ConsumerId, ProviderId, ReportedInventory, ResourceAmount
from kit.keystone import OpenStackSettings
from kit.login import NOT_FOUND, RestAnswer, RestService
from kit.rest import Microversion, RequestNotDone, RestClient, RestLimits

T = TypeVar("T")

# What Nova itself speaks: with mappings of groups, and without consumer types.
MINOR = 36
CONFLICT, BAD_REQUEST = 409, 400
# So many are asked for at once: more are faster at the start, fewer load placement less.
READS_AT_ONCE = 8
CONCURRENT_UPDATE = "placement.concurrent_update"
PLACEMENT_SERVICE = RestService(
    name="Placement", url_key="nova.placement_url", types=("placement",), version="/"
)
Amounts = Mapping[ProviderId, Mapping[str, int]]

_encode = msgspec.json.Encoder().encode


class ListedProvider(Struct, frozen=True):
    """A provider in the list of all, which has all but its contents."""

    uuid: ProviderId
    name: str
    generation: int
    root_provider_uuid: ProviderId
    parent_provider_uuid: ProviderId | None = None


class Held(Struct, frozen=True):
    """What a consumer holds. `generation` is None if there is no such consumer."""

    amounts: tuple[ResourceAmount, ...] = ()
    generation: int | None = None
    project: str = ""
    user: str = ""


class HoldingsToWrite(Struct, frozen=True):
    """All that a consumer is to hold. `generation` is the one that it has; None for a new consumer."""

    amounts: Amounts
    project: str
    user: str
    generation: int | None = None


class ProviderUse(Struct, frozen=True):
    """What is in use of a provider at this generation, in all and by consumer."""

    generation: int
    by_consumer: Mapping[ConsumerId, Mapping[str, int]] = {}

    @property
    def used(self) -> dict[str, int]:
        sums: dict[str, int] = {}
        for amounts in self.by_consumer.values():
            for resource, amount in amounts.items():
                sums[resource] = sums.get(resource, 0) + amount
        return sums


class ProviderContents(Struct, frozen=True):
    inventories: Mapping[str, ReportedInventory]
    traits: tuple[str, ...]
    aggregates: tuple[AggregateId, ...]


class Conflict(Struct, frozen=True):
    """A write that was refused. `of_consumer`: the consumer's generation has moved. `of_provider`: somebody else wrote to a provider
    at the same time. Otherwise it does not fit, or a provider or class is not there.
    """

    reason: str
    of_consumer: bool = False
    of_provider: bool = False


class _Listed(Struct):
    resource_providers: list[ListedProvider]


class _Resources(Struct):
    resources: dict[str, int]
    generation: int = 0


class _Allocations(Struct):
    allocations: dict[UUID, _Resources]
    resource_provider_generation: int = 0


class _OfConsumer(Struct):
    allocations: dict[ProviderId, _Resources]
    consumer_generation: int | None = None
    project_id: str = ""
    user_id: str = ""


class _Inventories(Struct):
    inventories: dict[str, ReportedInventory]


class _Traits(Struct):
    traits: list[str]


class _Aggregates(Struct):
    aggregates: list[AggregateId]


class _Summed(Struct):
    used: int


class _Summary(Struct):
    resources: dict[str, _Summed]


class _Candidates(Struct):
    provider_summaries: dict[ProviderId, _Summary]


class _Error(Struct):
    code: str = ""
    detail: str = ""


class _Errors(Struct):
    errors: list[_Error] = field(default_factory=list)


class PlacementApi:
    """`transport` is httpx's way to the servers, for tests. Raises BadSetting or ValueError if it cannot sign in like this."""

    def __init__(
        self,
        url: str,
        account: OpenStackSettings,
        *,
        limits: RestLimits | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._client = RestClient(
            PLACEMENT_SERVICE,
            url,
            account,
            Microversion("placement", f"1.{MINOR}"),
            limits=limits,
            transport=transport,
        )

    async def close(self) -> None:
        await self._client.close()

    async def providers(self) -> list[ListedProvider]:
        return self._client.read(await self._granted("/resource_providers"), _Listed).resource_providers

    async def use_of(self, provider: ProviderId) -> ProviderUse | None:
        """What is in use of the provider; None if it is gone."""
        answer = await self._client.ask(f"/resource_providers/{provider}/allocations")
        if answer.status == NOT_FOUND:
            return None
        found = self._client.read(self._client.granted(answer), _Allocations)
        return ProviderUse(
            found.resource_provider_generation,
            {ConsumerId(id_): each.resources for id_, each in found.allocations.items()},
        )

    async def used_where_there_is(self, resource: str, amount: int) -> Mapping[ProviderId, Mapping[str, int]]:
        """What is in use of all providers of the trees that still have so much of this class, by one request."""
        query = {"resources": f"{resource}:{amount}"}
        answer = self._client.granted(await self._client.ask("/allocation_candidates", lambda: query))
        found = self._client.read(answer, _Candidates).provider_summaries
        return {
            id_: {name: each.used for name, each in of_one.resources.items()} for id_, of_one in found.items()
        }

    async def contents_of(self, provider: ProviderId) -> ProviderContents | None:
        """Its inventories, traits and aggregates; None if it is gone."""
        at = f"/resource_providers/{provider}"
        answers = [await self._client.ask(f"{at}/{what}") for what in ("inventories", "traits", "aggregates")]
        if any(each.status == NOT_FOUND for each in answers):
            return None
        inventories, traits, aggregates = (self._client.granted(each) for each in answers)
        return ProviderContents(
            self._client.read(inventories, _Inventories).inventories,
            tuple(self._client.read(traits, _Traits).traits),
            tuple(sorted(self._client.read(aggregates, _Aggregates).aggregates)),
        )

    async def held_by(self, consumer: ConsumerId) -> Held:
        found = self._client.read(await self._granted(f"/allocations/{consumer}"), _OfConsumer)
        return Held(
            tuple(
                ResourceAmount(provider=provider, resource=resource, amount=amount)
                for provider, each in found.allocations.items()
                for resource, amount in each.resources.items()
            ),
            found.consumer_generation,
            found.project_id,
            found.user_id,
        )

    async def held_by_each(self, consumers: Sequence[ConsumerId]) -> Sequence[Sequence[ResourceAmount]]:
        """What each of these consumers holds now. Raises `Operational` if placement does not answer."""
        found: list[Sequence[ResourceAmount]] = []
        for start in range(0, len(consumers), READS_AT_ONCE):
            some = consumers[start : start + READS_AT_ONCE]
            found += [each.amounts for each in await all_of(map(self.held_by, some))]
        return found

    async def allocate(self, consumer: ConsumerId, allocated: HoldingsToWrite) -> Conflict | None:
        """Write what one consumer holds. Returns why that was refused."""
        return await self._write("PUT", f"/allocations/{quote(str(consumer))}", _body(allocated))

    async def allocate_all(self, allocated: Mapping[ConsumerId, HoldingsToWrite]) -> Conflict | None:
        """Write what several consumers hold: all of it, or nothing."""
        bodies = {str(consumer): _body(each) for consumer, each in allocated.items()}
        return await self._write("POST", "/allocations", bodies)

    async def _write(self, method: str, path: str, body: Mapping[str, object]) -> Conflict | None:
        async def once() -> RestAnswer:
            # Only a write that surely had no effect is tried again.
            return await self._client.send(method, path, {}, _encode(body))

        answer = await self._client.again_while(RequestNotDone, once)
        if answer.status in (BAD_REQUEST, NOT_FOUND, CONFLICT):
            return self._conflict(answer)
        self._client.granted(answer)
        return None

    def _conflict(self, answer: RestAnswer) -> Conflict:
        try:
            errors = msgspec.json.decode(answer.body, type=_Errors).errors
        except msgspec.DecodeError:
            errors = []
        error = errors[0] if errors else _Error(detail=answer.message)
        is_concurrent = answer.status == CONFLICT and error.code == CONCURRENT_UPDATE
        of_consumer = is_concurrent and "consumer generation conflict" in error.detail
        return Conflict(error.detail.strip(), of_consumer, is_concurrent and not of_consumer)

    async def _granted(self, path: str) -> RestAnswer:
        return self._client.granted(await self._client.ask(path))


def _body(allocated: HoldingsToWrite) -> Mapping[str, object]:
    return {
        "allocations": {str(id_): {"resources": each} for id_, each in allocated.amounts.items()},
        "project_id": allocated.project,
        "user_id": allocated.user,
        "consumer_generation": allocated.generation,
    }


async def all_of(works: Iterable[Coroutine[object, object, T]]) -> list[T]:
    """The results of all of these. None is under way any more when this returns or raises: what failed is tried again."""
    done = await asyncio.gather(*works, return_exceptions=True)
    for each in done:
        if isinstance(each, BaseException):
            raise each
    return [each for each in done if not isinstance(each, BaseException)]
