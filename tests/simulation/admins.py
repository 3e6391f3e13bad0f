"""Administrators that write to placement directly: what they do, what they write about, and how each write is drawn."""

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol, TypeVar

from msgspec import UNSET, structs

from bus.broker import Broker
from bus.message import Message
from bus.messages.books import (
    AskCandidates,
    AskConsumer,
    AskHolders,
    AskNames,
    AskUsages,
    CandidatesFound,
    ConsumerAllocations,
    ConsumerFound,
    ConsumerState,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteClass,
    DeleteProvider,
    DeleteTrait,
    DropInventory,
    HoldersFound,
    NamesFound,
    ProviderInventories,
    ProviderWritten,
    PutInventory,
    RenameClass,
    RequestGroup,
    Reshape,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetTraits,
    UpdateProvider,
    UsagesFound,
    Write,
    WriteAnswered,
    WriteVerdict,
)
from bus.messages.placement import AskSnapshot, SnapshotPage
from bus.workers.connections import Station
from engine.inventories import (
    ConsumerId,
    InventoryState,
    ProviderId,
    ProviderState,
    ReportedInventory,
    ResourceAmount,
)
from kit.errors import Failure, Transient
from placement_worker.admin_writes import WriteBatcher
from placement_worker.store_sql import PlacementStore
from placement_worker.view import ProviderReplica, ProviderView
from placement_worker.wiring import STANDARD
from tests.simulation.faulty_database import FaultyDatabase
from tests.simulation.findings import Findings
from tests.simulation.loop import until_s
from tests.simulation.plan import (
    AGGREGATES,
    CLASS,
    CONSUMERS,
    GOLD,
    OWN_PROVIDERS,
    POOL,
    PROVIDER_NAMES,
    RATIOS,
    RENAMED_CLASS,
    SHARES,
    TRAITS,
    AdminOp,
    Plan,
    child_of,
)
from tests.simulation.process import SimProcess
from tests.simulation.stored_books import InspectableStore
from tests.simulation.view_oracle import caught_up_replica, compare_candidates
from tests.simulation.workers import BUS

Known = Mapping[ProviderId, ProviderState]


def reshaped(
    source: ProviderState,
    target: ProviderState,
    resource: str,
    holders: Sequence[ConsumerState],
    *,
    keeps: bool,
) -> Reshape:
    """Move a resource class with all its allocations to `target`. With `keeps`, the source keeps its inventory as well."""
    left = {name: _reported(stock) for name, stock in source.inventories.items() if keeps or name != resource}
    grown = {name: _reported(stock) for name, stock in target.inventories.items()}
    return Reshape(
        inventories=(
            ProviderInventories(provider=source.id, generation=source.generation, inventories=left),
            ProviderInventories(
                provider=target.id,
                generation=target.generation,
                inventories={resource: _reported(source.inventories[resource]), **grown},
            ),
        ),
        allocations=tuple(
            ConsumerAllocations(
                consumer=each.id,
                amounts=tuple(_moved(amount, source.id, target.id, resource) for amount in each.held),
                project=each.project,
                user=each.user,
                generation=each.generation,
            )
            for each in holders
            if any(amount.provider == source.id and amount.resource == resource for amount in each.held)
        ),
    )


def _moved(amount: ResourceAmount, source: ProviderId, target: ProviderId, resource: str) -> ResourceAmount:
    if (amount.provider, amount.resource) != (source, resource):
        return amount
    return structs.replace(amount, provider=target)


def _reported(stock: InventoryState) -> ReportedInventory:
    return ReportedInventory(
        total=stock.total,
        reserved=stock.reserved,
        min_unit=stock.min_unit,
        max_unit=stock.max_unit,
        step_size=stock.step_size,
        allocation_ratio=stock.allocation_ratio,
    )


def some_amount(resource: str, chance: random.Random) -> int:
    return chance.choice((1, 1, 2, 4)) * (256 if resource == "MEMORY_MB" else 1)


def write_name(chance: random.Random) -> Write:
    label = chance.choice(TRAITS)
    return chance.choice(
        (
            CreateTrait(name=label),
            CreateTrait(name=label),
            DeleteTrait(name=label),
            CreateClass(name=CLASS),
            RenameClass(name=CLASS, to=RENAMED_CLASS),
            DeleteClass(name=RENAMED_CLASS),
        )
    )


