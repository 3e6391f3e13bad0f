"""What clerks write into placement's books by name, and how they come upon it: each errand a few questions and writes.

An errand is drawn as a deed and a lot. What it is about is chosen when it is done, by its lot, among what its clerk knows
then, which may be old by the time the write arrives: that is what generations are for.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import structs

from bus.message import ConsumerId, ProviderId
from bus.messages.administration import (
    ConsumerAllocations,
    ConsumerState,
    CreateProvider,
    DeleteAllocations,
    ProviderWritten,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetTraits,
    Write,
    WriteVerdict,
)
from bus.messages.placement import ReportedInventory, ResourceAmount
from tests.simulation.estate import GROUPS, OWN, POOL, SHARES, TENANTS, part_of
from tests.simulation.proposals import PROPOSALS, Known, naming, reshaped, some

# How often each is drawn.
EVERY_DEED = (
    *("plant",) * 3,
    *("move",) * 2,
    *("fell",) * 2,
    *("stock",) * 4,
    *("label",) * 3,
    *("group",) * 2,
    *("let",) * 6,
    "release",
    "share",
    *("reshape",) * 3,
    *("name",) * 2,
    "inquire",
)


class Hand(Protocol):
    """How a clerk reaches the books."""

    async def write(self, write: Write) -> WriteVerdict: ...

    async def providers(self) -> Known: ...

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None: ...

    async def holders_of(self, provider: ProviderId) -> Sequence[ConsumerState]: ...

    async def inquire(self) -> None:
        """Ask whatever else may be asked."""


class Clerk:
    """Knows what it was told last."""

    def __init__(self, hand: Hand, pause: Callable[[float], Awaitable[None]]) -> None:
        self._hand = hand
        self._pause = pause
        self._known: Known = {}
        self._tenants: dict[ConsumerId, ConsumerState | None] = {}

    async def do(self, deed: str, chance: random.Random) -> None:
        match deed:
            case "inquire":
                await self._hand.inquire()
            case "release":
                await self._hand.write(DeleteAllocations(consumer=chance.choice(TENANTS)))
            case "name":
                await self._hand.write(naming(chance))
            case "let":
                await self._let(chance)
            case "share":
                await self._share(chance)
            case "reshape":
                await self._write_together([await self._reshape(chance)], chance)
            case "reshape two":
                # At once, so that they come in one batch.
                reshapes = [await self._reshape(chance), await self._reshape(chance)]
                await self._write_together(reshapes, chance)
            case _:
                known = await self._look(chance)
                if write := PROPOSALS[deed](known, chance):
                    await self._pause(chance.choice((0.0, 0.0, 0.05, 0.5)))
                    await self._hand.write(write)

    async def _look(self, chance: random.Random) -> Known:
        """Or it believes that nothing has changed since."""
        if not self._known or chance.random() < 0.7:
            self._known = await self._hand.providers()
        return self._known

    async def _tenant(self, tenant: ConsumerId, chance: random.Random) -> ConsumerState | None:
        if tenant not in self._tenants or chance.random() < 0.8:
            self._tenants[tenant] = await self._hand.consumer(tenant)
        return self._tenants[tenant]

    async def _let(self, chance: random.Random) -> None:
        """What some of its tenants are to hold from now on: all of it, or nothing is changed."""
        known = await self._look(chance)
        stocks = [(state, resource) for state in known.values() for resource in state.inventories]
        # Hosts are many, and the clerks' own few.
        own = [stock for stock in stocks if stock[0].id in (*OWN, POOL)]
        wishes = []
        for tenant in chance.sample(TENANTS, chance.choice((1, 1, 2, 3))):
            state = await self._tenant(tenant, chance)
            among = own if chance.random() < 0.5 else stocks
            named = chance.sample(among, min(len(among), chance.choice((0, 1, 1, 2))))
            wishes.append(
                ConsumerAllocations(
                    consumer=tenant,
                    amounts=tuple(
                        ResourceAmount(provider=provider.id, resource=resource, amount=some(resource, chance))
                        for provider, resource in named
                    ),
                    project="estate",
                    user="clerk",
                    generation=state.generation if state else None,
                    type="TENANT",
                    judges_generation=chance.random() < 0.9,
                )
            )
        await self._pause(chance.choice((0.0, 0.0, 0.05, 0.5)))
        await self._hand.write(SetAllocations(consumers=tuple(wishes)))

    async def _share(self, chance: random.Random) -> None:
        """A pool of disks for who is in its group."""
        await self._hand.write(CreateProvider(id=POOL, name="pool"))
        disks = {"DISK_GB": ReportedInventory(total=chance.choice((50, 500)))}
        known = await self._look(chance)
        generation = known[POOL].generation if POOL in known else 0
        set_ = await self._hand.write(SetInventories(provider=POOL, generation=generation, inventories=disks))
        if isinstance(set_, ProviderWritten):
            generation = set_.generation
        await self._hand.write(SetTraits(provider=POOL, generation=generation, traits=(SHARES,)))
        await self._hand.write(SetAggregates(provider=POOL, generation=None, aggregates=GROUPS[:1]))

    async def _write_together(self, writes: Sequence[Write | None], chance: random.Random) -> None:
        await self._pause(chance.choice((0.0, 0.0, 0.05, 0.5)))
        await asyncio.gather(*[self._hand.write(write) for write in writes if write is not None])

    async def _reshape(self, chance: random.Random) -> Write | None:
        """One class of a provider goes to a child of it, or comes back, with all that is held of it."""
        known = await self._hand.providers()
        wholes = [state for state in known.values() if state.parent is None and state.id != POOL]
        if not wholes:
            return None
        whole = chance.choice(wholes)
        part_id = part_of(whole.name)
        if part_id not in known:
            await self._hand.write(CreateProvider(id=part_id, name=f"part of {whole.name}", parent=whole.id))
            known = await self._hand.providers()
        part = known.get(part_id)
        if part is None or whole.id not in known:
            return None
        whole = known[whole.id]
        resource = chance.choice(("VCPU", "MEMORY_MB"))
        source, target = (part, whole) if resource in part.inventories else (whole, part)
        if resource not in source.inventories:
            return None
        holders = list(await self._hand.holders_of(source.id))
        # Now and then it overlooks somebody, or knows somebody as of before.
        mistake = chance.choice(("", "", "overlooked", "outdated", "outdated, and kept")) if holders else ""
        match mistake:
            case "overlooked":
                del holders[0]
            case "outdated" | "outdated, and kept":
                holders[0] = structs.replace(holders[0], generation=holders[0].generation - 1)
        return reshaped(source, target, resource, holders, keeps=mistake == "outdated, and kept")
