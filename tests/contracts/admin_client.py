"""A client that writes to a store as an administrator does over HTTP, and as workers do over the bus."""

from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime

from bus.messages.books import (
    ConsumerAllocations,
    CreateProvider,
    ProviderWritten,
    SetAllocations,
    SetInventories,
    Write,
    WriteVerdict,
)
from engine.inventories import ConsumerId, ProviderId, ResourceAmount
from engine.refusals import ClaimVerdict
from kit.errors import Transient
from placement_worker.admin_writes import TRIES_MAX, WriteBatcher
from placement_worker.core.ledger import ClaimOrder, Sent
from placement_worker.store_sql import PlacementStore
from tests.contracts.placement_orders import NOON, VOCABULARY, inventories, provider
from tests.contracts.store_client import StoreClient


class AdminClient(StoreClient):
    def __init__(self, store: PlacementStore) -> None:
        super().__init__(store)
        self.batcher = WriteBatcher(store, VOCABULARY, lambda: NOON)

    async def judge(
        self, asked: Sequence[Sent[ClaimOrder]], now: datetime = NOON
    ) -> tuple[ClaimVerdict, ...]:
        """As a worker does: try again after a transient error."""
        for _ in range(TRIES_MAX - 1):
            with suppress(Transient):
                return await super().judge(asked, now)
        return await super().judge(asked, now)

    async def write(self, write: Write) -> WriteVerdict:
        return await self.batcher.ask(write)

    async def add_provider(
        self, name: str, parent: ProviderId | None = None, *, cell: str = "", **totals: int
    ) -> ProviderId:
        """A new provider with these inventories."""
        one = provider(name)
        written = await self.write(CreateProvider(id=one, name=name, parent=parent, of_cell=cell))
        assert isinstance(written, ProviderWritten)
        if totals:
            stocked = SetInventories(provider=one, generation=0, inventories=inventories(**totals))
            assert isinstance(await self.write(stocked), ProviderWritten)
        return one


def holding(
    who: ConsumerId,
    *amounts: ResourceAmount,
    generation: int | None = None,
    judges_generation: bool = True,
    type: str | None = "INSTANCE",  # noqa: A002 - as the field is called
    project: str = "shop",
    user: str = "ann",
) -> ConsumerAllocations:
    """The allocations that a consumer shall hold; the consumer is new unless a generation is given."""
    return ConsumerAllocations(
        consumer=who,
        amounts=amounts,
        project=project,
        user=user,
        generation=generation,
        judges_generation=judges_generation,
        type=type,
    )


def allocations(*consumers: ConsumerAllocations) -> SetAllocations:
    return SetAllocations(consumers=consumers)
