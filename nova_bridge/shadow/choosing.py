"""Chooses hosts for copies of Nova's requests, as if Nova had not claimed anything for them.

Nova claims at about the same time. So the picture may have its claim for an instance already, or get it in the middle of this:

1. Ask placement what the instances of the requests hold, and let the picture catch up: what they hold is in it.
2. Choose. What the instances of the request hold counts as free.
3. Ask again. If one holds something now that held nothing before, the picture may have had it or not: let it catch up, and choose
   again, with that counted as free.

A choice counts as used room for the requests after it until Nova's own claim is seen, as a claim of ours would. But Nova may have chosen
otherwise: so hosts are viewed without these choices, too.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from uuid import UUID

from msgspec import Struct

from engine.choosing.choosing import Chosen, choose
from engine.choosing.explaining import in_words
from engine.choosing.hosts import Leaving
from engine.choosing.planning import HostViews, reason_against, views_of
from engine.choosing.plugins import Plugins
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, Share
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from nova_bridge.envelope import RefusedError, UnknownNameError
from nova_bridge.request_spec import NovaRequest, NovaRequestReader
from nova_bridge.scheduler.deciding import HeldBy, NovaNeeds
from nova_bridge.scheduler.hosts import NovaHosts
from nova_bridge.shadow.notes import ShadowNote

log = logging.getLogger(__name__)

# The attempt by which choices are held in the picture: no claim has it.
ATTEMPT = 0

Held = Mapping[ConsumerId, Sequence[ResourceAmount]]


class CopiedRequest(Struct, frozen=True, eq=False):
    """A copy of a request of Nova, as it came. `instances` may be wrong if the request cannot be read."""

    at: datetime
    request_id: str
    project: str
    args: Mapping[str, object]
    instances: tuple[InstanceId, ...]


class ShadowChoice(Struct, frozen=True, eq=False, kw_only=True):
    """What was chosen for a copy. `chosen` has a host for each instance, or is empty, and `refusal` says why. `ruled_out` are hosts of
    which Nova may hold something for the instances, and which it does not choose.
    """

    copied: CopiedRequest
    request: NovaRequest | None = None
    spec: InstanceSpec | None = None
    plugins: Plugins | None = None
    chosen: tuple[Chosen, ...] = ()
    refusal: str = ""
    hosts: int = 0
    views: HostViews | None = None
    # The views without our choices for earlier requests; None if there were none.
    views_without: HostViews | None = None
    ruled_out: frozenset[ProviderId] = frozenset()

    @property
    def instances(self) -> tuple[InstanceId, ...]:
        return self.copied.instances

    @property
    def stays(self) -> bool:
        """Is it a rebuild, for which Nova claims nothing?"""
        return self.request is not None and self.request.is_rebuild

    def draft_note(self, number: int) -> ShadowNote:
        """What is known of the instance with this number before Nova's choice is."""
        request, chosen = self.request, self.chosen[number] if self.chosen else None
        return ShadowNote(
            at=self.copied.at,
            request_id=self.copied.request_id,
            instance=self.instances[number],
            verdict="not_compared",
            project=self.copied.project,
            flavor="" if request is None or request.build.flavor is None else request.build.flavor.name,
            instances=len(self.instances),
            is_forced=request is not None and request.is_forced,
            ours="" if chosen is None else chosen.choice.name,
            alternates=() if chosen is None else tuple(each.name for each in chosen.alternates),
            hosts=self.hosts if chosen is None else chosen.hosts,
            qualified=0 if chosen is None else chosen.qualified,
            refusal=self.refusal,
        )


