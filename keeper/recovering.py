"""Looks for lost hosts, and begins to recover them: each by a campaign of its own, or many together after a person has agreed. Looks for
guests that died, and has them started again.

Schedulers say which hosts are silent, and the policies say what is done (core/recovery.py). A keeper decides in one transaction under
the lock of the ledger what it begins, so one of several keepers that see a loss begins. A loss is noted with the time when the host was
last heard: it is decided on once, whatever becomes of it.
"""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import uuid4

from msgspec import structs

from bus.messages.build import InstanceDetails, InstanceState
from bus.messages.keeping import CampaignHost, CampaignId, CampaignState
from bus.messages.policies import KeepingPolicy
from bus.workers.connections import Station
from engine.hosts import HostState, host_in_cell
from engine.inventories import ProviderId
from engine.places import domain_of
from keeper import store_sql as rows
from keeper.asking import Schedulers, named
from keeper.beginning import take_from
from keeper.core.campaigns import OPEN_STAGES, staged
from keeper.core.policies import (
    PolicyRule,
    PolicySubject,
    group_of,
    may_evacuate,
    may_restart,
    restarts_max,
    rule_for,
)
from keeper.core.recovery import (
    COUNTED_FOR,
    Loss,
    Restart,
    Suspect,
    campaign_for,
    is_due,
    is_silent,
    losses,
    lost_host,
    next_try,
    question_about_all,
    rehearsed,
    start_for,
    tries_of,
)
from keeper.metrics import RESTARTS
from keeper.settings import KeeperPace
from keeper.store_sql import KeeperStore
from kit.metrics import Readings
from kit.parts import PartGroup, Periodic
from kit.sql import Transaction

log = logging.getLogger(__name__)


class Rules:
    """The policies, as they are now."""

    def __init__(self, policies: Sequence[KeepingPolicy]) -> None:
        self._policies = policies

    def of_host(self, host: HostState) -> PolicyRule:
        return rule_for(self._policies, _subject(host))

    def of_guest(self, host: HostState, told: InstanceState, details: InstanceDetails) -> PolicyRule:
        flavor = told.flavor.name if told.flavor is not None else details.size.flavor if details.size else ""
        subject = _subject(host)._replace(project=told.project, flavor=flavor)
        return rule_for(self._policies, subject)

    def suspect(self, host: HostState) -> Suspect:
        rule = self.of_host(host)
        return Suspect(host, rule, group_of(rule, _subject(host)))


def _subject(host: HostState) -> PolicySubject:
    return PolicySubject(host.cell, host.place, frozenset(host.aggregates))


async def rules_now(store: KeeperStore) -> Rules:
    return Rules([each.policy for each in await store.read(rows.all_policies)])


