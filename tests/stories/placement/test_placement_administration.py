"""The books written and read directly over the bus, without HTTP."""

from uuid import UUID, uuid5

import pytest

from bus.message import Message
from bus.messages.administration import (
    AlreadyThere,
    ConsumerAllocations,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteProvider,
    Done,
    HasChildren,
    ProviderInventories,
    ProviderWritten,
    Reshape,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetTraits,
    WriteAnswered,
    WriteVerdict,
)
from bus.topology import user_of
from engine.inventories import ConsumerId, ProviderId, ReportedInventory, ResourceAmount
from tests.contracts.stage import dead_letters
from tests.stories.placement.test_placement_over_the_bus import NAMES, STAGES, PlacementSetup, placement_setup

pytestmark = pytest.mark.asyncio

HOST, NUMA = (ProviderId(uuid5(NAMES, name)) for name in ("h1", "n1"))
EIGHT = {"VCPU": ReportedInventory(total=8)}


def who(number: int) -> ConsumerId:
    return ConsumerId(UUID(int=number))


def holding(
    number: int, vcpu: int, of: ProviderId = HOST, generation: int | None = None
) -> ConsumerAllocations:
    return ConsumerAllocations(
        consumer=who(number),
        amounts=(ResourceAmount(provider=of, resource="VCPU", amount=vcpu),),
        project="shop",
        user="ann",
        type="INSTANCE",
        generation=generation,
    )


async def write(setup: PlacementSetup, *writes: Message) -> list[WriteVerdict]:
    answers = await setup.client.ask_all(writes)
    return [answer.verdict for answer in answers if isinstance(answer, WriteAnswered)]


@STAGES
async def test_a_tree_is_made_filled_held_reshaped_and_deleted(bus: str, books: str) -> None:
    async with placement_setup(bus, books) as setup:
        verdicts = await write(
            setup,
            CreateProvider(id=HOST, name="h1"),
            CreateProvider(id=NUMA, name="n1", parent=HOST),
            SetInventories(provider=HOST, generation=0, inventories=EIGHT),
            CreateTrait(name="CUSTOM_GOLD"),
            CreateTrait(name="CUSTOM_GOLD"),
            CreateClass(name="CUSTOM_IRON"),
        )
        assert [type(verdict) for verdict in verdicts] == [
            *[ProviderWritten] * 3,
            *(Done, AlreadyThere, Done),
        ]
        await write(
            setup,
            SetTraits(provider=HOST, generation=1, traits=("CUSTOM_GOLD",)),
            SetAggregates(provider=NUMA, generation=0, aggregates=()),
        )
        assert await write(setup, SetAllocations(consumers=(holding(1, 3), holding(2, 2)))) == [Done()]

        moved = Reshape(
            inventories=(
                ProviderInventories(provider=HOST, generation=3, inventories={}),
                ProviderInventories(provider=NUMA, generation=1, inventories=EIGHT),
            ),
            allocations=(holding(1, 3, NUMA, 1), holding(2, 2, NUMA, 1)),
        )
        assert await write(setup, moved) == [Done()]
        states = await setup.providers()
        assert states["n1"].inventories["VCPU"].used == 5
        assert (states["h1"].inventories, states["h1"].traits) == ({}, ("CUSTOM_GOLD",))

        assert await write(setup, DeleteProvider(id=HOST)) == [HasChildren(provider=HOST, child=NUMA)]
        assert (
            await write(setup, *[DeleteAllocations(consumer=who(number)) for number in (1, 2)])
            == [Done()] * 2
        )
        assert await write(setup, DeleteProvider(id=NUMA), DeleteProvider(id=HOST)) == [Done()] * 2
        assert await setup.providers() == {}


@pytest.mark.parametrize(("bus", "books"), [("memory", "memory"), ("unix", "sqlite")])
async def test_only_api_level_senders_write_to_the_books_directly(bus: str, books: str) -> None:
    """A message without a sender may come from a cell: it is refused, and not answered."""
    async with placement_setup(bus, books, user=user_of("placement")) as setup:
        await setup.client.publisher.send(CreateProvider(id=HOST, name="h1"))

        (letter,) = await dead_letters(setup.broker, 1)

        assert letter.reason.startswith("sent without a user_id")
        assert (await setup.store.snapshot_page(0, 100)).providers == ()


@STAGES
async def test_a_refused_write_without_a_reply_address_is_dead_lettered(bus: str, books: str) -> None:
    async with placement_setup(bus, books) as setup:
        await setup.client.publisher.send(DeleteProvider(id=HOST))

        (letter,) = await dead_letters(setup.broker, 1)

        assert f"unknown_provider: provider {HOST}" in letter.reason
