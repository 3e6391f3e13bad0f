"""Keeps the picture up to date with a placement over HTTP, which has no feed of changes.

One request lists all providers with their generations, which move with each write, except those that only free something. A provider
whose generation is the one that our own claims explain is not read: its use is what it was, and our claims. All others are read again:
their allocations each time; their inventories, traits and aggregates now and then, and before a request is refused.

What was freed is found now and then, and before a request is refused: the summaries of allocation candidates have the use of all
providers of trees that have room, by one request for each class by which trees give room: processors first, and any other class for the
trees that have none left. A tree without room stays as it is known.
"""

import asyncio
import itertools
import logging
import random
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial

from msgspec import Struct, structs

from bus.message import Message
from bus.messages.placement import NO_OWNER, ClaimAnswered, ClaimResources, ReleaseClaim, SwapClaim
from engine.inventories import (
    ConsumerId,
    GroupMember,
    Holder,
    InventoryState,
    ProviderId,
    ProviderState,
    ResourceAmount,
    Share,
)
from engine.picture.picture import Picture
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    ClaimVerdict,
    DoesNotFit,
    Released,
    ShapeMoved,
    Shortfall,
    Superseded,
)
from kit.errors import Transient
from kit.parts import PartGroup, Periodic, SharedRuns
from nova_bridge.placement_api import (
    READS_AT_ONCE,
    Amounts,
    Conflict,
    Held,
    HoldingsToWrite,
    ListedProvider,
    PlacementApi,
    ProviderContents,
    ProviderUse,
    all_of,
)

log = logging.getLogger(__name__)

# How often placement is asked which providers have changed: it is asked anyway after a conflict, and before a request is refused.
LOOK_S = 5.0
# Inventories, traits and aggregates that others have changed are read again so often: four requests a provider.
VERIFY_S = 60.0


class _Known(Struct):
    """A provider as it was read. `own` are our own writes to it since then."""

    internal: int
    listed: ListedProvider
    contents: ProviderContents
    use: ProviderUse
    # The generation at which the contents were read.
    contents_at: int
    # Another one after each change but of its use. By it the picture tells the two apart.
    shape: int
    own: int = 0
    own_amounts: dict[ConsumerId, Mapping[str, int]] = {}

    @property
    def used(self) -> dict[str, int]:
        """What is in use of it, with our own writes."""
        return ProviderUse(0, {**self.use.by_consumer, **self.own_amounts}).used

    def has_same(self, listed: ListedProvider, contents: ProviderContents) -> bool:
        return self.contents == contents and self.listed.parent_provider_uuid == listed.parent_provider_uuid

    @property
    def is_whole(self) -> bool:
        """Were the contents read since somebody else wrote to it?"""
        return self.contents_at == self.use.generation

    @property
    def explained(self) -> int:
        """The generation that it has if nobody but us has written to it."""
        return self.use.generation + self.own


