"""Balance: plans of it, its steps when their turns come, and the policies by which it is done again and again.

A plan goes by the amounts of hosts and guests (engine/balancing.py), which schedulers tell. Then schedulers are asked about each step, as
if all guests were gone from where they leave: where a step finds no place, the plan is made again without its guest.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from uuid import uuid4

from msgspec import Struct, structs

from bus.messages.build import BuildRejected, InstanceDetails, InstanceState
from bus.messages.keeping import (
    PLANNED_MAX,
    CampaignHost,
    CampaignId,
    CampaignState,
    CampaignWork,
    Movement,
    PlannedMovement,
)
from bus.messages.policies import KeepingPolicy
from bus.workers.connections import Station
from engine.balancing import BalanceStep, LoadedHost, MovableGuest, figures_of, gain_of, plan_balance
from engine.flavors import InstanceId
from engine.goals import BalanceFigures
from engine.hosts import HostState, host_in_cell
from keeper import store_sql as rows
from keeper.asking import Schedulers
from keeper.beginning import begin_campaign
from keeper.core.balance import (
    EVERY_S,
    GAIN_MIN,
    broken_members,
    gain_between,
    goal_of,
    judged,
    loaded,
    movable,
    step_movement,
    takes_guests,
    with_step,
    work_of,
)
from keeper.core.campaigns import rejected, staged
from keeper.settings import KeeperPace
from keeper.store_sql import KeeperStore
from kit.parts import Periodic

log = logging.getLogger(__name__)

# A plan is made again so often without those guests for which schedulers have no place.
ROUNDS = 3

Told = tuple[InstanceState, InstanceDetails]


class BalancePlan(Struct, frozen=True):
    """Steps, with their guests and hosts as schedulers told of them; and the figures of all hosts now and afterwards. `refused` has the
    guests that the goal would have elsewhere, and why they stay.
    """

    steps: Sequence[BalanceStep]
    guests: Mapping[InstanceId, Told]
    hosts: Mapping[str, HostState]
    before: BalanceFigures
    after: BalanceFigures
    refused: Mapping[InstanceId, str] = {}

    def movements(self) -> tuple[PlannedMovement, ...]:
        """The steps for people, and those guests for which there is no place."""
        made = [
            PlannedMovement(
                instance=step.guest.id,
                name=self.guests[step.guest.id][0].name,
                project=self.guests[step.guest.id][0].project,
                host=step.guest.host,
                to=step.to,
                gain=step.gain,
                memory_mb=step.guest.amounts.get("MEMORY_MB", 0),
                live=self.guests[step.guest.id][0].state == "active",
            )
            for step in self.steps
        ]
        stay = [
            PlannedMovement(
                instance=id_,
                name=told.name,
                project=told.project,
                host=host_in_cell(told.cell, told.host),
                reason=why,
            )
            for id_, why in self.refused.items()
            for told in (self.guests[id_][0],)
        ]
        return (*made, *stay)[:PLANNED_MAX]

    def hosts_of(self) -> list[CampaignHost]:
        """The hosts that give guests."""
        giving = [self.hosts[name] for name in dict.fromkeys(each.guest.host for each in self.steps)]
        return [CampaignHost(id=each.id, host=each.name, cell=each.cell, place=each.place) for each in giving]


class Balancing:
    """Makes plans, and judges their steps again."""

    def __init__(self, schedulers: Schedulers, store: KeeperStore, clock: Callable[[], datetime]) -> None:
        self._schedulers = schedulers
        self._store = store
        self._clock = clock

    async def plan(self, work: CampaignWork) -> BalancePlan | BuildRejected:
        """The plan of this work, as things are now."""
        told = await self._schedulers.loads_in(cell=work.cell, place=work.place)
        if not told:
            asked_for = f"cell {work.cell or 'any'}, place {work.place or 'any'}"
            return rejected("work.place", work.place, f"no host has this: {asked_for}")
        taken = await self._store.read(rows.others_with, [host.id for host, _ in told])
        hosts = [loaded(host, use, is_free=host.id not in taken) for host, use in told]
        states = {host_in_cell(host.cell, host.name): host for host, _ in told}
        asked = [each.name for each in hosts if states[each.name].up and states[each.name].id not in taken]
        on = await self._schedulers.guests_on(asked)
        guests = {each[0].id: each for some in on.values() for each in some}
        may_move = await self._movable(work, guests, states)
        if work.goal == "rules":
            broken = await self._broken(guests, states)
            wanted = [BalanceStep(may_move[each], "", 1.0) for each in broken if each in may_move]
            # Where they go schedulers say.
            steps, refused = await self._placed(work, wanted[: work.moves_max])
            left = len(broken) - len(steps)
            before, after = figures_of(hosts, (), len(broken)), figures_of(hosts, steps, left)
        else:
            steps, refused = await self._steps(work, hosts, may_move)
            before, after = figures_of(hosts), figures_of(hosts, steps)
        return BalancePlan(steps, guests, states, before, after, refused)

    async def figures(self, work: CampaignWork) -> BalanceFigures:
        """The figures of the hosts of this work as they are now."""
        told = await self._schedulers.loads_in(cell=work.cell, place=work.place)
        broken = 0
        if work.goal == "rules":
            states = {host_in_cell(host.cell, host.name): host for host, _ in told}
            on = await self._schedulers.guests_on([*states])
            guests = {each[0].id: each for some in on.values() for each in some}
            broken = len(await self._broken(guests, states))
        return figures_of([loaded(host, use, is_free=True) for host, use in told], (), broken)

    async def _movable(
        self, work: CampaignWork, guests: Mapping[InstanceId, Told], states: Mapping[str, HostState]
    ) -> dict[InstanceId, MovableGuest]:
        rested = self._clock() - timedelta(seconds=work.rest_s)
        moved = await self._store.read(rows.moved_since, rested, [*guests])
        found = {id_: guest for id_, each in guests.items() if (guest := movable(*each)) and id_ not in moved}
        return {
            id_: each
            for id_, each in found.items()
            if each.host in states and takes_guests(states[each.host])
        }

    async def _steps(
        self, work: CampaignWork, hosts: Sequence[LoadedHost], guests: Mapping[InstanceId, MovableGuest]
    ) -> tuple[list[BalanceStep], dict[InstanceId, str]]:
        refused: dict[InstanceId, str] = {}
        steps: list[BalanceStep] = []
        for _ in range(ROUNDS):
            some = [each for id_, each in guests.items() if id_ not in refused]
            steps = []
            for step in plan_balance(goal_of(work), hosts, some, work.moves_max):
                steps += [step] if step is not None else []
                # A plan of many hosts takes seconds, and other things go on.
                await asyncio.sleep(0)
            _, new = await self._placed(work, steps)
            refused |= new
            if not new:
                break
        # A host is emptied as a whole or not at all.
        stay = {each.guest.host for each in steps if each.guest.id in refused and work.goal == "fill"}
        good = [each for each in steps if each.guest.id not in refused and each.guest.host not in stay]
        return good, refused

    async def _placed(
        self, work: CampaignWork, steps: Sequence[BalanceStep]
    ) -> tuple[list[BalanceStep], dict[InstanceId, str]]:
        """These steps, as schedulers would make them; and of those guests that they would not place so, why."""
        wishes = {each.guest.id: each.to for each in steps}
        plans = await self._schedulers.plan([*wishes], work, wishes=wishes)
        found = {id_: each for id_, each in plans.items() if each.to}
        good = [
            each._replace(to=host_in_cell(found[each.guest.id].cell, found[each.guest.id].to))
            for each in steps
            if each.guest.id in found
        ]
        why = {id_: plans[id_].reason if id_ in plans else "no scheduler knows it" for id_ in wishes}
        return good, {id_: why[id_] for id_ in wishes if id_ not in found}

    async def _broken(
        self, guests: Mapping[InstanceId, Told], states: Mapping[str, HostState]
    ) -> list[InstanceId]:
        groups = await self._schedulers.groups()
        return broken_members(guests.values(), groups, {name: each.place for name, each in states.items()})

    async def judged(self, campaign: CampaignState, steps: Sequence[Movement]) -> dict[InstanceId, Movement]:
        """These steps, each with its host if it still gains something, one after the other; else withdrawn."""
        work, now = campaign.work, self._clock()
        ids = [each.instance for each in steps]
        guests = {told.id: (told, details) for told, details in await self._schedulers.with_details(*ids)}
        wishes = {each.instance: each.wish for each in steps}
        plans = await self._schedulers.plan(ids, work, wishes=wishes)
        gains = (
            await self._repairs(work, steps)
            if work.goal == "rules"
            else await self._gains(work, steps, guests)
        )
        return {
            each.instance: judged(each, gains.get(each.instance, 0.0), plans.get(each.instance), now)
            for each in steps
        }

    async def _gains(
        self, work: CampaignWork, steps: Sequence[Movement], guests: Mapping[InstanceId, Told]
    ) -> dict[InstanceId, float]:
        names = {host_in_cell(each.cell, each.host) for each in steps} | {each.wish for each in steps}
        told = await self._schedulers.loads_called(sorted(names))
        loads = {host_in_cell(host.cell, host.name): loaded(host, use, is_free=True) for host, use in told}
        gains: dict[InstanceId, float] = {}
        for each in steps:
            guest = movable(*guests[each.instance]) if each.instance in guests else None
            if guest is None or guest.host not in loads or each.wish not in loads:
                continue
            gains[guest.id] = gain_of(goal_of(work), loads[guest.host], loads[each.wish], guest)
            if gains[guest.id] > 0:
                with_step(loads, BalanceStep(guest, each.wish, gains[guest.id]))
        return gains

    async def _repairs(self, work: CampaignWork, steps: Sequence[Movement]) -> dict[InstanceId, float]:
        """Those whose groups' rules still are broken by them."""
        told = await self._schedulers.hosts_in(cell=work.cell, place=work.place)
        states = {host_in_cell(each.cell, each.name): each for each in told}
        on = await self._schedulers.guests_on([*states])
        guests = {each[0].id: each for some in on.values() for each in some}
        broken = {*await self._broken(guests, states)}
        return {each.instance: 1.0 for each in steps if each.instance in broken}