class Recovery:
    """A part that looks for lost hosts. `wake` is called when there is something to do for campaigns."""

    def __init__(
        self,
        station: Station,
        schedulers: Schedulers,
        store: KeeperStore,
        wake: Callable[[], None],
        *,
        clock: Callable[[], datetime],
        pace: KeeperPace,
    ) -> None:
        self._schedulers = schedulers
        self._store = store
        self._wake = wake
        self._clock = clock
        self._room_s = pace.room_s
        self._soonest = timedelta(seconds=station.settings.host_down_s + pace.spread_s)
        self.looking = Periodic(
            "look for lost hosts", self._look, pace.idle_s, is_cut_short=True, chance=station.chance
        )

    async def _look(self) -> None:
        policies = await self._store.read(rows.all_policies)
        if not may_evacuate(policies):
            return
        silent = [each for each in await self._schedulers.down_hosts() if is_silent(each)]
        rules = Rules([each.policy for each in policies])
        suspects, before = await self._new(rules, silent)
        due = [each for each in suspects if is_due(each, self._clock(), self._soonest)]
        if not due:
            return
        dead = await self._dead_domains(suspects)
        for loss in losses(suspects, due, dead, before):
            await self._begin(loss, rules)

    async def _new(
        self, rules: Rules, silent: Sequence[HostState]
    ) -> tuple[list[Suspect], list[tuple[str, ProviderId]]]:
        """Those of these hosts on which nothing was decided since they fell silent; and the hosts that were lost lately, with their groups."""
        if not silent:
            return [], []
        since = self._clock() - COUNTED_FOR
        known = await self._store.read(rows.losses_since, since, [each.id for each in silent])
        decided = {(each.id, each.lost_at) for each, _ in known}
        late = {each.id: each for each, is_late in known if is_late}
        told = await self._schedulers.hosts_of(late.values())
        before = [(rules.suspect(each).group, id_) for id_, each in told.items()]
        return [rules.suspect(each) for each in silent if (each.id, each.silent_since) not in decided], before

    async def _dead_domains(self, suspects: Iterable[Suspect]) -> dict[ProviderId, str]:
        """The domains of these hosts that are silent as a whole: of each host the smallest that has other hosts, or its cell."""
        known: dict[str, list[HostState]] = {}
        found: dict[ProviderId, str] = {}
        for host in (each.host for each in suspects):
            levels = range(host.place.count("/") + 1 if host.place else 0, 0, -1)
            for domain in (*(domain_of(host.place, level) for level in levels), ""):
                of = f"domain {domain}" if domain else f"cell {host.cell}"
                if of not in known:
                    known[of] = await self._schedulers.hosts_in(
                        place=domain, cell="" if domain else host.cell
                    )
                used = [each for each in known[of] if each.setting.mode in ("up", "draining")]
                if len(used) > 1:
                    if all(is_silent(each) for each in used):
                        found[host.id] = of
                    break
        return found

    async def _begin(self, loss: Loss, rules: Rules) -> None:
        """Begin to recover these hosts, or ask a person about them, unless another keeper has."""
        now = self._clock()
        guests = await self._schedulers.guests_on([named(lost_host(each)) for each in loss.hosts])
        new = [self._as_begun(each, loss, rules, guests[named(lost_host(each))], now) for each in loss.hosts]
        async with self._store.transaction() as transaction:
            await transaction.run(rows.lock_ledger)
            known = await transaction.run(rows.losses_since, now, [each.id for each in new])
            decided = {(each.id, each.lost_at) for each, _ in known}
            taken = await transaction.run(rows.others_with, [each.id for each in new])
            # A person evacuates it already.
            theirs = {id_ for id_, each in taken.items() if each.work.kind == "evacuate"}
            new = [each for each in new if (each.id, each.lost_at) not in decided and each.id not in theirs]
            if not new:
                return
            campaign = await self._campaign(transaction, loss, now)
            why = f"it is lost: campaign {campaign.name} has it now"
            for each in new:
                if each.stage in OPEN_STAGES and each.id in taken:
                    await take_from(transaction, taken[each.id], each, campaign, why=why, now=now)
            await transaction.run(rows.add_hosts, campaign.id, new)
            if any(each.stage == "held" for each in new):
                await transaction.run(rows.ask, [question_about_all(campaign, loss, now)])
            elif not any(each.stage in OPEN_STAGES for each in new):
                is_rehearsal = any(each.left for each in new)
                ended = structs.replace(campaign, life="rehearsed" if is_rehearsal else "done", ended_at=now)
                await transaction.run(rows.save_campaign, ended)
        for each in new:
            log.warning("host %s is lost: it is %s %s", named(each), each.stage, each.reason)
        self._wake()

    def _as_begun(
        self,
        suspect: Suspect,
        loss: Loss,
        rules: Rules,
        guests: Sequence[tuple[InstanceState, InstanceDetails]],
        now: datetime,
    ) -> CampaignHost:
        host = lost_host(suspect)
        leave = sum(rules.of_guest(suspect.host, *each).guests == "evacuate" for each in guests)
        if suspect.rule.rehearse:
            return rehearsed(host, leave, loss.why, now)
        if not leave:
            # Nothing is switched off for nobody.
            return staged(host, "skipped", now, "its policies let no guest leave")
        return staged(host, "held", now, loss.why) if loss.why else host

    async def _campaign(self, transaction: Transaction, loss: Loss, now: datetime) -> CampaignState:
        """The campaign of these hosts: a new one, or the one about whose hosts a person is asked already."""
        if loss.why:
            for asked in await transaction.run(rows.asked_about_all, loss.of):
                known = await transaction.run(rows.lock_campaign, asked)
                if known is not None and known.life == "running":
                    return known
        host = loss.hosts[0].host
        of = loss.of.partition(" ")[2].replace("/", "-") if loss.why else f"{host.cell}-{host.name}"
        campaign = campaign_for(CampaignId(uuid4()), f"lost-{of}"[:255], loss, now, self._room_s)
        await transaction.run(rows.add_campaign, campaign)
        return campaign


