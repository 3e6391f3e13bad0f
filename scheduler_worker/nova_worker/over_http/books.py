"""Keeps the picture up to date with a placement over HTTP, which has no feed of changes.

One request lists all providers with their generations, which move with each write, except those that only free something. A provider
whose generation is the one that our own claims explain is not read: its use is what it was, and our claims. All others are read again:
their allocations each time; their inventories, traits and aggregates now and then, and before a request is refused.

What was freed is found now and then, and before a request is refused: the summaries of allocation candidates have the use of all
providers of trees that have room, by one request for each class by which trees give room. A tree without room stays as it is known.
"""

import asyncio
import itertools
import logging
import random
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet

from msgspec import Struct, structs

from bus.message import ConsumerId, ProviderId
from bus.messages.placement import GroupMember, Holder, InventoryState, ProviderState, ShapeMoved
from bus.parts import PartGroup, Periodic, SharedRuns
from scheduler_worker.core.picture.picture import Picture
from scheduler_worker.nova_worker.over_http.api import (
    READS_AT_ONCE,
    Amounts,
    ListedProvider,
    PlacementApi,
    ProviderContents,
    ProviderUse,
    all_of,
)

log = logging.getLogger(__name__)

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
        refresh_s: float,
        chance: random.Random | None = None,
    ) -> None:
        self._api = api
        self._picture = picture
        self._known: dict[ProviderId, _Known] = {}
        self._internals = itertools.count(1)
        self._revisions = itertools.count(1)
        self._shapes = itertools.count(1)
        self._members: dict[ConsumerId, GroupMember] = {}
        self._shared = SharedRuns(self._read_all_contents)
        self.whole = asyncio.Event()
        self.providers_read = 0
        super().__init__(
            Periodic("read placement", self._look, refresh_s, is_needed=True, chance=chance),
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

    async def _read_all_contents(self) -> None:
        await self._read(with_contents=True)

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
        for resource, amount in _room_asked(self._known.values()):
            used |= await self._api.used_where_there_is(resource, amount)
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


def _room_asked(known: Iterable[_Known]) -> list[tuple[str, int]]:
    """The least amounts by which all trees are found that have room: for each tree one class, of its processors if it has any."""
    by_tree: dict[ProviderId, dict[str, int]] = {}
    for each in known:
        of_tree = by_tree.setdefault(each.listed.root_provider_uuid, {})
        for resource, inventory in each.contents.inventories.items():
            of_tree[resource] = max(inventory.min_unit, inventory.step_size)
    asked: set[tuple[str, int]] = set()
    for classes in by_tree.values():
        resource = next((name for name in ("VCPU", "PCPU") if name in classes), min(classes, default=""))
        if resource:
            asked.add((resource, classes[resource]))
    return sorted(asked)