def _create_provider(known: Known, chance: random.Random) -> Write:
    missing = [n for n, own in enumerate(OWN_PROVIDERS) if own not in known]
    n = chance.choice(missing if missing and chance.random() < 0.9 else range(len(OWN_PROVIDERS)))
    name = PROVIDER_NAMES[n] if chance.random() < 0.9 else chance.choice(PROVIDER_NAMES)
    parent = chance.choice((None, None, *[own for own in OWN_PROVIDERS if own in known], *list(known)[:1]))
    return CreateProvider(id=OWN_PROVIDERS[n], name=name, parent=parent)


def _move_provider(known: Known, chance: random.Random) -> Write | None:
    own = _own(known)
    if not own:
        return None
    moved = chance.choice(own)
    places = (None, UNSET, *[each.id for each in own], *list(known)[:1])
    return UpdateProvider(
        id=moved.id,
        name=moved.name if chance.random() < 0.8 else chance.choice(PROVIDER_NAMES),
        parent=chance.choice(places),
        reparents=chance.random() < 0.9,
    )


def _delete_provider(known: Known, chance: random.Random) -> Write | None:
    own = _own(known)
    in_use = [each for each in own if any(stock.used for stock in each.inventories.values())]
    among = in_use if in_use and chance.random() < 0.5 else own
    return DeleteProvider(id=chance.choice(among).id) if among else None


def _set_inventory(known: Known, chance: random.Random) -> Write | None:
    own = _own(known)
    if not own:
        return None
    state = chance.choice(own)
    provider, generation = state.id, _generation(state, chance)
    resource = chance.choice((*state.inventories, "VCPU", "MEMORY_MB", CLASS))
    stock = _stock(256 if resource == "MEMORY_MB" else 1, chance)
    match chance.choice(("all", "all", "one", "new", "none")):
        case "one":
            return PutInventory(provider=provider, generation=generation, resource=resource, inventory=stock)
        case "new":
            return PutInventory(
                provider=provider, generation=generation, resource=resource, inventory=stock, is_new=True
            )
        case "none":
            return DropInventory(provider=provider, resource=resource)
        case _:
            stocks = {"VCPU": ReportedInventory(total=8), resource: stock}
            return SetInventories(provider=provider, generation=generation, inventories=stocks)


def _stock(unit: int, chance: random.Random) -> ReportedInventory:
    """An inventory; about half of them have a reserve, bounds and a ratio."""
    total = chance.choice((4, 16))
    reserved, step = chance.choice((0, 0, 1, 2)), chance.choice((1, 1, 2))
    return ReportedInventory(
        total=total * unit,
        reserved=reserved * unit,
        min_unit=chance.choice((1, 1, 2)) * unit,
        max_unit=chance.choice((2, 4, total)) * unit,
        step_size=step * unit,
        allocation_ratio=chance.choice(RATIOS),
    )


def _set_traits(known: Known, chance: random.Random) -> Write | None:
    if not known:
        return None
    state = chance.choice(list(known.values()))
    changed = {chance.choice((*TRAITS, *TRAITS, GOLD))}
    kept = set(state.traits)
    traits = kept - changed if kept & changed else kept | changed
    return SetTraits(provider=state.id, generation=_generation(state, chance), traits=tuple(sorted(traits)))


def _set_aggregates(known: Known, chance: random.Random) -> Write | None:
    if not known:
        return None
    state = chance.choice(list(known.values()))
    groups = tuple(chance.sample(AGGREGATES, chance.choice((0, 1, 1, 2))))
    return SetAggregates(
        provider=state.id,
        generation=_generation(state, chance),
        aggregates=groups,
        moves_generation=chance.random() < 0.8,
    )


def _own(known: Known) -> list[ProviderState]:
    return [known[own] for own in OWN_PROVIDERS if own in known]


def _generation(state: ProviderState, chance: random.Random) -> int | None:
    return chance.choice((state.generation,) * 8 + (None, max(0, state.generation - 1)))


DRAWN_WRITES: dict[str, Callable[[Known, random.Random], Write | None]] = {
    "create provider": _create_provider,
    "move provider": _move_provider,
    "delete provider": _delete_provider,
    "set inventory": _set_inventory,
    "set traits": _set_traits,
    "set aggregates": _set_aggregates,
}


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


A = TypeVar("A", bound=Message)
T = TypeVar("T")
PAGE = 20


