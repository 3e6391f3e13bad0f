"""Grants movements: which guests move next, where each would go, and whether budgets allow it.

Schedulers are asked first, for those alone that budgets may let begin. Then it is decided on the rows as they are, in one transaction
under the lock of the ledger (core/grants.py). Nothing is claimed before: a host that was full meanwhile refuses the order.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any

from msgspec import structs

from bus.messages.keeping import CAMPAIGN_HOSTS_MAX, CampaignState, MoveBudget, Movement, MovementId
from bus.messages.planning import DrainedInstance
from engine.flavors import InstanceId
from engine.inventories import GroupId
from keeper import store_sql as rows
from keeper.asking import ASKED_MAX, Schedulers
from keeper.balancing import Balancing
from keeper.core.campaigns import EMPTYING, GOING, OPEN_STAGES, PLANNED, as_planned, may_wait, withdrawn
from keeper.core.grants import HOUR, MovementLedger, decide_grants, first_of_unit, short_of, units_of
from keeper.settings import KeeperPace
from keeper.store_sql import KeeperStore

# The active members of groups.
Active = Mapping[GroupId, AbstractSet[InstanceId]]


class Granting:
    """Has movements of campaigns granted, and knows which rest until they are planned again."""

    def __init__(
        self,
        schedulers: Schedulers,
        store: KeeperStore,
        balancing: Balancing,
        clock: Callable[[], datetime],
        pace: KeeperPace,
    ) -> None:
        self._schedulers = schedulers
        self._store = store
        self._balancing = balancing
        self._clock = clock
        self._pace = pace
        self._rests: dict[MovementId, datetime] = {}

    def rest(self, movements: Iterable[Movement]) -> None:
        """Plan these again only after a while."""
        now = self._clock()
        self._rests = {id_: until for id_, until in self._rests.items() if until > now}
        until = now + timedelta(seconds=self._pace.rest_s)
        self._rests.update(dict.fromkeys([each.id for each in movements], until))

    async def grant(self, campaign: CampaignState) -> int:
        """Have those granted that find a host, in the order of their turns. Returns how many were granted."""
        now = self._clock()
        going = await self._store.read(rows.movements_of, campaign.id, GOING)
        free = campaign.work.guests_at_once - sum(bool(each.to) for each in going)
        emptied = await self._store.read(rows.hosts_at, campaign.id, EMPTYING, CAMPAIGN_HOSTS_MAX)
        names = {(each.cell, each.host) for each in emptied}
        planned = [
            each
            for each in await self._store.read(rows.movements_of, campaign.id, PLANNED)
            if (each.cell, each.host) in names
        ]
        rested = [each for each in planned if self._rests.get(each.id, now) <= now]
        if free <= 0 or not rested:
            return 0
        active = await self._active({each.group for each in planned if each.group})
        budgets = [each.budget for each in await self._store.read(rows.all_budgets)] if active else []
        units = units_of(rested, short_of(budgets, {group: len(some) for group, some in active.items()}))
        # No host is sought for those that budgets hold up wherever they would go.
        held_up = await self._held_up(campaign, units, free, active)
        chosen = _first_of([unit for unit in units if unit[0].id not in held_up], max(2 * free, 1))
        seen = await self._with_hosts(campaign, chosen, is_alone=not going) if chosen else []
        seen += [[structs.replace(each, reason=held_up[each.id])] for each in planned if each.id in held_up]
        granted, waits = await self._decided(campaign, planned, seen, active)
        self.rest(each for unit in seen for each in unit if each.id in waits and each.id not in held_up)
        return len(granted)

    async def _held_up(
        self, campaign: CampaignState, units: Sequence[Sequence[Movement]], free: int, active: Active
    ) -> Mapping[MovementId, str]:
        """Those of these units that budgets let not begin now, wherever they would go, and why."""
        now = self._clock()
        # Each to a place of its own, which no other is counted for.
        somewhere = [
            [structs.replace(each, to=str(each.id)) for each in first_of_unit(unit)] for unit in units
        ]
        ledger = await self._ledger(self._store.read, campaign, active, now)
        # A few more than may begin: some find no host.
        most = {campaign.id: campaign.work.guests_at_once + free}
        return decide_grants(ledger._replace(guests_max=most), somewhere, now).waits

    async def _with_hosts(
        self, campaign: CampaignState, units: Sequence[Sequence[Movement]], *, is_alone: bool
    ) -> list[list[Movement]]:
        """These units, each with the host that schedulers would choose for it. Guests do not go to a host that the campaign empties later,
        unless there is no other.
        """
        work, now = campaign.work, self._clock()
        if work.kind == "balance":
            judged = await self._balancing.judged(campaign, [each for unit in units for each in unit])
            return [[judged[each.instance] for each in unit] for unit in units]
        stages = (*OPEN_STAGES, "done", "failed")
        there = await self._store.read(rows.hosts_at, campaign.id, stages, CAMPAIGN_HOSTS_MAX)
        stay_away = [each for each in there if each.stage in OPEN_STAGES or work.kind != "restart"]
        out_now = [each for each in stay_away if each.stage != "waiting"]
        ids = [each.instance for unit in units for each in unit]
        plans = await self._schedulers.plan(ids, work, stay_away)
        if len(out_now) < len(stay_away):
            left = [id_ for id_ in ids if id_ not in plans or not plans[id_].to]
            plans |= await self._schedulers.plan(left, work, out_now)
        nothing = DrainedInstance(id=ids[0], reason="no scheduler knows it")
        return [
            [
                as_planned(each, plans.get(each.instance, nothing), work, now, is_alone=is_alone)
                for each in unit
            ]
            for unit in units
        ]

    async def _decided(
        self,
        campaign: CampaignState,
        planned: Sequence[Movement],
        seen: Sequence[Sequence[Movement]],
        active: Active,
    ) -> tuple[Sequence[Movement], Mapping[MovementId, str]]:
        """Have those of these units granted that budgets allow, in one transaction. `planned` are their rows as they were when hosts were
        sought for them. Returns what was granted, and why the rest waits.
        """
        now = self._clock()
        was = {each.id: each for each in planned}
        changed = [each for unit in seen for each in unit if each.to or each != was[each.id]]
        if not changed:
            return (), {each.id: each.reason for unit in seen for each in unit}
        async with self._store.transaction() as transaction:
            await transaction.run(rows.lock_ledger)
            current = await transaction.run(rows.lock_campaign, campaign.id)
            if current is None or current.life != "running":
                return (), {}
            locked = await transaction.run(rows.lock_movements, [each.id for each in changed])
            stored = {each.id: each for each in locked}
            # What another keeper has changed since is planned anew.
            units = [[each for each in unit if stored.get(each.id) == was[each.id]] for unit in seen]
            if campaign.work.kind == "balance":
                units = await self._rested(transaction.run, campaign, units)
            may_begin = [
                first_of_unit(unit)
                for unit in units
                if unit and all(_may_begin(each, campaign, now) for each in unit)
            ]
            ledger = await self._ledger(transaction.run, campaign, active, now)
            granted, waits = decide_grants(ledger, may_begin, now)
            begun = {each.id for each in granted}
            others = [
                structs.replace(each, reason=waits.get(each.id, each.reason), to="", to_place="")
                for unit in units
                for each in unit
                if each.id not in begun
            ]
            await transaction.run(
                rows.save_movements, [*granted, *(each for each in others if each != stored[each.id])]
            )
        return granted, {each.id: each.reason for unit in seen for each in unit if each.id not in begun}

    async def _rested(
        self,
        run: Callable[..., Awaitable[Any]],
        campaign: CampaignState,
        units: Sequence[Sequence[Movement]],
    ) -> list[list[Movement]]:
        """These steps; those whose guest has moved meanwhile, within its rest, are withdrawn."""
        now = self._clock()
        ids = [each.instance for unit in units for each in unit]
        moved = await run(rows.moved_since, now - timedelta(seconds=campaign.work.rest_s), ids)
        why = "it has moved meanwhile, and rests"
        return [
            [withdrawn(each, why, now) if each.instance in moved else each for each in unit] for unit in units
        ]

    async def _ledger(
        self, run: Callable[..., Awaitable[Any]], campaign: CampaignState, active: Active, now: datetime
    ) -> MovementLedger:
        """The ledger, as `run` reads it: alone, or in a transaction that has locked it."""
        budgets: list[MoveBudget] = [each.budget for each in await run(rows.all_budgets)]
        is_hourly = any(each.per_hour is not None for each in budgets)
        recent = await run(rows.granted_since, now - HOUR) if is_hourly else ()
        going = await run(rows.going)
        # Those that leave do not stay, whatever was told of them before.
        leave = {each.instance for each in going}
        alive = {group: len(members - leave) for group, members in active.items()}
        return MovementLedger(budgets, going, recent, {campaign.id: campaign.work.guests_at_once}, alive)

    async def _active(self, groups: Collection[GroupId]) -> Active:
        """The active members of each of these groups, if a budget sets a minimum of any group."""
        budgets = await self._store.read(rows.all_budgets) if groups else ()
        is_limited = any(each.budget.alive_min is not None for each in budgets)
        return await self._schedulers.active_of(groups) if is_limited else {}


def _first_of(units: Sequence[Sequence[Movement]], most: int) -> list[Sequence[Movement]]:
    """The first units, with about so many movements, and no more than one question is about."""
    found: list[Sequence[Movement]] = []
    count = 0
    for unit in units:
        if count and (count >= most or count + len(unit) > ASKED_MAX):
            break
        found.append(unit[:ASKED_MAX])
        count += len(unit)
    return found


def _may_begin(movement: Movement, campaign: CampaignState, now: datetime) -> bool:
    """Has it a host to go to, or may it wait for one at the schedulers?"""
    is_for_room = movement.reason.startswith("no room") and may_wait(movement, campaign.work, now)
    return movement.life == "planned" and bool(movement.to or is_for_room)
