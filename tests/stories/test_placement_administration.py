"""The books written and asked by name, over the bus: nothing of it needs HTTP."""

from uuid import UUID, uuid5

import pytest

from bus.message import ConsumerId, Message, ProviderId
from bus.messages.administration import (
    AlreadyThere,
    AskConsumer,
    AskHolders,
    AskNames,
    AskUsages,
    ConsumerAllocations,
    ConsumerFound,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteProvider,
    Done,
    HasChildren,
    HoldersFound,
    NamesFound,
    ProviderInventories,
    ProviderWritten,
    RenameClass,
    Reshape,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetTraits,
    TypeUsage,
    UsagesFound,
    WriteAnswered,
    WriteVerdict,
)
from bus.messages.placement import ReportedInventory, ResourceAmount
from bus.topology import user_of
from tests.contracts.stage import dead_letters
from tests.stories.test_placement_over_the_bus import NAMES, STAGES, Scene, scene

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


async def write(here: Scene, *writes: Message) -> list[WriteVerdict]:
    answers = await here.client.ask_all(writes)
    return [answer.verdict for answer in answers if isinstance(answer, WriteAnswered)]


@STAGES
async def test_a_tree_is_made_filled_held_reshaped_and_deleted(bus: str, books: str) -> None:
    async with scene(bus, books) as here:
        verdicts = await write(
            here,
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
            here,
            SetTraits(provider=HOST, generation=1, traits=("CUSTOM_GOLD",)),
            SetAggregates(provider=NUMA, generation=0, aggregates=()),
        )
        assert await write(here, SetAllocations(consumers=(holding(1, 3), holding(2, 2)))) == [Done()]

        moved = Reshape(
            inventories=(
                ProviderInventories(provider=HOST, generation=3, inventories={}),
                ProviderInventories(provider=NUMA, generation=1, inventories=EIGHT),
            ),
            allocations=(holding(1, 3, NUMA, 1), holding(2, 2, NUMA, 1)),
        )
        assert await write(here, moved) == [Done()]
        states = await here.providers()
        assert states["n1"].inventories["VCPU"].used == 5
        assert (states["h1"].inventories, states["h1"].traits) == ({}, ("CUSTOM_GOLD",))

        assert await write(here, DeleteProvider(id=HOST)) == [HasChildren(provider=HOST, child=NUMA)]
        assert (
            await write(here, *[DeleteAllocations(consumer=who(number)) for number in (1, 2)]) == [Done()] * 2
        )
        assert await write(here, DeleteProvider(id=NUMA), DeleteProvider(id=HOST)) == [Done()] * 2
        assert await here.providers() == {}


@STAGES
async def test_what_is_held_is_told_to_whoever_asks_page_by_page(bus: str, books: str) -> None:
    async with scene(bus, books) as here:
        await write(
            here,
            CreateProvider(id=HOST, name="h1"),
            SetInventories(provider=HOST, generation=None, inventories=EIGHT),
            *[CreateTrait(name=f"CUSTOM_{number}") for number in range(5)],
            SetAllocations(consumers=tuple(holding(number, 1) for number in range(1, 6))),
        )

        assert await here.client.ask(AskUsages(project="shop")) == UsagesFound(
            usages=(TypeUsage(type="INSTANCE", consumers=5, used={"VCPU": 5}),)
        )
        found = await here.client.ask(AskConsumer(consumer=who(1)))
        assert isinstance(found, ConsumerFound)
        assert found.consumer is not None
        assert found.consumer.held == holding(1, 1).amounts
        assert await here.client.ask(AskConsumer(consumer=who(9))) == ConsumerFound(consumer=None)
        assert await holders(here, 2) == await holders(here, 1000) == [who(number) for number in range(1, 6)]
        assert await names(here, 2) == [f"CUSTOM_{number}" for number in range(5)]


async def holders(here: Scene, limit: int) -> list[ConsumerId]:
    found: list[ConsumerId] = []
    page = HoldersFound(holders=())
    while not found or page.next is not None:
        answer = await here.client.ask(AskHolders(provider=HOST, after=page.next, limit=limit))
        assert isinstance(answer, HoldersFound)
        page = answer
        found += [holder.id for holder in page.holders]
    return found


async def names(here: Scene, limit: int) -> list[str]:
    found: list[str] = []
    page = NamesFound(names=())
    while not found or page.next:
        answer = await here.client.ask(AskNames(of="traits", after=page.next, limit=limit))
        assert isinstance(answer, NamesFound)
        page = answer
        found += page.names
    return found


@pytest.mark.parametrize(("bus", "books"), [("memory", "memory"), ("unix", "sqlite")])
async def test_only_who_stands_above_cells_writes_by_name(bus: str, books: str) -> None:
    """A sender who does not say who it is may be a cell: it is refused, and not answered."""
    async with scene(bus, books, user=user_of("placement")) as here:
        await here.client.publisher.send(CreateProvider(id=HOST, name="h1"))

        (letter,) = await dead_letters(here.broker, 1)

        assert letter.reason.startswith("sent without a user_id")
        assert (await here.store.snapshot_page(0, 100)).providers == ()


@STAGES
async def test_a_write_that_is_refused_while_nobody_waits_is_buried(bus: str, books: str) -> None:
    async with scene(bus, books) as here:
        await here.client.publisher.send(DeleteProvider(id=HOST))

        (letter,) = await dead_letters(here.broker, 1)

        assert f"unknown_provider: provider {HOST}" in letter.reason


@STAGES
async def test_a_class_that_cannot_take_a_name_since_another_has_it_is_buried_too(
    bus: str, books: str
) -> None:
    async with scene(bus, books) as here:
        await write(here, CreateClass(name="CUSTOM_A"), CreateClass(name="CUSTOM_B"))
        await here.client.publisher.send(RenameClass(name="CUSTOM_A", to="CUSTOM_B"))

        (letter,) = await dead_letters(here.broker, 1)

        assert "already_there: name CUSTOM_B" in letter.reason
