"""Decides a batch of Nova's requests: chooses hosts in the picture, claims them, and makes the answers.

A request for several instances gets a host for each of them, or gives back what it has claimed, and is refused.
"""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime
from uuid import UUID

import numpy as np
from msgspec import Struct, structs

from bus.message import Message
from bus.messages.placement import ClaimAnswered, ClaimResources, ReleaseClaim, SwapClaim
from bus.topology import CELL0
from engine.choosing.explaining import in_words
from engine.choosing.hosts import Draft, Hosts, OneHost
from engine.choosing.plugins import HostChange, Plugins
from engine.choosing.verdicts import Holds, amounts_of
from engine.flavors import InstanceId
from engine.hosts import HostState
from engine.inventories import (
    Choice,
    ConsumerId,
    GroupMember,
    ProviderId,
    ResourceAmount,
    Share,
)
from engine.picture.picture import Picture
from engine.refusals import AlreadyClaimed, ClaimVerdict, NoValidHost, Superseded
from engine.requests import InstanceSpec
from kit.errors import Operational
from kit.parts import Pauses
from nova_bridge.envelope import RemoteFailure, no_valid_host
from nova_bridge.hosts import NovaHosts
from nova_bridge.request_spec import NovaGroup, NovaRequest
from nova_bridge.selection import SelectedHost, group_providers, write_selections, write_stay
from scheduler_worker.claiming.claimer import Claimer
from scheduler_worker.requests.reading import Search

log = logging.getLogger(__name__)


# The search for the host of one instance of Nova.
#
# Nova writes allocations too, so the instance may hold something, and what it holds may change at any time:
#
#     Superseded       somebody has written to it meanwhile, for example the conductor, which gave its allocations to a migration: claim again
#     AlreadyClaimed   three cases:
#                      - This very claim was granted before: adopt it.
#                      - The instance holds of one host all that the request asks for, and the request allows that host. Another scheduler,
#                        or an earlier try of the same request, has claimed it: adopt it, and keep the rest.
#                      - Otherwise it is evacuated: it keeps what it holds of its old host, as Nova has it, and takes the new share beside.
#
# An instance that was evacuated twice may still hold such a share of its first host, until that host's compute is back. So the share of
# a host that is down is adopted only if the instance holds nothing else.


# Nova may write the allocations of an instance while we claim; it does not do so for ever.
OTHER_ATTEMPTS_MAX = 6


