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
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from uuid import UUID

from msgspec import Struct, structs

from engine.choosing.choosing import Chosen, choose
from engine.choosing.explaining import in_words
from engine.choosing.hosts import Draft, Occupant, what_if
from engine.choosing.planning import HostViews, reason_against, views_of
from engine.choosing.plugins import Plugins
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId, ResourceAmount, Share
from engine.picture.picture import Picture
from engine.refusals import NoValidHost
from engine.requests import InstanceSpec
from kit.errors import Operational
from kit.metrics import Labels, Readings
from nova_bridge.cloud import ServerSeen
from nova_bridge.deciding import HeldBy, NovaNeeds
from nova_bridge.envelope import RefusedError, UnknownNameError
from nova_bridge.hosts import NovaHosts
from nova_bridge.request_spec import NovaRequest, NovaRequestReader
from nova_bridge.shadow.notes import ShadowNote, compare_choices, pair_hosts, reason_in_words
from scheduler_worker.metrics import SHADOW_NOTES

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
        draft = what_if(self._picture, choice.plugins.way_judges, gone=self._leaving(choice.instances, held))
        return reason_against(draft, choice.spec, choice.plugins, row)

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

        def without(*more: Occupant) -> Draft:
            return what_if(self._picture, plugins.way_judges, gone=(*leaving, *more))

        found = choose(
            without(),
            specs,
            plugins,
            self._salt,
            self._alternates() if request.wants_alternates else 0,
            draw=self._draw() if plugins.subset > 1 else 0,
            explained_max=1,
        )

        def view(draft: Draft) -> HostViews:
            return views_of(draft, spec, plugins, salt=self._salt, instances=len(specs))

        own = [Occupant(id_, share.host, share.amounts) for id_, share in self._shares.items()]
        views, views_without = view(without()), view(without(*own)) if own else None
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

    # What is held

    def _leaving(self, instances: Sequence[InstanceId], held: Held) -> list[Occupant]:
        """The instances as occupants of their hosts: what they hold counts as free. The amounts of a pool count with the first host."""
        found: list[Occupant] = []
        for instance in instances:
            amounts = held.get(ConsumerId(instance), ())
            hosts = self._hosts_giving(amounts)
            for number, host in enumerate(hosts):
                others = set(hosts[:number] + hosts[number + 1 :])
                of_host = tuple(
                    each
                    for each in amounts
                    if (root := self._root_of(each.provider)) == host or (number == 0 and root not in others)
                )
                found.append(Occupant(ConsumerId(instance), host, of_host))
        return found

    def _hosts_giving(self, amounts: Sequence[ResourceAmount]) -> list[ProviderId]:
        """The hosts of Nova among the roots of these providers, in the order of the amounts."""
        roots = dict.fromkeys(self._root_of(each.provider) for each in amounts)
        return [root for root in roots if self._hosts.get(root) is not None]

    def _root_of(self, provider: ProviderId) -> ProviderId:
        index = self._picture.index
        row = index.row_of(provider)
        return provider if row is None else index.state(row).root


# Finds out which hosts Nova chose for the copied requests, compares them with ours, and notes both.
#
# Nova's scheduler claims before it answers: so what an instance holds in placement is Nova's choice. Placement is asked soon after the
# request, and then ever more seldom. An instance that holds nothing for long got no host of Nova; its fault in Nova's API says why, and
# says so earlier.


# Placement is asked about one request at these multiples of look_s, and then at the last one again and again.
LOOKS = (1, 1, 1, 2, 2, 4, 8)
# From this look on, Nova's API is asked about instances that hold nothing.
API_FROM_LOOK = 3
# After so many looks Nova has probably refused: our choice takes no room of later requests any more.
NEW_LOOKS = 5
REASON_MAX = 2_000
# Soon enough to see a host before its instance moves on.
LOOK_AT_S = 1.0
# Nova's choices that are waited for at once; then the oldest is noted without. Of each is kept how every host looked.
WAITING_MAX = 300
# How Nova words it, in lower case.
NO_VALID_HOST = "no valid host"
# An error from before the request is of something else. The clocks of two machines may differ by less than this.
CLOCKS_DIFFER_S = 60.0


