"""Allocations: read by consumer or by provider, written for one consumer or for several at once."""

from http import HTTPStatus
from typing import Any
from uuid import UUID

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import (
    ConsumerAllocations,
    ConsumerState,
    DeleteAllocations,
    Done,
    SetAllocations,
    UnknownConsumer,
)
from bus.messages.placement import NO_OWNER, ResourceAmount
from placement_worker.api import schemas
from placement_worker.api.endpoint_inputs import PAGE, Records, View, Writer, provider_of_path
from placement_worker.api.problems import bad_request, not_found
from placement_worker.api.refusals import refusal
from placement_worker.api.reply import Reply
from placement_worker.api.request import Request
from placement_worker.api.usages import UNKNOWN
from placement_worker.api.validators import VersionedValidators, uuid_in
from placement_worker.api.versions import Version
from placement_worker.replica import Replica

OF_ONE = VersionedValidators(
    ((1, 0), schemas.ALLOCATIONS_1_0),
    ((1, 8), schemas.ALLOCATIONS_1_8),
    ((1, 12), schemas.ALLOCATIONS_1_12),
    ((1, 28), schemas.ALLOCATIONS_1_28),
    ((1, 34), schemas.ALLOCATIONS_1_34),
    ((1, 38), schemas.ALLOCATIONS_1_38),
)
OF_SEVERAL = VersionedValidators(
    ((1, 13), schemas.SEVERAL_1_13),
    ((1, 28), schemas.SEVERAL_1_28),
    ((1, 34), schemas.SEVERAL_1_34),
    ((1, 38), schemas.SEVERAL_1_38),
)
_BY_PROVIDER: Version = (1, 12)
_GENERATIONS: Version = (1, 28)
_TYPES: Version = (1, 38)


class Allocations:
    def __init__(self, writer: Writer, view: View, records: Records) -> None:
        self._writer = writer
        self._view = view
        self._records = records

    async def show(self, request: Request) -> Reply:
        """The allocations of a consumer. An unknown consumer holds nothing, and is no error."""
        named = request.params["consumer_uuid"]
        found = uuid_in(named)
        consumer = None if found is None else await self._records.consumer(ConsumerId(found))
        if consumer is None:
            return Reply(body={"allocations": {}}, is_fresh=True)
        replica = await self._view.caught_up()
        return Reply(body=_of_consumer(consumer, replica, request.version), is_fresh=True)

    async def show_of(self, request: Request) -> Reply:
        """The allocations of a provider."""
        state = provider_of_path(await self._view.caught_up(), request.params)
        allocations: dict[str, dict[str, object]] = {}
        after: ConsumerId | None = None
        while page := await self._records.holders_of(state.id, after, PAGE):
            for holder in page:
                row: dict[str, object] = {"resources": _held_of(holder, state.id)}
                if request.version >= _GENERATIONS:
                    row["consumer_generation"] = holder.generation
                allocations[str(holder.id)] = row
            after = page[-1].id
        body = {"allocations": allocations, "resource_provider_generation": state.generation}
        return Reply(body=body, is_fresh=True)

    async def set(self, request: Request) -> Reply:
        named = request.params["consumer_uuid"]
        found = uuid_in(named)
        if found is None:
            raise bad_request(f"Malformed consumer_uuid: {named}")
        said = OF_ONE.at(request.version).body(request.body)
        if request.version < _BY_PROVIDER:
            said = {**said, "allocations": _by_provider(said["allocations"])}
        consumer = _consumer_in(found, said, request.version)
        return await self._write(
            SetAllocations(consumers=(consumer,)),
            f"Unable to allocate inventory for consumer {consumer.consumer}",
        )

    async def set_several(self, request: Request) -> Reply:
        said = OF_SEVERAL.at(request.version).body(request.body)
        consumers = consumers_in(said, request.version)
        return await self._write(SetAllocations(consumers=consumers), "Unable to allocate inventory")

    async def delete(self, request: Request) -> Reply:
        named = request.params["consumer_uuid"]
        consumer = uuid_in(named)
        if consumer is None:
            raise not_found(f"No allocations for consumer '{named}'")
        match verdict := await self._writer.ask(DeleteAllocations(consumer=ConsumerId(consumer))):
            case Done():
                return Reply(HTTPStatus.NO_CONTENT)
            case UnknownConsumer():
                raise not_found(f"No allocations for consumer '{named}'")
            case _:
                raise refusal(verdict, f"Unable to delete the allocations of consumer {named}")

    async def _write(self, order: SetAllocations, doing: str) -> Reply:
        verdict = await self._writer.ask(order)
        if not isinstance(verdict, Done):
            raise refusal(verdict, doing)
        return Reply(HTTPStatus.NO_CONTENT)