class NovaSearch(Search):
    def __init__(
        self,
        instance: InstanceId,
        issued_at: datetime,
        request: NovaRequest,
        spec: InstanceSpec,
        *,
        host_of: Callable[[ProviderId], HostState | None],
        allows: Callable[[ProviderId], bool],
        may_hold: bool = False,
    ) -> None:
        """`host_of` finds the host of a provider, and `allows` says whether the request allows it. `may_hold`: the request was tried
        before, so its claim may be granted already.
        """
        super().__init__(instance, issued_at, request.build, spec)
        self.may_hold = may_hold
        self._host_of = host_of
        self._allows = allows
        # What the instance holds and keeps.
        self.held: AlreadyClaimed | None = None
        self._other_attempts = 0

    @property
    def is_in_doubt(self) -> bool:
        """Is it not known whether something was claimed?"""
        return self.may_hold and not isinstance(self.outcome, Holds)

    def answer_is_lost(self) -> None:
        """Its claim may have been granted: choose anew, and learn what is held when that is claimed."""
        self.may_hold = True
        if self.is_searching:
            self.chosen = None

    def resolve(self, verdict: ClaimVerdict) -> None:
        """Learn from the answer to `probe` what was claimed."""
        if isinstance(verdict, AlreadyClaimed):
            self._adopt(verdict)
        self.may_hold = False

    def holds_nothing(self) -> None:
        """All that was claimed has been given back."""
        self.outcome, self.may_hold = None, False

    def order(self) -> ClaimResources | SwapClaim:
        claim = self.claim()
        if self.held is None:
            return claim
        return SwapClaim(
            cell=claim.cell,
            consumer=claim.consumer,
            attempt=claim.attempt,
            issued_at=claim.issued_at,
            held_attempt=self.held.attempt,
            share=_beside(self.held.share, claim.share),
            group=claim.group,
        )

    def claims_again_after(self, verdict: ClaimVerdict) -> bool:
        match verdict:
            case Superseded(attempt, ended):
                # What it holds is not what it held any more.
                self.held = None
                return self._go_on_as(attempt + 1 if ended else attempt)
            case AlreadyClaimed() as held if self._is_own(held):
                self.granted(is_new=False)
                return True
            case AlreadyClaimed() as held if self._adopt(held):
                return True
            case AlreadyClaimed() as held:
                self.held = held
                return self._go_on_as(held.attempt + 1)
        return False

    def undo(self, now: datetime) -> ReleaseClaim | SwapClaim:
        """The order that gives back what was claimed: the answer could not be delivered."""
        if self.held is None:
            return ReleaseClaim(cell=CELL0, consumer=self.instance, attempt=self.held_attempt, issued_at=now)
        return SwapClaim(
            cell=CELL0,
            consumer=self.instance,
            attempt=self.held_attempt + 1,
            issued_at=now,
            held_attempt=self.held_attempt,
            share=structs.replace(self.held.share, shapes=(), instances_max=0),
            group=self.spec.server_group,
        )

    @property
    def held_attempt(self) -> int:
        """The attempt by which the granted share is held."""
        return getattr(self.outcome, "attempt", self.attempt)

    def _go_on_as(self, attempt: int) -> bool:
        self._other_attempts += 1
        if self._other_attempts > OTHER_ATTEMPTS_MAX:
            return False
        self.attempt = attempt
        return True

    def _is_own(self, held: AlreadyClaimed) -> bool:
        """Was the claim that was just sent granted before, and its answer lost?"""
        chosen = self.chosen
        return (
            chosen is not None
            and held.attempt == self.attempt
            and held.share.host == chosen.choice.share.host
            and (self.held is not None or set(held.share.amounts) == set(chosen.choice.share.amounts))
        )

    def _adopt(self, held: AlreadyClaimed) -> bool:
        """Take the share that was claimed for this request before, if the instance holds one, and keep all else that it holds."""
        wanted = dict(self.spec.amounts)
        by_host: dict[ProviderId | None, list[ResourceAmount]] = {None: []}
        states: list[HostState] = []
        for each in held.share.amounts:
            state = self._host_of(each.provider)
            if state is not None and state not in states:
                states.append(state)
            by_host.setdefault(None if state is None else state.id, []).append(each)
        for state in states:
            own = by_host[state.id]
            others = [each for id_, of_it in by_host.items() if id_ not in (None, state.id) for each in of_it]
            # A pool gives what a host does not have itself.
            given = {each.resource for each in own}
            pools = [each for each in by_host[None] if each.resource in wanted and each.resource not in given]
            share = Share(host=state.id, amounts=(*own, *pools))
            given_to_others = {each.resource for each in others}
            kept = [
                each
                for each in by_host[None]
                if each not in pools or (others and each.resource not in given_to_others)
            ]
            rest = (*others, *kept)
            is_usable = state.up or (self.may_hold and not rest)
            if amounts_of(share) == wanted and self._allows(state.id) and is_usable:
                self.held = (
                    structs.replace(held, share=structs.replace(held.share, amounts=rest)) if rest else None
                )
                choice = Choice(name=state.name, share=share, kind=state.kind)
                self.outcome = Holds(state.cell, choice, attempt=held.attempt)
                return True
        return False


def _beside(held: Share, wanted: Share) -> Share:
    """Both shares together. A provider that gives to both, such as a pool, gives only what is held already."""
    givers = {each.provider for each in held.amounts}
    added: tuple[ResourceAmount, ...] = tuple(each for each in wanted.amounts if each.provider not in givers)
    # Shapes are judged of all trees or of none, and that of the old host is not known.
    return structs.replace(wanted, amounts=(*held.amounts, *added), shapes=())


AskAll = Callable[[Sequence[Message]], Awaitable[Sequence[Message]]]
# What each of these consumers holds now. Raises `Operational` if placement does not answer.
HeldBy = Callable[[Sequence[ConsumerId]], Awaitable[Sequence[Sequence[ResourceAmount]]]]
# Before a batch is tried again that placement did not answer.
PAUSES = Pauses(first_s=0.2, max_s=2.0)


class NovaAsked(Struct, frozen=True, eq=False):
    """A request to decide. `may_hold`: it may have been decided before. Nothing more is claimed once its caller has given up."""

    request: NovaRequest
    is_waited_for: Callable[[], bool]
    may_hold: bool = False


class NovaDecision(Struct, frozen=True, eq=False):
    """The result for the caller, or the failure. `searches` hold what was claimed for it, or may hold it: of a failure, it is still
    to be given back.
    """

    result: object = None
    failure: RemoteFailure | None = None
    searches: tuple[NovaSearch, ...] = ()


