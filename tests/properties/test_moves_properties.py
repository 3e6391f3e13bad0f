"""Any move, whatever happens beside it: each amount is held once, the way back is always granted, and one share is left."""

import asyncio
from collections import Counter
from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct

from engine.inventories import (
    ConsumerId,
    InventoryState,
    ProviderId,
    ReportedInventory,
    ResourceAmount,
    ServerGroup,
    Share,
    capacity_of,
)
from engine.refusals import Claimed, Released
from tests.contracts.placement_orders import (
    CLEANUP,
    GROUP,
    HOST,
    MIGRATION,
    OTHER_HOST,
    WEB,
    a_claim,
    a_provider,
    a_release,
    a_report,
    a_share,
    a_swap,
    amounts,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.properties.bounds import BOUNDED
from tests.properties.oracle import Amounts, added, minus, summed
from tests.stores_in_memory import MemoryPlacementStore

POOL = provider("pool")
NAMES = {HOST: "host-1", OTHER_HOST: "host-2", POOL: "pool"}
CLASSES = ("VCPU", "DISK_GB")
AMPLE = {resource: ReportedInventory(total=100) for resource in CLASSES}


class Step(Struct, frozen=True):
    """Something beside the move: an inventory changes, or another consumer claims as much as this of a provider."""

    provider: ProviderId
    resource: str
    inventory: ReportedInventory | None = None
    claimed: int = 0


class Story(Struct, frozen=True):
    source: Share
    destination: Share
    before: list[Step]
    during: list[Step]
    end: str
    group: ServerGroup | None


def shares(host: ProviderId, shapes: Mapping[ProviderId, int] = {}) -> st.SearchStrategy[Share]:
    amount = st.integers(0, 4)

    def share(vcpu: int, disk: int, of_pool: int, more: int) -> Share:
        asked = (*amounts(host, VCPU=vcpu + 1, DISK_GB=disk), *amounts(POOL, VCPU=more, DISK_GB=of_pool))
        return a_share(host, tuple(each for each in asked if each.amount), dict(shapes), instances_max=2)

    return st.builds(share, amount, amount, amount, amount)


inventories = st.builds(
    ReportedInventory,
    total=st.integers(1, 12),
    reserved=st.just(0),
    min_unit=st.sampled_from((1, 1, 3)),
    max_unit=st.sampled_from((100, 100, 1)),
    step_size=st.sampled_from((1, 1, 2)),
    allocation_ratio=st.sampled_from((1.0, 1.0, 0.5)),
)
steps = st.lists(
    st.builds(
        Step,
        provider=st.sampled_from(list(NAMES)),
        resource=st.sampled_from(CLASSES),
        inventory=st.none() | inventories,
        claimed=st.integers(1, 100),
    ),
    max_size=4,
)
stories = st.builds(
    Story,
    # Its trees as they were at the claim.
    source=shares(HOST, {HOST: 1, POOL: 1}),
    destination=st.one_of(shares(HOST), shares(OTHER_HOST)),
    before=steps,
    during=steps,
    end=st.sampled_from(("confirmed", "reverted", "reverted from a silent host", "deleted")),
    group=st.sampled_from((None, GROUP)),
)


def test_each_amount_is_held_once_until_one_share_is_left() -> None:
    met: Counter[str] = Counter()

    @BOUNDED
    @given(stories)
    def search(story: Story) -> None:
        met[asyncio.run(_play(story))] += 1

    search()
    assert min(met[end] for end in ("confirmed", "reverted", "reverted from a silent host", "deleted")) > 5
    assert met["refused"] >= 5


async def _play(story: Story) -> str:
    world = World()
    await world.begin()
    assert await world.client.ask_one(a_claim(story.source, group=story.group)) == Claimed()
    for number, step in enumerate(story.before):
        await world.take(step, number)
    source, destination = summed(story.source), summed(story.destination)

    forth = a_swap(story.destination, migration=MIGRATION, group=story.group)
    if await world.client.ask_one(forth) != Claimed():
        held = await world.held()
        assert (held[WEB], MIGRATION in held) == (source, False)
        return "refused"
    for number, step in enumerate(story.during, len(story.before)):
        await world.hold_both(source, destination)
        await world.take(step, number, group=story.group)
    await world.hold_both(source, destination)
    await world.end(story)
    return story.end


class World:
    """Two hosts and a pool with room for all, and a consumer that moves."""

    def __init__(self) -> None:
        self.client = StoreClient(MemoryPlacementStore())
        self.shelves = {which: dict(AMPLE) for which in NAMES}

    async def begin(self) -> None:
        for which in NAMES:
            await self._report(which)

    async def _report(self, which: ProviderId) -> None:
        await self.client.report(a_report(a_provider(NAMES[which], holds=self.shelves[which]), root=which))

    async def take(self, step: Step, number: int, group: ServerGroup | None = None) -> None:
        if step.inventory is not None:
            self.shelves[step.provider][step.resource] = step.inventory
            await self._report(step.provider)
            return
        # It takes what is free, as far as it wants so much, and a place in the group if that is free.
        host = HOST if step.provider == POOL else step.provider
        which = ConsumerId(provider(f"neighbour {number}"))
        before = await self.used()
        free = capacity_of(self._inventory(step)) - before[step.provider, step.resource]
        much = amounts(step.provider, **{step.resource: max(1, min(step.claimed, free))})
        asked = much if step.provider == host else (*amounts(host, VCPU=1), *much)
        verdict = await self.client.ask_one(a_claim(a_share(host, asked, shapes={}), which, group=group))
        if group is not None and host == HOST:
            assert verdict != Claimed(), "the place to which the instance may come back is kept"
        await self._assert_nothing_beyond_capacity(before)

    def _inventory(self, step: Step) -> InventoryState:
        offered = self.shelves[step.provider][step.resource]
        return InventoryState(
            total=offered.total, reserved=offered.reserved, allocation_ratio=offered.allocation_ratio
        )

    async def _assert_nothing_beyond_capacity(self, before: Amounts) -> None:
        for which, state in (await self.client.providers()).items():
            for resource, inventory in state.inventories.items():
                assert inventory.used <= max(capacity_of(inventory), before[which, resource])

    async def hold_both(self, source: Amounts, destination: Amounts) -> None:
        held = await self.held()
        assert held[WEB] == destination
        assert held.get(MIGRATION, {}) == minus(source, destination)
        assert CLEANUP not in held

    async def end(self, story: Story) -> None:
        source, destination = summed(story.source), summed(story.destination)
        before = await self.used()
        match story.end:
            case "confirmed":
                await self.client.ask(a_release(MIGRATION))
                left = {WEB: destination}
            case "deleted":
                await self.client.ask(a_release(MIGRATION), a_release(WEB, 2))
                left = {}
            case silent_or_not:
                is_silent = silent_or_not != "reverted"
                back = a_swap(
                    story.source,
                    held=2,
                    attempt=3,
                    returns=MIGRATION,
                    cleanup=CLEANUP if is_silent else None,
                    group=story.group,
                )
                assert await self.client.ask_one(back) == Claimed()
                cleaned = minus(destination, source) if is_silent else {}
                left = {WEB: source, CLEANUP: cleaned} if cleaned else {WEB: source}
        held = await self.held()
        assert {who: of_one for who, of_one in held.items() if who in (WEB, MIGRATION, CLEANUP)} == left
        assert not minus(await self.used(), before), "nobody's end takes more"
        released = await self.client.ask_one(a_release(MIGRATION))
        assert released in (Released(freed=False), Released(freed=True))
        assert await self.client.store.audit() == ()

    async def used(self) -> Amounts:
        return {
            (which, resource): inventory.used
            for which, state in (await self.client.providers()).items()
            for resource, inventory in state.inventories.items()
        }

    async def held(self) -> dict[ConsumerId, Amounts]:
        """By consumer; the usage of every provider is their sum."""
        who = [WEB, MIGRATION, CLEANUP, *[ConsumerId(provider(f"neighbour {number}")) for number in range(8)]]
        ledger = await self.client.ledger(*[a_release(each) for each in who])
        held = {each: _amounts(ledger.held[each.int]) for each in who if each.int in ledger.held}
        total: Amounts = {}
        for of_one in held.values():
            total = added(total, of_one)
        assert {key: used for key, used in (await self.used()).items() if used} == total
        return held


def _amounts(held: tuple[ResourceAmount, ...]) -> Amounts:
    return {(each.provider, each.resource): each.amount for each in held}