def consumers_in(said: dict[str, Any], version: Version) -> tuple[ConsumerAllocations, ...]:
    consumers = tuple(_consumer_in(uuid_key(named), body, version) for named, body in said.items())
    if len({consumer.consumer for consumer in consumers}) < len(consumers):
        raise bad_request(f"JSON does not validate: of {', '.join(said)} two are the same consumer")
    return consumers


def _consumer_in(consumer: UUID, said: dict[str, Any], version: Version) -> ConsumerAllocations:
    judges_generation = version >= _GENERATIONS
    generation = said.get("consumer_generation")
    return ConsumerAllocations(
        consumer=ConsumerId(consumer),
        amounts=_amounts_in(said["allocations"]),
        project=said.get("project_id", NO_OWNER),
        user=said.get("user_id", NO_OWNER),
        generation=None if generation is None else int(generation),
        type=said.get("consumer_type"),
        judges_generation=judges_generation,
    )


def uuid_key(text: str) -> UUID:
    """A key that must be a UUID: the schema's pattern allows hyphens anywhere, so it is checked here."""
    key = uuid_in(text)
    if key is None:
        raise bad_request(f"JSON does not validate: {text!r} is not a 'uuid'")
    return key


def _amounts_in(said: dict[str, Any]) -> tuple[ResourceAmount, ...]:
    amounts: dict[tuple[int, str], ResourceAmount] = {}
    for named, allocation in said.items():
        provider = ProviderId(uuid_key(named))
        for resource, amount in allocation["resources"].items():
            if (provider.int, resource) in amounts:
                raise bad_request(f"JSON does not validate: provider {provider} is named twice")
            amounts[provider.int, resource] = ResourceAmount(
                provider=provider, resource=resource, amount=int(amount)
            )
    return tuple(amounts.values())


def _by_provider(listed: list[dict[str, Any]]) -> dict[str, Any]:
    """In the form that bodies have from 1.12 on. If a provider is listed twice, the last one counts."""
    return {one["resource_provider"]["uuid"]: {"resources": one["resources"]} for one in listed}


def _of_consumer(consumer: ConsumerState, replica: Replica, version: Version) -> dict[str, object]:
    allocations: dict[str, dict[str, Any]] = {}
    for amount in consumer.held:
        row = allocations.setdefault(str(amount.provider), {"resources": {}})
        row["resources"][amount.resource] = amount.amount
        # The provider's current generation: it may differ from that of the consumer's read. Writes compare the consumer's.
        state = replica.get(amount.provider)
        row["generation"] = state.generation if state else 0
    body: dict[str, object] = {"allocations": allocations}
    if version >= _BY_PROVIDER:
        body |= {"project_id": consumer.project, "user_id": consumer.user}
    if version >= _GENERATIONS:
        body["consumer_generation"] = consumer.generation
    if version >= _TYPES:
        body["consumer_type"] = consumer.type or UNKNOWN
    return body


def _held_of(consumer: ConsumerState, provider: ProviderId) -> dict[str, int]:
    return {amount.resource: amount.amount for amount in consumer.held if amount.provider == provider}
