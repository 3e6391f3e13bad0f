"""Orders and questions about policies, and what is wrong with those that are set."""

import logging
from collections.abc import Callable, Sequence
from datetime import datetime

from msgspec import structs

from bus.message import Message
from bus.messages.policies import (
    POLICIES_MAX,
    AskPolicies,
    DeletePolicy,
    KeepingPolicy,
    PoliciesFound,
    PolicyScope,
    PolicyState,
    PolicyValue,
    SetPolicy,
)
from bus.workers.connections import Station
from bus.workers.handlers import Received
from engine.hosts import HostState, host_in_cell
from engine.places import domain_of
from keeper import store_sql as rows
from keeper.asking import Schedulers, forgotten
from keeper.core.campaigns import rejected
from keeper.core.policies import PolicyRule, values_of, wrong_policy
from keeper.hooks import Hooks
from keeper.metrics import BROKEN
from keeper.recovering import rules_now
from keeper.settings import KeeperPace
from keeper.store_sql import KeeperStore
from kit.metrics import Readings
from kit.parts import PartGroup, Periodic

log = logging.getLogger(__name__)


class PolicyBook:
    def __init__(
        self, schedulers: Schedulers, store: KeeperStore, hooks: Hooks, clock: Callable[[], datetime]
    ) -> None:
        self._schedulers = schedulers
        self._store = store
        self._hooks = hooks
        self._clock = clock

    async def set(self, ask: Received[SetPolicy]) -> Message:
        policy = ask.message.policy
        if wrong := wrong_policy(policy) or await self._wrong_here(policy):
            return rejected(*wrong)
        state = PolicyState(policy=policy, by=ask.by, set_at=self._clock())
        async with self._store.transaction() as transaction:
            await transaction.run(rows.lock_ledger)
            known = {(each.policy.scope, each.policy.of) for each in await transaction.run(rows.all_policies)}
            if len(known | {(policy.scope, policy.of)}) > POLICIES_MAX:
                return rejected("policy.of", policy.of, f"there are {POLICIES_MAX} policies already")
            await transaction.run(rows.save_policy, state)
        return PoliciesFound(policies=(state,))

    async def delete(self, ask: Received[DeletePolicy]) -> Message:
        async with self._store.transaction() as transaction:
            await transaction.run(rows.lock_ledger)
            gone = await transaction.run(rows.delete_policy, ask.message.scope, ask.message.of)
        return PoliciesFound(policies=(gone,) if gone else ())

    async def found(self, question: AskPolicies) -> Message:
        if question.instance is None:
            known = await self._store.read(rows.all_policies)
            return PoliciesFound(
                policies=tuple([structs.replace(each, problem=self.why_broken(each)) for each in known])
            )
        rules = await rules_now(self._store)
        for told, details in await self._schedulers.with_details(question.instance):
            called = await self._schedulers.hosts_called((host_in_cell(told.cell, told.host),))
            (hosts,) = called.values()
            host = hosts[0] if told.host and hosts else forgotten(told.cell, told.host)
            rule = rules.of_guest(host, told, details)
            tried = (await self._store.read(rows.restarts_of, (told.id,))).get(told.id)
            last = f"{tried.tries}, the last time {tried.at:%Y-%m-%d %H:%M:%S} UTC" if tried else "0"
            counts = (*values_of(rule), PolicyValue(field="started_again", value=last))
            return PoliciesFound(policies=_sayers(rule), counts=counts)
        return PoliciesFound(policies=())

    def why_broken(self, state: PolicyState) -> str:
        """What keeps this keeper from following a policy; empty if nothing does."""
        return self._hooks.why_unknown(state.policy.fence) if state.policy.fence else ""

    async def _wrong_here(self, policy: KeepingPolicy) -> tuple[str, object, str] | None:
        """The field of a policy that is wrong in this cloud, its value, and why."""
        if policy.fence and (why := self._hooks.why_unknown(policy.fence)):
            return "policy.fence", policy.fence, why
        hosts = await self._schedulers.hosts_under(policy.scope, policy.of)
        if hosts is None:
            return "policy.of", policy.of, f"there is no such {policy.scope}"
        if not policy.lost_max or policy.scope in ("project", "flavor"):
            return None
        most = _largest_group(hosts, policy)
        if policy.lost_max > most:
            why = f"it would never stop anything: at most {most} hosts are counted together"
            return "policy.lost_max", policy.lost_max, why
        return None


class PolicyCheck(PartGroup):
    """A part that tells of policies that this keeper cannot follow: when it starts, and not only when a host is lost."""

    def __init__(self, station: Station, store: KeeperStore, book: PolicyBook, pace: KeeperPace) -> None:
        self._store = store
        self._book = book
        self._broken: dict[tuple[PolicyScope, str], str] = {}
        super().__init__(
            Periodic("check policies", self._look, pace.balance_s, is_cut_short=True, chance=station.chance)
        )

    @property
    def readings(self) -> Readings:
        return (BROKEN.numbers({(): len(self._broken)}),)

    async def _look(self) -> None:
        known = await self._store.read(rows.all_policies)
        whys = {(each.policy.scope, each.policy.of): self._book.why_broken(each) for each in known}
        broken = {of: why for of, why in whys.items() if why}
        for (scope, of), why in broken.items():
            if self._broken.get((scope, of)) != why:
                log.error("the policy of %s cannot be followed: %s", f"{scope} {of}".rstrip(), why)
        self._broken = broken


def _sayers(rule: PolicyRule) -> tuple[PolicyState, ...]:
    """The policies that say something of what counts, the widest first."""
    found = {(each.scope, each.of): each for each in rule.said_by.values()}
    return tuple([PolicyState(policy=each) for each in found.values()])


def _largest_group(hosts: Sequence[HostState], policy: KeepingPolicy) -> int:
    """How many of these hosts are at most in one of the domains, or cells, that the policy counts."""
    counts: dict[str, int] = {}
    for host in hosts:
        domain = domain_of(host.place, policy.level or 0) or (policy.of if policy.scope == "domain" else "")
        of = f"domain {domain}" if domain else f"cell {host.cell}"
        counts[of] = counts.get(of, 0) + 1
    return max(counts.values(), default=0)