class _Plan(Struct, eq=False):
    """A request while hosts are found for it. `decision` is set when it is decided."""

    asked: NovaAsked
    searches: tuple[NovaSearch, ...] = ()
    decision: NovaDecision | None = None

    @property
    def goes_on(self) -> bool:
        return (
            self.decision is None
            and any(each.is_searching for each in self.searches)
            and self.asked.is_waited_for()
        )

    def refuse(self, reason: str) -> None:
        self.decision = NovaDecision(failure=no_valid_host(reason), searches=self.searches)

    @contextmanager
    def guarded(self) -> Iterator[None]:
        """A context in which a bug, such as that of another package's plugin, refuses this request, and no other one."""
        try:
            yield
        except Exception as bug:
            log.exception(
                "a request for %d instances could not be decided", len(self.asked.request.instances)
            )
            self.refuse(f"this scheduler failed: {bug!r}")


class NovaDecider:
    """`forced` claims for requests that name their host: Nova asks none of its filters about it."""

    def __init__(
        self,
        picture: Picture,
        hosts: NovaHosts,
        claimer: Claimer,
        forced: Claimer,
        plugins: Plugins,
        *,
        ask_all: AskAll,
        held: HeldBy,
        clock: Callable[[], datetime],
    ) -> None:
        self._picture = picture
        self._hosts = hosts
        self._claimers = (claimer, forced)
        self._needs = NovaNeeds(picture, hosts, plugins)
        self._ask_all = ask_all
        self._held = held
        self._clock = clock

    async def decide(self, batch: Sequence[NovaAsked]) -> Sequence[NovaDecision]:
        """A decision for each of these requests, in their order."""
        plans = [_Plan(each) for each in batch]
        hosts = await self._hosts_of_named(batch)
        for plan in plans:
            with plan.guarded():
                self._begin(plan, hosts)
        for claimer, is_forced in zip(self._claimers, (False, True), strict=True):
            await self._find(claimer, [each for each in plans if each.asked.request.is_forced is is_forced])
        decisions: list[NovaDecision] = []
        for plan in plans:
            if plan.decision is None:
                with plan.guarded():
                    plan.decision = self._answer(plan.asked.request, plan.searches)
            assert plan.decision is not None, "it has an answer, or is refused for a bug"
            decisions.append(plan.decision)
        return decisions

    async def undo(self, searches: Sequence[NovaSearch], is_ours: Callable[[], bool]) -> bool:
        """Give back what these searches have claimed, however often placement does not answer, as long as the request is ours. Returns
        whether it still is, and nothing is left to give back.
        """
        pauses, level = PAUSES.each(random), logging.WARNING
        while is_ours():
            try:
                await self._resolve([each for each in searches if each.is_in_doubt])
                held = [each for each in searches if isinstance(each.outcome, Holds)]
                if held:
                    await self._ask_all([each.undo(self._clock()) for each in held])
            except Operational as problem:
                log.log(level, "claims for %d instances are not released yet: %s", len(searches), problem)
                level = logging.DEBUG
                await asyncio.sleep(next(pauses))
            else:
                for search in searches:
                    search.holds_nothing()
                return True
        return False

    async def _resolve(self, doubted: Sequence[NovaSearch]) -> None:
        """Learn what was claimed for these searches of which no answer came."""
        if doubted:
            answers = await self._ask_all([each.probe() for each in doubted])
            for search, answer in zip(doubted, answers, strict=True):
                assert isinstance(answer, ClaimAnswered), "a question about a claim is answered by a verdict"
                search.resolve(answer.verdict)

    async def _find(self, claimer: Claimer, plans: Sequence[_Plan]) -> None:
        """Find hosts, however often placement does not answer, as long as the callers wait. After a bug, each request is tried alone."""
        pauses = PAUSES.each(random)
        while going := [each for each in plans if each.goes_on]:
            searches = [search for each in going for search in each.searches]
            try:
                await claimer.find_hosts(searches)
            except Exception as problem:
                for search in searches:
                    search.answer_is_lost()
                if isinstance(problem, Operational):
                    log.debug("placement does not answer: hosts are looked for again")
                    await asyncio.sleep(next(pauses))
                    continue
                log.exception("hosts for %d instances could not be found", len(searches))
                for each in going:
                    if len(going) > 1:
                        await self._find(claimer, (each,))
                    elif each.goes_on:
                        each.refuse(f"this scheduler failed: {problem!r}")
                return
            else:
                return

    # Before the claim

    async def _hosts_of_named(self, batch: Sequence[NovaAsked]) -> Mapping[UUID, ProviderId]:
        """The hosts of the instances that requests want to be with or apart from, as placement has them: computes of cells with brokers of
        their own tell schedulers nothing.
        """
        builds = [each.request.build for each in batch]
        named = list(
            dict.fromkeys(
                ConsumerId(id_) for each in builds for id_ in (*each.same_host, *each.different_host)
            )
        )
        pauses = PAUSES.each(random)
        while named and any(each.is_waited_for() for each in batch):
            try:
                held = await self._held(named)
            except Operational:
                await asyncio.sleep(next(pauses))
            else:
                return self._hosts.holding(zip(named, held, strict=True))
        return {}

    def _begin(self, plan: _Plan, hosts: Mapping[UUID, ProviderId]) -> None:
        """Decide the request, if nothing is to be claimed for it; otherwise make its searches."""
        request = plan.asked.request
        if request.is_rebuild:
            plan.decision = self._needs.judge_rebuild(request)
            return
        spec = self._needs.spec_of(request, hosts)
        if isinstance(spec, str):
            plan.refuse(spec)
            return
        now, allows = self._clock(), self._needs.allowing(spec)
        plan.searches = tuple(
            NovaSearch(
                instance,
                now,
                request,
                spec,
                host_of=self._hosts.host_of,
                allows=allows,
                may_hold=plan.asked.may_hold,
            )
            for instance in request.instances
        )

    # After the claim

    def _answer(self, request: NovaRequest, searches: Sequence[NovaSearch]) -> NovaDecision:
        held = tuple(each for each in searches if isinstance(each.outcome, Holds))
        if len(held) < len(searches):
            why = next(each for each in searches if not isinstance(each.outcome, Holds))
            said = _in_words(why, found=len(held), wanted=len(searches))
            return NovaDecision(failure=no_valid_host(said), searches=tuple(searches))
        chosen = [self._selected(each, request) for each in held]
        if any(not each for each in chosen):
            return NovaDecision(failure=no_valid_host("the chosen host changed meanwhile"), searches=held)
        return NovaDecision(result=write_selections(chosen, request.spec), searches=held)

    def _selected(self, search: NovaSearch, request: NovaRequest) -> list[SelectedHost]:
        """The chosen host, and then its alternates, one way for each; empty if the chosen one is not Nova's any more."""
        holds = search.outcome
        assert isinstance(holds, Holds), "only searches with a host are answered"
        alternates = holds.alternates if request.wants_alternates else ()
        found: dict[ProviderId, SelectedHost] = {}
        for number, choice in enumerate((holds.choice, *alternates)):
            host = choice.share.host
            node = self._hosts.cloud.nodes.get(host)
            providers = group_providers(request.spec, choice.share, self._picture.index)
            if node is not None and providers is not None and host not in found:
                found[host] = SelectedHost(node, choice.share, providers)
            elif number == 0:
                return []
        cells: Mapping[ProviderId, UUID] = {host: each.node.cell for host, each in found.items()}
        return [each for each in found.values() if each.node.cell == cells[holds.choice.share.host]]