class Admins:
    def __init__(self, plan: Plan, findings: Findings, books: InspectableStore) -> None:
        self._plan = plan
        self._findings = findings
        self._books = books
        # The view of the HTTP server's latest incarnation; compared with the books at the end.
        self.view: ProviderView | None = None

    async def run(self, process: SimProcess, broker: Broker) -> None:
        if process.name.startswith("http"):
            await self._serve(process)
            return
        station = Station(
            broker, process.name, settings=BUS, asks=True, clock=process.clock, chance=process.chance
        )
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(station.run())
            tasks.create_task(self._work(process, BusApi(station)))

    async def _serve(self, process: SimProcess) -> None:
        store = PlacementStore(FaultyDatabase(self._books.tables, process))
        view = self.view = ProviderView(store, PAGE)
        batcher = WriteBatcher(store, STANDARD, process.clock)
        await self._work(process, HttpServerApi(batcher, view, store, self._books, self._findings))

    async def _work(self, process: SimProcess, api: BooksApi) -> None:
        """Start all operations of this administrator. A restarted process starts only those that are still due."""
        admin = Admin(api, asyncio.sleep)
        now_s = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as tasks:
            for op in self._plan.admin_ops:
                if op.admin == process.name and op.at_s >= now_s:
                    tasks.create_task(self._do(admin, op))

    async def _do(self, admin: Admin, op: AdminOp) -> None:
        await until_s(op.at_s)
        self._findings.log(op.admin, "begins: {}", op.action)
        await admin.do(op.action, random.Random(op.seed))


class BusApi:
    """Reaches placement over the bus. It asks again until it is answered, so placement may see the same write several
    times.
    """

    def __init__(self, station: Station) -> None:
        self._station = station

    async def write(self, write: Write) -> WriteVerdict:
        return (await self._ask(write, WriteAnswered)).verdict

    async def providers(self) -> Mapping[ProviderId, ProviderState]:
        known: dict[ProviderId, ProviderState] = {}
        after: int | None = 0
        while after is not None:
            page = await self._ask(AskSnapshot(after=after, limit=PAGE), SnapshotPage)
            known |= {state.id: state for state in page.providers}
            after = page.next
        return known

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        return (await self._ask(AskConsumer(consumer=consumer), ConsumerFound)).consumer

    async def holders_of(self, provider: ProviderId) -> Sequence[ConsumerState]:
        holders: list[ConsumerState] = []
        after: ConsumerId | None = None
        while True:
            page = await self._ask(AskHolders(provider=provider, after=after, limit=PAGE), HoldersFound)
            holders += page.holders
            after = page.next
            if after is None:
                return holders

    async def query(self) -> None:
        await self._ask(AskUsages(project="admins"), UsagesFound)
        await self._ask(AskNames(of="traits", limit=1), NamesFound)
        cpus = RequestGroup(resources={"VCPU": 1}, member_of=(AGGREGATES,))
        await self._ask(AskCandidates(groups=(cpus,)), CandidatesFound)

    async def _ask(self, question: Message, kind: type[A]) -> A:
        while True:
            try:
                answer = await self._station.ask(question)
            except Failure:
                await asyncio.sleep(1)
                continue
            assert isinstance(answer, kind), f"{question!r} was answered by {answer!r}"
            return answer


class HttpServerApi:
    """Works as an HTTP server does: writes go to the write batcher, reads to the view, reads of consumers to the
    database.
    """

    def __init__(
        self,
        batcher: WriteBatcher,
        view: ProviderView,
        store: PlacementStore,
        books: InspectableStore,
        findings: Findings,
    ) -> None:
        self._batcher = batcher
        self._view = view
        self._store = store
        self._books = books
        self._findings = findings

    async def write(self, write: Write) -> WriteVerdict:
        return await _until_available(lambda: self._batcher.ask(write))

    async def providers(self) -> Mapping[ProviderId, ProviderState]:
        replica = await self._caught_up()
        return {state.id: state for state in replica}

    async def consumer(self, consumer: ConsumerId) -> ConsumerState | None:
        return await _until_available(lambda: self._store.consumer(consumer))

    async def holders_of(self, provider: ProviderId) -> Sequence[ConsumerState]:
        return await _until_available(lambda: self._store.holders_of(provider, None, 1_000))

    async def query(self) -> None:
        """Compare the candidates found in the view with those found in the books."""
        compare_candidates(await self._caught_up(), self._books, self._findings)

    async def _caught_up(self) -> ProviderReplica:
        return await _until_available(lambda: caught_up_replica(self._view, self._books, self._findings))


async def _until_available(request: Callable[[], Awaitable[T]]) -> T:
    """Repeat the request while the service is unavailable, as an HTTP client does."""
    while True:
        try:
            return await request()
        except Transient:
            await asyncio.sleep(0.5)