def begun_by(
    campaign: CampaignState, plan: BalancePlan, now: datetime
) -> tuple[CampaignState, list[CampaignHost], list[Movement]]:
    """A campaign that carries this plan out, with its hosts and its movements."""
    hosts = {host_in_cell(each.cell, each.host): staged(each, "giving", now) for each in plan.hosts_of()}
    movements = [
        step_movement(campaign, hosts[step.guest.host], step, plan.guests[step.guest.id], now)
        for step in plan.steps
    ]
    planned = structs.replace(campaign, before=plan.before, promised=plan.after)
    return planned, [*hosts.values()], movements


def why_no_steps(plan: BalancePlan) -> str:
    if not plan.refused:
        return "nothing is to be gained now"
    ((why, count),) = Counter(plan.refused.values()).most_common(1)
    return (
        f"nothing is to be gained now: {len(plan.refused)} guests have no other place, {count} since: {why}"
    )


class ContinuousBalance:
    """A part that carries out the plans of policies again and again. `wake` is called when a campaign has begun."""

    def __init__(
        self,
        station: Station,
        balancing: Balancing,
        store: KeeperStore,
        wake: Callable[[], None],
        *,
        clock: Callable[[], datetime],
        pace: KeeperPace,
    ) -> None:
        self._balancing = balancing
        self._store = store
        self._wake = wake
        self._clock = clock
        # When each policy is looked at again.
        self._next: dict[str, datetime] = {}
        self.looking = Periodic(
            "look for what is out of balance",
            self._look,
            pace.balance_s,
            is_cut_short=True,
            chance=station.chance,
        )

    async def _look(self) -> None:
        for state in await self._store.read(rows.all_policies):
            policy, now = state.policy, self._clock()
            name = f"balance-{policy.scope}-{policy.of}".rstrip("-").replace("/", "-")
            if policy.balance is None or self._next.get(name, now) > now:
                continue
            every = timedelta(seconds=EVERY_S if policy.every_s is None else policy.every_s)
            (last,) = await self._store.read(rows.campaigns_called, name) or (None,)
            if last is not None and (last.ended_at is None or last.ended_at + every > now):
                continue
            self._next[name] = now + every
            await self._carry_out(policy, name)

    async def _carry_out(self, policy: KeepingPolicy, name: str) -> None:
        work, now = work_of(policy), self._clock()
        plan = await self._balancing.plan(work)
        if isinstance(plan, BuildRejected) or not plan.steps:
            return
        gain, least = gain_between(plan.before, plan.after, work), policy.gain_min
        if gain < (GAIN_MIN if least is None else least):
            log.info("%s: the best plan gains %.1f percent, which is not enough", name, gain)
            return
        campaign = CampaignState(id=CampaignId(uuid4()), name=name, work=work, by="keeper", asked_at=now)
        begun = await begin_campaign(self._store, *begun_by(campaign, plan, now))
        if not isinstance(begun, BuildRejected):
            log.info("%s begins: %s steps, to gain %.1f percent", name, len(plan.steps), gain)
            self._wake()