class HttpBooks(PartGroup):
    """A part that keeps the picture up to date. `whole` is set when all providers were read once."""

    def __init__(
        self,
        api: PlacementApi,
        picture: Picture,
        *,
        chance: random.Random | None = None,
    ) -> None:
        self._api = api
        self._picture = picture
        self._known: dict[ProviderId, _Known] = {}
        self._internals = itertools.count(1)
        self._revisions = itertools.count(1)
        self._shapes = itertools.count(1)
        self._members: dict[ConsumerId, GroupMember] = {}
        self._shared = SharedRuns(partial(self._read, with_contents=True))
        self.whole = asyncio.Event()
        self.providers_read = 0
        super().__init__(
            Periodic("read placement", self._look, LOOK_S, is_needed=True, chance=chance),
            Periodic(
                "read placement's inventories",
                self.catch_up,
                VERIFY_S,
                rests_first=True,
                is_cut_short=True,
                chance=chance,
            ),
        )
        self._reading = asyncio.Lock()

    async def catch_up(self) -> None:
        """On return, the picture has every write that was committed before the call."""
        await self._shared.done()

    def knows(self, provider: ProviderId) -> bool:
        return provider in self._known

    def root_of(self, provider: ProviderId) -> ProviderId:
        """The root of the tree of this provider; itself if it is not known."""
        known = self._known.get(provider)
        return provider if known is None else known.listed.root_provider_uuid

    def moved(self, moved: ShapeMoved) -> bool:
        """Take note of a claim that was refused since a tree has changed. Returns whether the picture has the new state."""
        del moved
        return False

    def wrote(self, written: Mapping[ConsumerId, Amounts]) -> None:
        """Placement has taken one write of ours: these consumers hold these amounts, of which they held none before."""
        for id_ in {provider for amounts in written.values() for provider in amounts}:
            if (known := self._known.get(id_)) is not None:
                # A write moves a provider's generation once, however many consumers it is about.
                known.own += 1
                known.own_amounts |= {
                    consumer: amounts[id_] for consumer, amounts in written.items() if id_ in amounts
                }

    def joined(self, member: GroupMember) -> None:
        """A consumer that we have claimed for is a member of a server group. Placement does not know groups."""
        self._members[member.consumer] = member
        self._picture.groups.join((member,))

    async def _look(self) -> None:
        await self._read(with_contents=not self.whole.is_set())

    async def _read(self, *, with_contents: bool) -> None:
        async with self._reading:
            granted = self._picture.granted_so_far()
            listed = {each.uuid: each for each in await self._api.providers()}
            changed: list[ProviderId] = []
            states: list[ProviderState] = []
            for id_, each in listed.items():
                known = self._known.get(id_)
                if (
                    known is None
                    or known.explained != each.generation
                    or (with_contents and not known.is_whole)
                ):
                    changed.append(id_)
                elif known.own or known.listed != each:
                    states.append(self._with_own(known, each))
            try:
                if with_contents:
                    changed += await self._freed({*listed} - {*changed})
                await self._read_these(listed, changed, states, with_contents=with_contents)
            finally:
                # Also if a question fails: what was read is known now, and is not read again.
                self._picture.apply(states)
            gone = [known.internal for id_, known in self._known.items() if id_ not in listed]
            self._known = {id_: known for id_, known in self._known.items() if id_ in listed}
            if gone:
                self._picture.prune(gone)
            self._picture.drop(granted)
            self.whole.set()

    async def _freed(self, among: AbstractSet[ProviderId]) -> list[ProviderId]:
        """Those of these providers of which not so much is in use as is known."""
        used: dict[ProviderId, Mapping[str, int]] = {}
        left, asked = _room_asked(self._known.values()), set[tuple[str, int]]()
        # A tree that has no room of its first class may have room of the next one.
        while left:
            for resource, amount in sorted({ways[0] for ways in left.values()} - asked):
                used |= await self._api.used_where_there_is(resource, amount)
                asked.add((resource, amount))
            found = {self.root_of(id_) for id_ in used}
            left = {root: ways[1:] for root, ways in left.items() if root not in found and ways[1:]}
        return sorted(
            id_
            for id_ in among & used.keys()
            if (known := self._known.get(id_)) is not None and _differ(known, used[id_])
        )

    async def _read_these(
        self,
        listed: Mapping[ProviderId, ListedProvider],
        ids: Iterable[ProviderId],
        states: list[ProviderState],
        *,
        with_contents: bool,
    ) -> None:
        """Read these providers, and add the states of those that could be read."""
        room = asyncio.Semaphore(READS_AT_ONCE)

        async def read(id_: ProviderId) -> None:
            async with room:
                if state := await self._read_one(listed[id_], with_contents=with_contents):
                    states.append(state)

        await all_of(read(id_) for id_ in ids)

    async def _read_one(self, listed: ListedProvider, *, with_contents: bool) -> ProviderState | None:
        id_ = listed.uuid
        known = self._known.get(id_)
        contents = None if known is None else known.contents
        contents_at = 0 if known is None else known.contents_at
        if contents is None or with_contents:
            # Before the use: what is written in between makes the generation move, so it is read again.
            contents, contents_at = await self._api.contents_of(id_), listed.generation
        use = await self._api.use_of(id_)
        if contents is None or use is None:
            return None
        self.providers_read += 1
        if known is not None:
            self._leave_groups(id_, known.use, use)
        internal = next(self._internals) if known is None else known.internal
        is_same = known is not None and known.has_same(listed, contents)
        shape = known.shape if known is not None and is_same else next(self._shapes)
        now = self._known[id_] = _Known(internal, listed, contents, use, contents_at, shape)
        return self._state(now)

    def _with_own(self, known: _Known, listed: ListedProvider) -> ProviderState:
        """The state of a provider to which only we have written, which leaves its contents as they are."""
        if known.is_whole:
            known.contents_at = listed.generation
        known.use = ProviderUse(listed.generation, {**known.use.by_consumer, **known.own_amounts})
        known.listed, known.own, known.own_amounts = listed, 0, {}
        return self._state(known)

    def _state(self, known: _Known) -> ProviderState:
        used, listed = known.use.used, known.listed
        inventories = {
            resource: InventoryState(**structs.asdict(each), used=used.get(resource, 0))
            for resource, each in known.contents.inventories.items()
        }
        return ProviderState(
            internal=known.internal,
            id=listed.uuid,
            name=listed.name,
            root=listed.root_provider_uuid,
            parent=listed.parent_provider_uuid,
            generation=listed.generation,
            shape=known.shape,
            revision=next(self._revisions),
            inventories=inventories,
            traits=known.contents.traits,
            aggregates=known.contents.aggregates,
            consumers=len(known.use.by_consumer),
        )

    def _leave_groups(self, provider: ProviderId, before: ProviderUse, now: ProviderUse) -> None:
        """A member that holds nothing more of its host has left it."""
        for consumer in before.by_consumer.keys() - now.by_consumer.keys():
            member = self._members.get(consumer)
            if member is not None and member.host == provider:
                del self._members[consumer]
                self._picture.groups.leave((Holder(consumer=consumer, attempt=member.attempt),))


