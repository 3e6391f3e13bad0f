"""Move inventories and allocations together, all or nothing."""

from http import HTTPStatus

from bus.message import ProviderId
from bus.messages.administration import ProviderInventories, Reshape
from placement_worker.api.endpoints.allocations import consumers_in, uuid_key
from placement_worker.api.endpoints.inventories import inventories_in
from placement_worker.api.grammar import schemas
from placement_worker.api.grammar.backend import Backend
from placement_worker.api.values.request import Reply, Request


async def reshape(books: Backend, request: Request) -> Reply:
    said = schemas.RESHAPE.at(request.version).body(request.body)
    order = Reshape(
        inventories=tuple(
            ProviderInventories(
                provider=ProviderId(uuid_key(named)),
                generation=int(body["resource_provider_generation"]),
                inventories=inventories_in(body),
            )
            for named, body in said["inventories"].items()
        ),
        allocations=consumers_in(said["allocations"], request.version),
    )
    await books.write(order, "Unable to allocate inventory")
    return Reply(HTTPStatus.NO_CONTENT)
