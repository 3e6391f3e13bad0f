"""Move inventories and allocations together, all or nothing."""

from http import HTTPStatus
from typing import Any

from bus.message import ProviderId
from bus.messages.administration import Done, ProviderInventories, Reshape
from placement_worker.api import schemas
from placement_worker.api.allocations import consumers_in, uuid_key
from placement_worker.api.endpoint_inputs import Writer
from placement_worker.api.inventories import inventories_in
from placement_worker.api.refusals import refusal
from placement_worker.api.reply import Reply
from placement_worker.api.request import Request
from placement_worker.api.validators import VersionedValidators

RESHAPE = VersionedValidators(
    ((1, 30), schemas.RESHAPE_1_30), ((1, 34), schemas.RESHAPE_1_34), ((1, 38), schemas.RESHAPE_1_38)
)


class Reshaper:
    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    async def reshape(self, request: Request) -> Reply:
        said = RESHAPE.at(request.version).body(request.body)
        verdict = await self._writer.ask(
            Reshape(
                inventories=tuple(
                    _inventories_of(named, body) for named, body in said["inventories"].items()
                ),
                allocations=consumers_in(said["allocations"], request.version),
            )
        )
        match verdict:
            case Done():
                return Reply(HTTPStatus.NO_CONTENT)
            case _:
                raise refusal(verdict, "Unable to allocate inventory")


def _inventories_of(named: str, said: dict[str, Any]) -> ProviderInventories:
    return ProviderInventories(
        provider=ProviderId(uuid_key(named)),
        generation=int(said["resource_provider_generation"]),
        inventories=inventories_in(said),
    )