# None if Nova has no such instance. Raises `Operational` if Nova does not answer.
AsksServer = Callable[[InstanceId], Awaitable[ServerSeen | None]]
AddNotes = Callable[[Sequence[ShadowNote]], None]


class _Followed(Struct, eq=False):
    """A choice whose counterpart is not known yet. `found` are Nova's hosts by instance, `after_s` says when each was seen, and
    `held` what the instance held then. `faults` say why Nova had no host, and `ended` why nobody knows which one it had.
    """

    choice: ShadowChoice
    look_at: datetime
    looks: int = 0
    found: dict[ConsumerId, ProviderId] = {}
    after_s: dict[ConsumerId, float] = {}
    held: dict[ConsumerId, Sequence[ResourceAmount]] = {}
    faults: dict[ConsumerId, str] = {}
    ended: dict[ConsumerId, str] = {}

    @property
    def missing(self) -> list[ConsumerId]:
        ids = [ConsumerId(each) for each in self.choice.instances]
        return [each for each in ids if each not in self.found | self.faults | self.ended]


class ShadowFollower:
    """`add_notes` keeps notes. Without `asks_server`, only what instances hold is known of Nova."""

    def __init__(
        self,
        chooser: ShadowChooser,
        add_notes: AddNotes,
        *,
        wait_s: float,
        look_s: float,
        clock: Callable[[], datetime],
        asks_server: AsksServer | None = None,
    ) -> None:
        self._chooser = chooser
        self._add_notes = add_notes
        self._wait_s = wait_s
        self._look_s = look_s
        self._clock = clock
        self._asks_server = asks_server
        self._followed: list[_Followed] = []
        self._noted = Counter[Labels]()

    @property
    def readings(self) -> Readings:
        return (SHADOW_NOTES.numbers(self._noted),)

    @property
    def under_way(self) -> int:
        return len(self._followed)

    def follow(self, choices: Sequence[ShadowChoice]) -> None:
        """Find out what Nova chose for these."""
        now = self._clock()
        for choice in choices:
            if choice.stays:
                reason = "a rebuild stays on its host: nothing is claimed for it"
                self._note(
                    [self._noted_as(choice, number, reason) for number in range(len(choice.instances))]
                )
            else:
                self._followed.append(_Followed(choice, now))
        while len(self._followed) > WAITING_MAX:
            self._end(self._followed.pop(0), why_not="too many requests wait for Nova's choice")

    async def look(self) -> None:
        """Ask placement about all requests whose time has come. Raises `Operational` if it does not answer."""
        now = self._clock()
        due = [each for each in self._followed if each.look_at <= now]
        if not due:
            return
        await self._look_at(due)
        for each in due:
            each.looks += 1
            pause = LOOKS[min(each.looks, len(LOOKS)) - 1] * self._look_s
            each.look_at = now + timedelta(seconds=pause)
            if each.looks == NEW_LOOKS:
                self._chooser.drop(set(each.missing))
            if each.missing and each.looks >= API_FROM_LOOK:
                await self._ask_nova(each)
        # Others may have been ended meanwhile.
        due = [each for each in due if each in self._followed]
        over = [each for each in due if not each.missing or self._is_over(each)]
        self._followed = [each for each in self._followed if each not in over]
        for each in over:
            self._end(each)

    async def look_at_new(self) -> None:
        """Ask placement about the requests whose choices take room in the picture. Raises `Operational` if it does not answer."""
        await self._look_at([each for each in self._followed if each.looks < NEW_LOOKS])

    def end_all(self, why: str) -> None:
        """The worker stops: note what is known."""
        followed, self._followed = self._followed, []
        for each in followed:
            self._end(each, why_not=why)

    async def _look_at(self, some: Sequence[_Followed]) -> None:
        missing = list(dict.fromkeys(id_ for each in some for id_ in each.missing))
        held = await self._chooser.held_by(missing)
        for each in some:
            self._take(each, held)

    def _take(self, one: _Followed, held: Held) -> None:
        now = self._clock()
        seen: set[ConsumerId] = set()
        for id_ in one.missing:
            host = self._chooser.chosen_host(one.choice, held.get(id_, ()))
            if host is not None:
                one.found[id_] = host
                one.held[id_] = held[id_]
                one.after_s[id_] = (now - one.choice.copied.at).total_seconds()
                seen.add(id_)
        # Nova's claim counts in the picture, or will soon.
        self._chooser.drop(seen)

    async def _ask_nova(self, one: _Followed) -> None:
        if self._asks_server is None:
            return
        for id_ in one.missing:
            try:
                server = await self._asks_server(InstanceId(id_))
            except Operational as problem:
                log.info("Nova's API does not say how instance %s ended: %s", id_, problem)
                return
            if server is None:
                one.ended[id_] = "Nova has no such instance any more"
            elif server.fault and not _is_of_before(server, one.choice.copied.at):
                if NO_VALID_HOST in server.fault.lower():
                    one.faults[id_] = server.fault
                else:
                    one.ended[id_] = f"it ended in error before its host was seen: {server.fault}"

    def _is_over(self, one: _Followed) -> bool:
        return (self._clock() - one.choice.copied.at).total_seconds() >= self._wait_s

    # Notes

    def _end(self, one: _Followed, *, why_not: str = "") -> None:
        """Note a request with what Nova chose. `why_not`: its choice was not waited for."""
        choice = one.choice
        ids = [ConsumerId(each) for each in choice.instances]
        self._chooser.drop(set(ids))
        novas = [one.found.get(id_) for id_ in ids]
        if one.ended:
            why_not = next(iter(one.ended.values()))
        if why_not and (one.missing or one.ended):
            self._note([self._noted_as(choice, number, why_not) for number in range(len(ids))])
            return
        ours: list[ProviderId | None] = [each.choice.share.host for each in choice.chosen]
        ours = ours or [None] * len(ids)
        notes = []
        for number, (id_, pair) in enumerate(zip(ids, pair_hosts(ours, novas), strict=True)):
            compared = compare_choices(pair, choice.views, choice.views_without)
            why = ""
            if compared.filter and pair.nova is not None:
                why = self._chooser.reason_against(choice, pair.nova, one.held)
            draft = choice.draft_note(number)
            note = structs.replace(
                draft,
                verdict=compared.verdict,
                reason=reason_in_words(compared, pair, self._chooser.name_of, why_filtered=why)[:REASON_MAX],
                ours="" if pair.ours is None else self._chooser.name_of(pair.ours),
                refusal=draft.refusal[:REASON_MAX],
                nova="" if pair.nova is None else self._chooser.name_of(pair.nova),
                nova_reason="" if pair.nova is not None else self._why_none(one, id_),
                nova_after_s=one.after_s.get(id_),
                filter=compared.filter,
                weighed=compared.weighed,
            )
            notes.append(note)
        self._note(notes)

    def _why_none(self, one: _Followed, id_: ConsumerId) -> str:
        if fault := one.faults.get(id_):
            return fault[:REASON_MAX]
        return f"it holds nothing of any host {self._wait_s:g} s after its request"

    def _noted_as(self, choice: ShadowChoice, number: int, reason: str) -> ShadowNote:
        return structs.replace(choice.draft_note(number), reason=reason[:REASON_MAX])

    def _note(self, notes: Sequence[ShadowNote]) -> None:
        try:
            self._add_notes(notes)
        except OSError as problem:
            # Shadow mode goes on: the next ones may be kept again.
            log.error("%d notes of shadow mode are lost: %s", len(notes), problem)  # noqa: TRY400
            self._noted[("lost",)] += len(notes)
            return
        for each in notes:
            self._noted[(each.verdict,)] += 1


def _is_of_before(server: ServerSeen, at: datetime) -> bool:
    return server.fault_at is not None and (at - server.fault_at).total_seconds() > CLOCKS_DIFFER_S