class NovaNeeds:
    """What a request needs of its hosts, with what follows from where other instances are."""

    def __init__(self, picture: Picture, hosts: NovaHosts, plugins: Plugins) -> None:
        self._picture = picture
        self._hosts = hosts
        self._plugins = plugins

    def spec_of(self, request: NovaRequest, hosts: Mapping[UUID, ProviderId]) -> InstanceSpec | str:
        """The needs of the request, with what follows from where other instances are; or why no host can do."""
        spec, build = request.spec, request.build
        self._picture.usual.note(spec.amounts, len(request.instances))
        together = self._names_with(build.same_host, hosts)
        spec = structs.replace(
            spec,
            # Amounts tell a bare-metal flavor from any other: Nova has no sign of its own for it.
            is_for_nodes=False,
            same_hosts=(together or None) if build.same_host else (),
            different_hosts=self._names_with(build.different_host, hosts),
        )
        return self._grouped(request, spec)

    def _grouped(self, request: NovaRequest, spec: InstanceSpec) -> InstanceSpec | str:
        """Placement knows the members that it has claimed for; the request names the hosts of all."""
        group = request.group
        if group is not None:
            self._tell_members(group, request)
        if group is None or not group.hosts:
            return spec
        policy, moving = group.definition.policy, frozenset[UUID](request.instances)
        members = [each for each in group.members if each not in moving]
        if policy == "affinity":
            names = self._names_of(group.hosts)
            wanted = tuple(name for name in names if not spec.hosts or name in spec.hosts)
            if not wanted:
                return f"server group {group.definition.id} (affinity) is on {', '.join(group.hosts)}, which does not qualify"
            return structs.replace(spec, hosts=wanted)
        if policy == "anti-affinity":
            there = self._hosts.instances.count(members)
            full = [
                host for host in group.hosts if max(1, there[host.lower()]) >= group.definition.max_per_host
            ]
            return structs.replace(spec, ignore_hosts=(*spec.ignore_hosts, *self._names_of(full)))
        return spec

    def _tell_members(self, group: NovaGroup, request: NovaRequest) -> None:
        """Put the members into the picture that computes have told of, and placement has not: soft policies are weighed by them.
        What placement tells of the same instance is of a later attempt, and counts.
        """
        found: list[GroupMember] = []
        moving = frozenset[UUID](request.instances)
        for member in group.members:
            hosts = self.ids(self._names_of(self._hosts.instances.count((member,))))
            if member not in moving and len(hosts) == 1:
                (host,) = hosts
                told = GroupMember(
                    group=group.definition.id, consumer=ConsumerId(member), attempt=0, host=host
                )
                found.append(told)
        self._picture.groups.join(found)

    def _names_with(self, instances: Sequence[UUID], hosts: Mapping[UUID, ProviderId]) -> tuple[str, ...]:
        """Our names of the hosts that have one of these instances: as placement says, otherwise as computes do."""
        known = {self._hosts.name_of(hosts[each]).lower() for each in instances if each in hosts}
        others = self._hosts.instances.count(each for each in instances if each not in hosts)
        return tuple(sorted({*known, *self._names_of(others)}))

    def _names_of(self, services: Iterable[str]) -> tuple[str, ...]:
        """Our names of the hosts of these services, as specs have them."""
        by_service = self._hosts.names.by_service
        names = {name.lower() for service in services for name in by_service.get(service.lower(), ())}
        return tuple(sorted(names))

    def allowing(self, spec: InstanceSpec) -> Callable[[ProviderId], bool]:
        """Is this host among those that the request names, if it names any, and not ruled out?"""
        wanted, ruled_out = self.ids(spec.hosts), self.ids(spec.ignore_hosts)
        return lambda host: host not in ruled_out and (not spec.hosts or host in wanted)

    def ids(self, names: Sequence[str]) -> frozenset[ProviderId]:
        columns = self._picture.columns
        return frozenset(columns.ids[row] for name in names for row in self._picture.rows_named(name.lower()))

    # Rebuilds

    def judge_rebuild(self, request: NovaRequest) -> NovaDecision:
        """An instance stays where it is, if its host may run the new image. Nothing is claimed."""
        rows = [row for name in request.spec.hosts for row in self._picture.rows_named(name.lower())]
        if not rows:
            return NovaDecision(
                failure=no_valid_host("the host of the instance to rebuild is not known here")
            )
        hosts = Hosts(Draft(self._picture), np.array(rows[:1]))
        judges = [
            one
            for one in self._plugins.filters
            if "image_properties" in one.reads and HostChange.USAGE not in one.woken_by
        ]
        reasons = [
            f"{one.name}: {one.reason(OneHost(hosts, 0), request.spec)}"
            for one in judges
            if not one.passes(hosts, request.spec)[0]
        ]
        node = self._hosts.cloud.nodes.get(self._picture.columns.ids[rows[0]])
        if reasons or node is None:
            host = self._picture.columns.names[rows[0]]
            why = "; ".join(reasons) or "Nova has no compute node of it"
            return NovaDecision(failure=no_valid_host(f"host {host} cannot run this image: {why}"))
        return NovaDecision(result=write_stay([node] * len(request.instances)))


def _in_words(search: NovaSearch, *, found: int, wanted: int) -> str:
    outcome = search.outcome
    if outcome is None:
        why = "placement did not answer in time"
    elif isinstance(outcome, NoValidHost):
        why = in_words(outcome)
    else:
        assert not isinstance(outcome, Holds), "only a refusal is put into words"
        why = outcome.reason
    if search.refusals:
        refusals = "; ".join(f"{each.host}: {each.reason}" for each in search.refusals[-3:])
        why += f" (placement refused {len(search.refusals)} claims, the last: {refusals})"
    return why if wanted == 1 else f"{wanted} instances need a host each, {found} found one: {why}"