class ShadowChooser:
    """`forced` are the plugins for requests that name their host. `find_names` has Nova read: a request names a host that is not known."""

    def __init__(
        self,
        picture: Picture,
        hosts: NovaHosts,
        reader: NovaRequestReader,
        plugins: Plugins,
        forced: Plugins,
        *,
        held: HeldBy,
        catch_up: Callable[[], Awaitable[None]],
        find_names: Callable[[], Awaitable[None]],
        alternates: Callable[[], int],
        salt: int,
        draw: Callable[[], int],
    ) -> None:
        self._picture = picture
        self._hosts = hosts
        self._reader = reader
        self._needs = NovaNeeds(picture, hosts, plugins)
        self._plugins = plugins
        self._forced = forced
        self._held = held
        self._catch_up = catch_up
        self._find_names = find_names
        self._alternates = alternates
        self._salt = salt
        self._draw = draw
        # The choices that the picture holds.
        self._shares: dict[ConsumerId, Share] = {}

    async def choose(self, batch: Sequence[CopiedRequest]) -> Sequence[ShadowChoice]:
        """A choice for each of these, in their order. Raises `Operational` if placement does not answer."""
        asked = [ConsumerId(id_) for each in batch for id_ in each.instances]
        try:
            return await self._choose_all(batch, asked)
        except BaseException:
            # Nobody follows these choices, and so nobody would drop them.
            self.drop(set(asked))
            raise

    async def _choose_all(
        self, batch: Sequence[CopiedRequest], asked: Sequence[ConsumerId]
    ) -> Sequence[ShadowChoice]:
        # With those of the instances that requests want to be with or apart from.
        before = await self.held_by([*dict.fromkeys([*asked, *await self._named_by(batch)])])
        await self._catch_up()
        choices = [self._choose(each, before) for each in batch]
        after = await self.held_by([id_ for id_ in asked if not before.get(id_)])
        came = {id_ for id_, amounts in after.items() if amounts}
        if not came:
            return choices
        self.drop(came)
        await self._catch_up()
        return [
            self._choose(each.copied, {**before, **after}) if came.intersection(each.instances) else each
            for each in choices
        ]

    async def held_by(self, consumers: Sequence[ConsumerId]) -> Held:
        if not consumers:
            return {}
        return dict(zip(consumers, await self._held(consumers), strict=True))

    def drop(self, instances: set[ConsumerId]) -> None:
        """These choices count as used room no longer."""
        for each in instances:
            self._shares.pop(each, None)
        self._picture.drop([(each, ATTEMPT) for each in sorted(instances)])

    def chosen_host(self, choice: ShadowChoice, amounts: Sequence[ResourceAmount]) -> ProviderId | None:
        """The host of Nova that gives these amounts and may be what it chose; None if there is none."""
        return next((host for host in self._hosts_giving(amounts) if host not in choice.ruled_out), None)

    def reason_against(self, choice: ShadowChoice, host: ProviderId, held: Held) -> str:
        """What our filters have against this host now, if what the instances of the request hold is left out."""
        row = self._picture.row_of(host)
        if choice.spec is None or choice.plugins is None or row < 0:
            return ""
        leaving = self._leaving(choice.instances, held)
        return reason_against(self._picture, choice.spec, choice.plugins, row, leaving)

    def name_of(self, host: ProviderId) -> str:
        return self._hosts.name_of(host)

    # One request

    async def _named_by(self, batch: Sequence[CopiedRequest]) -> list[ConsumerId]:
        found: list[ConsumerId] = []
        for each in batch:
            with suppress(RefusedError):
                try:
                    build = self._reader.read(each.args, self._hosts.names).build
                except UnknownNameError:
                    await self._find_names()
                    build = self._reader.read(each.args, self._hosts.names).build
                found += [ConsumerId(id_) for id_ in (*build.same_host, *build.different_host)]
        return found

    def _hosts_of_named(self, request: NovaRequest, held: Held) -> Mapping[UUID, ProviderId]:
        build = request.build
        named = {
            id_: self._hosts_giving(held.get(ConsumerId(id_), ()))
            for id_ in (*build.same_host, *build.different_host)
        }
        return {id_: hosts[0] for id_, hosts in named.items() if hosts}

    def _choose(self, copied: CopiedRequest, held: Held) -> ShadowChoice:
        try:
            request = self._reader.read(copied.args, self._hosts.names)
        except RefusedError as refused:
            return ShadowChoice(copied=copied, refusal=str(refused), hosts=len(self._picture))
        if request.is_rebuild:
            decision = self._needs.judge_rebuild(request)
            why = "" if decision.failure is None else decision.failure.message
            return ShadowChoice(copied=copied, request=request, refusal=why)
        spec = self._needs.spec_of(request, self._hosts_of_named(request, held))
        if isinstance(spec, str):
            return ShadowChoice(copied=copied, request=request, refusal=spec, hosts=len(self._picture))
        return self._choose_for(copied, request, spec, held)

    def _choose_for(
        self, copied: CopiedRequest, request: NovaRequest, spec: InstanceSpec, held: Held
    ) -> ShadowChoice:
        plugins = self._forced if request.is_forced else self._plugins
        ruled_out = self._needs.ids(spec.ignore_hosts)
        leaving = self._leaving(copied.instances, held)
        specs = [spec] * len(copied.instances)
        found = choose(
            self._picture,
            specs,
            plugins,
            self._salt,
            self._alternates() if request.wants_alternates else 0,
            draw=self._draw() if plugins.subset > 1 else 0,
            explained_max=1,
            leaving=leaving,
        )

        def view() -> HostViews:
            return views_of(
                self._picture, spec, plugins, salt=self._salt, instances=len(specs), leaving=leaving
            )

        views, views_without = view(), self._without_choices(view)
        refused = [each for each in found if isinstance(each, NoValidHost)]
        chosen = tuple(each for each in found if isinstance(each, Chosen))
        refusal = ""
        if refused:
            refusal = in_words(refused[0])
            if len(specs) > 1:
                refusal = f"{len(specs)} instances need a host each, {len(chosen)} found one: {refusal}"
        else:
            self._hold(copied.instances, chosen, held)
        return ShadowChoice(
            copied=copied,
            request=request,
            spec=spec,
            plugins=plugins,
            chosen=() if refused else chosen,
            refusal=refusal,
            hosts=refused[0].hosts if refused else chosen[0].hosts,
            views=views,
            views_without=views_without,
            ruled_out=ruled_out,
        )

    def _hold(self, instances: Sequence[InstanceId], chosen: Sequence[Chosen], held: Held) -> None:
        """What Nova holds for an instance counts already."""
        shares = {
            ConsumerId(id_): each.choice.share
            for id_, each in zip(instances, chosen, strict=True)
            if not held.get(ConsumerId(id_))
        }
        self._shares |= shares
        self._picture.hold((id_, ATTEMPT, share) for id_, share in shares.items())

    def _without_choices(self, view: Callable[[], HostViews]) -> HostViews | None:
        if not self._shares:
            return None
        self._picture.drop([(id_, ATTEMPT) for id_ in self._shares])
        try:
            return view()
        finally:
            self._picture.hold((id_, ATTEMPT, share) for id_, share in self._shares.items())

    # What is held

    def _leaving(self, instances: Sequence[InstanceId], held: Held) -> list[Leaving]:
        """What counts as free: all that the instances hold. What a pool gives counts with the first host."""
        found: list[Leaving] = []
        for instance in instances:
            amounts = held.get(ConsumerId(instance), ())
            hosts = self._hosts_giving(amounts)
            for number, host in enumerate(hosts):
                row = self._picture.row_of(host)
                others = set(hosts[:number] + hosts[number + 1 :])
                of_host = tuple(
                    each
                    for each in amounts
                    if (root := self._root_of(each.provider)) == host or (number == 0 and root not in others)
                )
                if row >= 0:
                    found.append(Leaving(row, of_host))
        return found

    def _hosts_giving(self, amounts: Sequence[ResourceAmount]) -> list[ProviderId]:
        """The hosts of Nova among the roots of these providers, in the order of the amounts."""
        roots = dict.fromkeys(self._root_of(each.provider) for each in amounts)
        return [root for root in roots if self._hosts.get(root) is not None]

    def _root_of(self, provider: ProviderId) -> ProviderId:
        index = self._picture.index
        row = index.row_of(provider)
        return provider if row is None else index.state(row).root
