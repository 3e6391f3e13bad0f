"""The administrators' operations on placement: each is a few reads and writes.

The plan names an action and a seed for each operation. The administrator chooses the details when the operation begins,
by that seed, among the rows it knows. These rows may be outdated when the write arrives: the generations guard against
that.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import structs

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
from engine.inventories import ConsumerId, ProviderId, ReportedInventory, ResourceAmount
from tests.simulation.admin_writes import DRAWN_WRITES, Known, reshaped, some_amount, write_name
from tests.simulation.fixtures import AGGREGATES, CONSUMERS, OWN_PROVIDERS, POOL, SHARES, child_of

# Repeated entries set how often each action is drawn.
EVERY_ACTION = (
    *("create provider",) * 3,
    *("move provider",) * 2,
    *("delete provider",) * 2,
    *("set inventory",) * 4,
    *("set traits",) * 3,
    *("set aggregates",) * 2,
    *("set allocations",) * 6,
    "delete allocations",
    "share",
    *("reshape",) * 3,
    *("write name",) * 2,
    "query",
)


class BooksApi(Protocol):
    """How an administrator reaches placement: over the bus, or as an HTTP server does."""

    async def write(self, write: Write) -> WriteVerdict: ...

    async def providers(self) -> Known: ...

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None: ...

    async def holders_of(self, provider: ProviderId) -> Sequence[ConsumerState]: ...

    async def query(self) -> None:
        """Ask placement the questions that no other method here asks: usages, names, candidates."""


class Admin:
    """One administrator. It remembers the last answers it got, and sometimes acts on them without asking again."""

    def __init__(self, api: BooksApi, pause: Callable[[float], Awaitable[None]]) -> None:
        self._api = api
        self._pause = pause
        self._known: Known = {}
        self._consumers: dict[ConsumerId, ConsumerState | None] = {}

    async def do(self, action: str, chance: random.Random) -> None:
        match action:
            case "query":
                await self._api.query()
            case "delete allocations":
                await self._api.write(DeleteAllocations(consumer=chance.choice(CONSUMERS)))
            case "write name":
                await self._api.write(write_name(chance))
            case "set allocations":
                await self._set_allocations(chance)
            case "share":
                await self._share(chance)
            case "reshape":
                await self._write_together([await self._reshape(chance)], chance)
            case "reshape two":
                # Sent at the same time, so that both arrive in one batch.
                reshapes = [await self._reshape(chance), await self._reshape(chance)]
                await self._write_together(reshapes, chance)
            case _:
                known = await self._look(chance)
                if write := DRAWN_WRITES[action](known, chance):
                    await self._pause(chance.choice((0.0, 0.0, 0.05, 0.5)))
                    await self._api.write(write)

    async def _look(self, chance: random.Random) -> Known:
        """The providers, asked anew in most cases; otherwise the last answer, which may be outdated."""
        if not self._known or chance.random() < 0.7:
            self._known = await self._api.providers()
        return self._known

    async def _look_up(self, consumer: ConsumerId, chance: random.Random) -> ConsumerState | None:
        if consumer not in self._consumers or chance.random() < 0.8:
            self._consumers[consumer] = await self._api.consumer(consumer)
        return self._consumers[consumer]

    async def _set_allocations(self, chance: random.Random) -> None:
        """Set everything that a few consumers hold, in one write: either all of it is applied, or nothing."""
        known = await self._look(chance)
        stocks = [(state, resource) for state in known.values() for resource in state.inventories]
        # There are many hosts and few providers of the administrators' own: half of the draws choose among the own
        # ones.
        own = [stock for stock in stocks if stock[0].id in (*OWN_PROVIDERS, POOL)]
        allocations = []
        for consumer in chance.sample(CONSUMERS, chance.choice((1, 1, 2, 3))):
            state = await self._look_up(consumer, chance)
            among = own if chance.random() < 0.5 else stocks
            named = chance.sample(among, min(len(among), chance.choice((0, 1, 1, 2))))
            allocations.append(
                ConsumerAllocations(
                    consumer=consumer,
                    amounts=tuple(
                        ResourceAmount(
                            provider=provider.id, resource=resource, amount=some_amount(resource, chance)
                        )
                        for provider, resource in named
                    ),
                    project="admins",
                    user="admin",
                    generation=state.generation if state else None,
                    type="ADMIN",
                    judges_generation=chance.random() < 0.9,
                )
            )
        await self._pause(chance.choice((0.0, 0.0, 0.05, 0.5)))
        await self._api.write(SetAllocations(consumers=tuple(allocations)))

    async def _share(self, chance: random.Random) -> None:
        """Create a pool of disks that is shared with the members of its aggregate."""
        await self._api.write(CreateProvider(id=POOL, name="pool"))
        disks = {"DISK_GB": ReportedInventory(total=chance.choice((50, 500)))}
        known = await self._look(chance)
        generation = known[POOL].generation if POOL in known else 0
        set_ = await self._api.write(SetInventories(provider=POOL, generation=generation, inventories=disks))
        if isinstance(set_, ProviderWritten):
            generation = set_.generation
        await self._api.write(SetTraits(provider=POOL, generation=generation, traits=(SHARES,)))
        await self._api.write(SetAggregates(provider=POOL, generation=None, aggregates=AGGREGATES[:1]))

    async def _write_together(self, writes: Sequence[Write | None], chance: random.Random) -> None:
        await self._pause(chance.choice((0.0, 0.0, 0.05, 0.5)))
        await asyncio.gather(*[self._api.write(write) for write in writes if write is not None])

    async def _reshape(self, chance: random.Random) -> Write | None:
        """Move one resource class between a provider and its child, in either direction, with all allocations of it."""
        known = await self._api.providers()
        parents = [state for state in known.values() if state.parent is None and state.id != POOL]
        if not parents:
            return None
        parent = chance.choice(parents)
        child_id = child_of(parent.name)
        if child_id not in known:
            await self._api.write(
                CreateProvider(id=child_id, name=f"child of {parent.name}", parent=parent.id)
            )
            known = await self._api.providers()
        child = known.get(child_id)
        if child is None or parent.id not in known:
            return None
        parent = known[parent.id]
        resource = chance.choice(("VCPU", "MEMORY_MB"))
        source, target = (child, parent) if resource in child.inventories else (parent, child)
        if resource not in source.inventories:
            return None
        holders = list(await self._api.holders_of(source.id))
        # Sometimes the administrator makes a mistake: it omits one holder, or names an outdated generation.
        mistake = chance.choice(("", "", "omitted", "outdated", "outdated, and kept")) if holders else ""
        match mistake:
            case "omitted":
                del holders[0]
            case "outdated" | "outdated, and kept":
                holders[0] = structs.replace(holders[0], generation=holders[0].generation - 1)
        return reshaped(source, target, resource, holders, keeps=mistake == "outdated, and kept")
