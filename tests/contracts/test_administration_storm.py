"""Everything at once: claims and releases over the bus, and all administrators' writes, at a few providers from several
clients. At the end the audit finds nothing, and no write was refused for a transient reason.
"""

import asyncio
import random
from collections import Counter

from bus.messages.books import (
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteProvider,
    DeleteTrait,
    ProviderInventories,
    Reshape,
    SetAggregates,
    SetInventories,
    SetTraits,
    UpdateProvider,
    Write,
)
from engine.inventories import ProviderId
from tests.contracts.admin_client import AdminClient, allocations, holding
from tests.contracts.placement_orders import (
    CELL,
    a_claim,
    a_release,
    a_share,
    aggregate,
    amounts,
    consumer,
    inventories,
    provider,
)

TREES, DESKS, LIVES, DEEDS = 3, 3, 24, 8


class Somebody:
    """A client that does random operations, one after another."""

    def __init__(self, admin: AdminClient, number: int) -> None:
        self._clerk = admin
        self._chance = random.Random(number)
        self._me = consumer(f"c{number}")
        self._number = number

    async def live(self) -> list[str]:
        deeds = [
            *[self._hold] * 3,
            *[self._claim] * 2,
            *(
                self._let_go,
                self._release,
                self._move,
                self._stock,
                self._mark,
                self._come_and_go,
                self._reshape,
            ),
        ]
        return [type(await self._chance.choice(deeds)()).__name__ for _ in range(DEEDS)]

    def _some(self) -> ProviderId:
        return provider(f"{self._chance.choice('hn')}{self._chance.randrange(TREES)}")

    def _root(self) -> ProviderId:
        return provider(f"h{self._chance.randrange(TREES)}")

    async def _write(self, write: Write) -> object:
        return await self._clerk.write(write)

    async def _hold(self) -> object:
        taken = [
            amount for _ in range(2) for amount in amounts(self._some(), VCPU=self._chance.randint(1, 3))
        ]
        return await self._write(allocations(holding(self._me, *taken, judges_generation=False)))

    async def _let_go(self) -> object:
        return await self._write(DeleteAllocations(consumer=self._me))

    async def _claim(self) -> object:
        host = self._root()
        asked = a_share(host, amounts(host, VCPU=self._chance.randint(1, 3)), {})
        return await self._clerk.ask_one(a_claim(asked, self._me, self._chance.randint(1, 4)))

    async def _release(self) -> object:
        return await self._clerk.ask_one(a_release(self._me, self._chance.randint(1, 4)))

    async def _move(self) -> object:
        number = self._chance.randrange(TREES)
        parent = self._chance.choice([None, self._root()])
        return await self._write(UpdateProvider(id=provider(f"n{number}"), name=f"n{number}", parent=parent))

    async def _stock(self) -> object:
        wanted = inventories(VCPU=self._chance.choice([4, 12, 12]))
        return await self._write(SetInventories(provider=self._some(), generation=None, inventories=wanted))

    async def _mark(self) -> object:
        name = "CUSTOM_GOLD"
        writes: list[Write] = [
            CreateTrait(name=name),
            DeleteTrait(name=name),
            SetTraits(provider=self._some(), generation=None, traits=(name,)),
            SetTraits(provider=self._some(), generation=None, traits=()),
            SetAggregates(provider=self._some(), generation=None, aggregates=(aggregate("rack"),)),
        ]
        return await self._write(self._chance.choice(writes))

    async def _come_and_go(self) -> object:
        one = provider("coming and going")
        made = await self._write(CreateProvider(id=one, name="coming and going", parent=self._some()))
        await self._write(DeleteProvider(id=one))
        return made

    async def _reshape(self) -> object:
        which = self._some()
        generation = (await self._clerk.providers())[which].generation
        moved = ProviderInventories(provider=which, generation=generation, inventories=inventories(VCPU=12))
        wish = holding(self._me, *amounts(which, VCPU=1), judges_generation=False)
        return await self._write(Reshape(inventories=(moved,), allocations=(wish,)))


async def test_whatever_all_of_them_do_at_once_the_books_are_right(admin: AdminClient) -> None:
    for number in range(TREES):
        await admin.add_provider(f"h{number}", cell=CELL, VCPU=12)
        await admin.add_provider(f"n{number}", provider(f"h{number}"), VCPU=12)
    desks = [admin, *[AdminClient(admin.store) for _ in range(DESKS - 1)]]
    lives = [Somebody(desks[number % DESKS], number) for number in range(LIVES)]

    met = Counter(
        verdict for told in await asyncio.gather(*[one.live() for one in lives]) for verdict in told
    )

    assert set(met) >= {"Done", "ProviderWritten", "DoesNotFit", "Claimed", "Released", "UnknownConsumer"}
    assert await admin.store.audit() == ()
    held: Counter[ProviderId] = Counter()
    for number in range(LIVES):
        found = await admin.store.consumer(consumer(f"c{number}"))
        for amount in found.held if found else ():
            held[amount.provider] += amount.amount
    states = await admin.providers()
    assert {which: state.inventories["VCPU"].used for which, state in states.items()} == {
        which: held[which] for which in states
    }
    for which, state in states.items():
        assert state.inventories["VCPU"].used <= 12, which
        assert state.root == (which if state.parent is None else states[state.parent].root)