class Restarting(PartGroup):
    """A part that has guests started again that died while their hosts live, or while these were away."""

    def __init__(
        self,
        station: Station,
        schedulers: Schedulers,
        store: KeeperStore,
        *,
        clock: Callable[[], datetime],
        pace: KeeperPace,
    ) -> None:
        self._schedulers = schedulers
        self._store = store
        self._clock = clock
        self._pace = pace
        self._seen: Counter[tuple[str, ...]] = Counter()
        self._given_up: set[tuple[object, datetime | None]] = set()
        looking = Periodic(
            "look for guests that died", self._look, pace.died_s, is_cut_short=True, chance=station.chance
        )
        super().__init__(looking)

    @property
    def readings(self) -> Readings:
        return (RESTARTS.numbers(self._seen),)

    async def _look(self) -> None:
        policies = await self._store.read(rows.all_policies)
        if not may_restart(policies):
            return
        died = {each[0].id: each for each in await self._schedulers.died()}
        rules = Rules([each.policy for each in policies])
        names = {host_in_cell(each.cell, each.host) for each, _ in died.values()}
        called = await self._schedulers.hosts_called(sorted(names))
        living = {name: hosts[0] for name, hosts in called.items() if hosts and hosts[0].up}
        most = {
            id_: restarts_max(rules.of_guest(host, told, details))
            for id_, (told, details) in died.items()
            if (host := living.get(host_in_cell(told.cell, told.host))) is not None
        }
        orders: list[Any] = []
        async with self._store.transaction() as transaction:
            await transaction.run(rows.lock_ledger)
            known = await transaction.run(rows.restarts_of, [id_ for id_, count in most.items() if count])
            now, tried = self._clock(), list[Restart]()
            for id_, count in most.items():
                told = died[id_][0]
                if (due := next_try(told, known.get(id_), count, now, self._pace.rests_s)) is not None:
                    tried.append(due)
                    orders.append(start_for(told, due, count))
                elif count and tries_of(known.get(id_), told.changed_at or now) >= count:
                    self._give_up(told, count)
            await transaction.run(rows.save_restarts, tried)
        self._given_up &= {(id_, told.changed_at) for id_, (told, _) in died.items()}
        for order, answer in zip(
            orders, await self._schedulers.ask_all(orders) if orders else (), strict=True
        ):
            self._seen["started",] += 1
            log.info("a guest that died is started: %s: %s", order, type(answer).__name__)

    def _give_up(self, told: InstanceState, count: int) -> None:
        if (told.id, told.changed_at) not in self._given_up:
            self._given_up.add((told.id, told.changed_at))
            self._seen["given_up",] += 1
            log.warning(
                "instance %s was started %s times, and stays stopped: it %s", told.id, count, told.reason
            )


def kept_by_policy(
    rules: Rules, host: HostState, guests: Sequence[tuple[InstanceState, InstanceDetails]]
) -> tuple[list[tuple[InstanceState, InstanceDetails]], str]:
    """The guests of a lost host that are evacuated by their policies; and how many are not, by which, in words."""
    leave: list[tuple[InstanceState, InstanceDetails]] = []
    kept: dict[str, int] = {}
    for each in guests:
        rule = rules.of_guest(host, *each)
        if rule.guests == "evacuate":
            leave.append(each)
            continue
        policy = rule.said_by.get("guests")
        by = f"the policy of {policy.scope} {policy.of}".rstrip() if policy is not None else "no policy"
        kept[f"{rule.guests} by {by}"] = kept.get(f"{rule.guests} by {by}", 0) + 1
    return leave, "; ".join(f"{count} guests stay: {why}" for why, count in sorted(kept.items()))