def _differ(known: _Known, used: Mapping[str, int]) -> bool:
    ours = known.used
    return any(ours.get(resource, 0) != amount for resource, amount in used.items())


def _room_asked(known: Iterable[_Known]) -> dict[ProviderId, list[tuple[str, int]]]:
    """The least amounts by which each tree is found that has room, its processors first: for most trees the first is enough."""
    by_tree: dict[ProviderId, set[tuple[str, int]]] = {}
    for each in known:
        for resource, inventory in each.contents.inventories.items():
            least = -(-inventory.min_unit // inventory.step_size) * inventory.step_size
            by_tree.setdefault(each.listed.root_provider_uuid, set()).add((resource, least))
    return {
        root: sorted(ways, key=lambda way: (way[0] != "VCPU", way[0] != "PCPU", way))
        for root, ways in by_tree.items()
    }


# Claims, swaps and releases as writes of allocations over HTTP.
#
# Claims of one batch are one write. Placement grants all of them or none; if it grants none, each claim is written by itself.
#
# This placement knows no attempts. A consumer's generation tells whether somebody else has written in between: a swap or a release is
# written at the generation that our last claim made or that we have last read. What a consumer holds tells whether a claim was granted
# before. What a consumer held before any claim of ours counts as attempt 0.


# Of so many consumers it is remembered what they hold, until the answer about them is delivered.
CLAIMS_KEPT = 100_000
# So many claims are one write: with more of them, more are repeated when one of them is refused.
TOGETHER_MAX = 20
# So many writes at once: more answer large batches sooner, fewer make fewer conflicts.
WRITES_AT_ONCE = 8
# A write that conflicts with others on its provider is tried so often, after pauses drawn at random; then another host is.
CONFLICT_TRIES_MAX, CONFLICT_PAUSE_S_MAX = 4, 0.5


class HttpClaims:
    def __init__(
        self,
        api: PlacementApi,
        books: HttpBooks,
        *,
        chance: random.Random,
    ) -> None:
        self._api = api
        self._books = books
        self._chance = chance
        self._room = asyncio.Semaphore(WRITES_AT_ONCE)
        # What each consumer holds since our last claim for it, or held when it was last read.
        self._known: OrderedDict[ConsumerId, Held] = OrderedDict()

    async def ask_all(self, orders: Sequence[Message]) -> Sequence[Message]:
        """The answer to each of these orders, in their order. Raises `Operational` if placement does not answer one of them."""
        claims = {
            each.consumer: each for each in orders if isinstance(each, ClaimResources) and not _asks(each)
        }
        granted = await self._claim_together([*claims.values()])
        return await all_of(
            self._answer(
                order,
                is_granted=isinstance(order, ClaimResources)
                and order.consumer in granted
                and order is claims[order.consumer],
            )
            for order in orders
        )

    async def _answer(self, order: Message, *, is_granted: bool) -> ClaimAnswered:
        verdict: ClaimVerdict = Claimed()
        if not isinstance(order, ClaimResources | SwapClaim | ReleaseClaim):
            raise TypeError(f"{order!r} is no order about a claim")
        if not is_granted:
            async with self._room:
                match order:
                    case ClaimResources():
                        verdict = await self._claim(order)
                    case SwapClaim():
                        verdict = await self._swap(order)
                    case ReleaseClaim():
                        verdict = await self._release(order)
        return ClaimAnswered(consumer=order.consumer, attempt=order.attempt, verdict=verdict)

    async def _claim_together(self, claims: Sequence[ClaimResources]) -> frozenset[ConsumerId]:
        """Write these claims by as few requests as possible. Returns whose claims were granted; the others are not decided."""
        # Those on one host in one request: two requests at once about one provider would be in each other's way.
        ordered = sorted(claims, key=lambda each: each.share.host.int)
        pages = [ordered[first : first + TOGETHER_MAX] for first in range(0, len(ordered), TOGETHER_MAX)]
        granted = await all_of(self._are_granted(page) for page in pages if len(page) > 1)
        return frozenset(consumer for page in granted for consumer in page)

    async def _are_granted(self, claims: Sequence[ClaimResources]) -> Iterable[ConsumerId]:
        """The consumers of these claims, if all were granted; otherwise none."""
        allocated = {each.consumer: _new(each) for each in claims}
        async with self._room:
            refused = await self._again(lambda: self._api.allocate_all(allocated))
        if refused is not None:
            log.debug("several claims are refused together: each is made alone")
            return ()
        self._granted(claims)
        return allocated

    async def _claim(self, order: ClaimResources) -> ClaimVerdict:
        if _asks(order):
            return await self._already(order) or Released(freed=False)
        # A new instance holds nothing, so this is not asked before.
        refused = await self._again(lambda: self._api.allocate(order.consumer, _new(order)))
        if refused is None:
            self._granted((order,))
            return Claimed()
        if refused.of_consumer:
            return await self._already(order) or Superseded(attempt=order.attempt, ended=True)
        return _no_room(order.share, refused)

    async def _swap(self, order: SwapClaim) -> ClaimVerdict:
        """All that the consumer holds becomes this share: an evacuated instance takes one beside, or gives it back."""
        held = self._known.get(order.consumer) or await self._api.held_by(order.consumer)
        if not held.amounts:
            return Superseded(attempt=order.attempt, ended=True)
        if frozenset(held.amounts) == frozenset(order.share.amounts):
            return Claimed()
        refused = await self._again(partial(self._rewrite, order.consumer, held, order.share.amounts))
        if refused is None:
            self._note(order)
            return Claimed()
        if refused.of_consumer:
            self._known.pop(order.consumer, None)
            return Superseded(attempt=order.attempt, ended=True)
        return _no_room(order.share, refused)

    async def _release(self, order: ReleaseClaim) -> ClaimVerdict:
        """Free what our claim made it hold, unless somebody has written to the consumer since."""
        held = self._known.get(order.consumer)
        if held is None or not held.amounts:
            return Released(freed=False)
        refused = await self._again(partial(self._rewrite, order.consumer, held, ()))
        if refused is not None and not refused.of_consumer:
            raise Transient(f"placement does not release what {order.consumer} holds: {refused.reason}")
        # Not earlier: a release that gets no answer is tried again.
        self._known.pop(order.consumer, None)
        return Released(freed=refused is None)

    async def _rewrite(
        self, consumer: ConsumerId, held: Held, amounts: tuple[ResourceAmount, ...]
    ) -> Conflict | None:
        """Have the consumer hold these amounts, if it still is at the generation at which it held the others."""
        written = HoldingsToWrite(
            _amounts(amounts), held.project or NO_OWNER, held.user or NO_OWNER, held.generation
        )
        refused = await self._api.allocate(consumer, written)
        if refused is None:
            self._remember(
                consumer, structs.replace(held, amounts=amounts, generation=(held.generation or 0) + 1)
            )
        return refused

    async def _again(self, write: Callable[[], Awaitable[Conflict | None]]) -> Conflict | None:
        """Write, and again while others write to the same providers."""
        refused: Conflict | None = None
        for number in range(CONFLICT_TRIES_MAX):
            refused = await write()
            if refused is None or not refused.of_provider:
                return refused
            if number + 1 < CONFLICT_TRIES_MAX:
                log.debug("a write conflicts with those of others: it is tried again")
                await asyncio.sleep(self._chance.uniform(0, CONFLICT_PAUSE_S_MAX))
        return refused

    def _granted(self, orders: Sequence[ClaimResources]) -> None:
        """One write has granted all of these. Each is of a new consumer."""
        for order in orders:
            held = Held(order.share.amounts, 1, order.project, order.user)
            self._remember(order.consumer, held)
            self._note(order)
        self._books.wrote({order.consumer: _amounts(order.share.amounts) for order in orders})

    def _remember(self, consumer: ConsumerId, held: Held) -> None:
        self._known[consumer] = held
        self._known.move_to_end(consumer)
        while len(self._known) > CLAIMS_KEPT:
            self._known.popitem(last=False)

    def _note(self, order: ClaimResources | SwapClaim) -> None:
        """The consumer lives on this host now."""
        if order.group is not None:
            self._books.joined(
                GroupMember(
                    group=order.group.id,
                    consumer=order.consumer,
                    attempt=order.attempt,
                    host=order.share.host,
                )
            )

    async def _already(self, order: ClaimResources) -> AlreadyClaimed | None:
        """The share that the consumer holds; None if it holds none."""
        held = await self._api.held_by(order.consumer)
        if not held.amounts:
            return None
        self._remember(order.consumer, held)
        if frozenset(held.amounts) == frozenset(order.share.amounts):
            self._note(order)
            return AlreadyClaimed(attempt=order.attempt, share=order.share)
        # A provider that is not known here yet is named, so that it is read.
        providers = [each.provider for each in held.amounts]
        host = next(
            (each for each in providers if not self._books.knows(each)), self._books.root_of(providers[0])
        )
        return AlreadyClaimed(attempt=0, share=Share(host=host, amounts=held.amounts))


def _asks(order: ClaimResources) -> bool:
    """A claim of no host only asks what the consumer holds."""
    return order.share.host.int == 0


def _new(order: ClaimResources) -> HoldingsToWrite:
    return HoldingsToWrite(_amounts(order.share.amounts), order.project or NO_OWNER, order.user or NO_OWNER)


def _amounts(amounts: Iterable[ResourceAmount]) -> Amounts:
    sums: dict[ProviderId, dict[str, int]] = {}
    for each in amounts:
        of_provider = sums.setdefault(each.provider, {})
        of_provider[each.resource] = of_provider.get(each.resource, 0) + each.amount
    return sums


def _no_room(share: Share, refused: Conflict) -> DoesNotFit:
    """Another host may do. Placement tells the first amount that did not fit in words alone."""
    first = next((each for each in share.amounts if each.resource in refused.reason), share.amounts[0])
    short = Shortfall(provider=first.provider, resource=first.resource, asked=first.amount, free=0)
    return DoesNotFit(shortfalls=(short,))
