"""Works on campaigns, round by round: looks at what moves, begins with further hosts, plans their guests, has movements granted, and sends
their orders.

A round reads the rows, asks schedulers, and decides on locked rows (core/). Each step may be repeated: a keeper that dies is followed by
another one, which finds in the rows how far it was. What is granted is ordered under a request id that stands in its row, so the order is
the same whoever sends it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any, TypeVar
from uuid import UUID

from msgspec import structs

from bus.message import Message
from bus.messages.build import AskInstances, BuildRejected, InstanceDetails, InstancesFound, InstanceState
from bus.messages.hosts import AskHosts, HostSet, HostsFound, SetHost
from bus.messages.keeping import (
    CampaignChanged,
    CampaignHost,
    CampaignId,
    CampaignState,
    MoveBudget,
    Movement,
    MovementChanged,
    MovementId,
)
from bus.messages.planning import AskDrain, DrainedInstance, DrainFound
from bus.messages.projects import AskGroups, GroupsFound
from bus.workers.connections import Station
from engine.flavors import InstanceId
from engine.hosts import HostMode, HostState, host_in_cell
from engine.inventories import GroupId
from keeper import store_sql as rows
from keeper.core.campaigns import (
    GOING,
    GRANTED,
    MOVING,
    OPEN,
    OPEN_STAGES,
    OUT,
    PLANNED,
    WAITING,
    after_answer,
    after_look,
    as_planned,
    emptied,
    ends_as,
    hosts_to_begin,
    is_guest,
    may_wait,
    order_for,
    planned_for,
    returned,
    staged,
    why_not_emptied,
    withdrawn,
)
from keeper.core.grants import HOUR, MovementLedger, decide_grants, first_of_unit, units_of
from keeper.hooks import Hooks
from keeper.metrics import CAMPAIGNS, MOVEMENTS
from keeper.settings import KeeperPace, KeeperSettings
from keeper.store_sql import KeeperStore
from kit.errors import Operational, WrongAnswer
from kit.metrics import Readings
from kit.parts import Periodic, batches_of

log = logging.getLogger(__name__)

# A keeper works on so many campaigns at a time.
HELD_MAX = 20
# One question to schedulers is about so many instances, hosts to avoid, or changes to tell.
ASKED_MAX = 200
AVOIDED_MAX = 1000
SAY_S = 5.0

M = TypeVar("M", bound=Message)
# The active members of groups.
Active = Mapping[GroupId, AbstractSet[InstanceId]]
AskAll = Callable[[Sequence[Message]], Awaitable[Sequence[Message]]]


async def asked(ask_all: AskAll, questions: Sequence[Message], kind: type[M]) -> list[M]:
    """The answers to these questions, which are of this kind."""
    answers = await ask_all(questions)
    if wrong := [each for each in answers if not isinstance(each, kind)]:
        raise WrongAnswer(f"a scheduler answered a keeper by {wrong[0]!r}")
    return [each for each in answers if isinstance(each, kind)]


async def pages(ask_all: AskAll, question: Any, kind: type[M]) -> AsyncIterator[Any]:
    """All pages of the answer to this question."""
    while question is not None:
        page: Any = (await asked(ask_all, (question,), kind))[0]
        yield page
        question = structs.replace(question, after=page.next) if page.next else None


class CampaignDriver:
    """A part that works on the campaigns that this process holds."""

    def __init__(
        self,
        station: Station,
        store: KeeperStore,
        hooks: Hooks,
        settings: KeeperSettings,
        *,
        id_: UUID,
        clock: Callable[[], datetime],
        pace: KeeperPace,
    ) -> None:
        self._station = station
        self._ask_all = station.ask_all
        self._store = store
        self._hooks = hooks
        self._id = id_
        self._clock = clock
        self._pace = pace
        self._settings = settings
        self._rounds = Periodic(
            "work on campaigns",
            self._round,
            lambda: pace.round_s if self._held else pace.idle_s,
            # Each step may be repeated, by this keeper or by another one.
            is_cut_short=True,
            chance=station.chance,
        )
        self._pruning = Periodic(
            "forget old campaigns", self._forget, pace.prune_s, is_cut_short=True, chance=station.chance
        )
        self.parts = (self._rounds, self._pruning)
        self._held = 0
        # Until when a movement that could not be granted rests; and when the guests of a host were last listed.
        self._rests: dict[MovementId, datetime] = {}
        self._listed: dict[tuple[CampaignId, str], datetime] = {}
        self._seen: Counter[tuple[str, ...]] = Counter()

    async def run(self) -> None:
        async with self._hooks, asyncio.TaskGroup() as tasks:
            for part in self.parts:
                tasks.create_task(part.run())
        # So that others need not wait for the end of its leases.
        with suppress(Operational):
            async with self._store.transaction() as transaction:
                await transaction.run(rows.let_go, self._id)

    async def stop(self) -> None:
        for part in self.parts:
            await part.stop()

    @property
    def readings(self) -> Readings:
        return (MOVEMENTS.numbers(self._seen), CAMPAIGNS.numbers({(): self._held}))

    def wake(self) -> None:
        """Begin a round now: there is something to do."""
        self._rounds.wake()

    async def _round(self) -> None:
        now = self._clock()
        until = now + timedelta(seconds=self._pace.lease_s)
        async with self._store.transaction() as transaction:
            held = await transaction.run(rows.take, self._id, now, until, HELD_MAX)
            mine = await transaction.run(rows.held_by, self._id)
        self._held = len(mine)
        self._hooks.keep_only(mine)
        self._rests = {id_: until for id_, until in self._rests.items() if until > now}
        async with asyncio.TaskGroup() as tasks:
            for campaign in held:
                tasks.create_task(self._work_on(campaign))
        await self._say()

    async def _work_on(self, campaign: CampaignState) -> None:
        await self._look(campaign)
        # What a keeper that died has not sent yet.
        await self._send(campaign)
        for host in await self._out(campaign):
            await self._step(campaign, host)
        if campaign.life == "running":
            await self._begin_hosts(campaign)
            if await self._grant(campaign):
                await self._send(campaign)
        elif campaign.life != "paused":
            await self._end_what_waits(campaign)
        await self._note_end(campaign)

    # What moves

    async def _look(self, campaign: CampaignState) -> None:
        """Look at the instances that move, and note which have arrived or failed."""
        moving = await self._store.read(rows.movements_of, campaign.id, MOVING)
        told = await self._instances([each.instance for each in moving])
        now = self._clock()
        ended = [each for each in moving if after_look(each, told.get(each.instance), now) is not each]
        await self._change(ended, lambda each: after_look(each, told.get(each.instance), now))

    async def _instances(self, ids: Sequence[InstanceId]) -> dict[InstanceId, InstanceState]:
        told: dict[InstanceId, InstanceState] = {}
        questions = [
            AskInstances(instances=tuple(some), limit=ASKED_MAX) for some in batches_of(ids, ASKED_MAX)
        ]
        while questions:
            found = await asked(self._ask_all, questions, InstancesFound)
            told |= {each.id: each for page in found for each in page.instances}
            # A page ends where a message has no room for more.
            questions = [
                structs.replace(question, after=page.next)
                for question, page in zip(questions, found, strict=True)
                if page.next is not None
            ]
        return told

    async def _change(
        self, seen: Sequence[Movement], after: Callable[[Movement], Movement]
    ) -> Sequence[Movement]:
        """Decide on these movements as they are now, unless another order was sent for one since they were seen. Returns those that
        changed.
        """
        if not seen:
            return ()
        requests = {each.id: (each.request_id, each.life) for each in seen}
        async with self._store.transaction() as transaction:
            stored = await transaction.run(rows.lock_movements, [*requests])
            pairs = [(row, after(row)) for row in stored if (row.request_id, row.life) == requests[row.id]]
            changed = [new for old, new in pairs if new is not old]
            await transaction.run(rows.save_movements, changed)
        for old, new in pairs:
            if new.failures > old.failures:
                self._seen["failed",] += 1
                self._rest((new,))
                log.info(
                    "movement of instance %s from host %s failed: %s", new.instance, new.host, new.reason
                )
            if new.life != old.life and new.life in ("done", "given_up", "withdrawn"):
                self._seen[new.life,] += 1
        return changed

    def _rest(self, movements: Iterable[Movement]) -> None:
        until = self._clock() + timedelta(seconds=self._pace.rest_s)
        self._rests.update(dict.fromkeys([each.id for each in movements], until))

    async def _send(self, campaign: CampaignState) -> None:
        """Send the orders of what is granted."""
        units: dict[object, list[Movement]] = {}
        for each in await self._store.read(rows.movements_of, campaign.id, GRANTED):
            units.setdefault(each.request_id, []).append(each)
        if not units:
            return
        now = self._clock()
        orders = [
            order_for(sorted(unit, key=lambda each: each.instance), campaign.work, now)
            for unit in units.values()
        ]
        answers = dict(zip(units, await self._ask_all(orders), strict=True))
        for answer in answers.values():
            if not isinstance(answer, InstancesFound | BuildRejected):
                raise WrongAnswer(f"a scheduler answered an order to move by {answer!r}")
        granted = [each for unit in units.values() for each in unit]
        await self._change(granted, lambda each: after_answer(each, answers[each.request_id], self._clock()))

    # Hosts

    async def _out(self, campaign: CampaignState) -> Sequence[CampaignHost]:
        async with self._store.transaction() as transaction:
            return await transaction.run(rows.hosts_at, campaign.id, OUT, AVOIDED_MAX)

    async def _begin_hosts(self, campaign: CampaignState) -> None:
        async with self._store.transaction() as transaction:
            stages = (await transaction.run(rows.count_stages, (campaign.id,))).get(campaign.id, {})
            waiting = await transaction.run(rows.hosts_at, campaign.id, WAITING, AVOIDED_MAX)
        out = sum(stages.get(each, 0) for each in OUT)
        for host in hosts_to_begin(campaign.work, out, waiting, stages.get("done", 0)):
            why = "" if campaign.work.kind == "evacuate" else await self._set(campaign, host, "draining")
            now = self._clock()
            begun = staged(host, "failed", now, why) if why else staged(host, "emptying", now)
            if await self._save(campaign, host, begun) and not why:
                await self._step(campaign, begun)

    async def _set(self, campaign: CampaignState, host: CampaignHost, mode: HostMode) -> str:
        """Set the host to this mode. Returns why it could not be."""
        name = host_in_cell(host.cell, host.host)
        reason = (
            ""
            if mode == "up"
            else f"{campaign.work.reason or 'it is emptied'} (campaign {campaign.name})"[:255]
        )
        order = SetHost(host=name, mode=mode, reason=reason, for_user=f"campaign {campaign.name}"[:100])
        (answer,) = await self._ask_all((order,))
        if not isinstance(answer, HostSet | BuildRejected):
            raise WrongAnswer(f"a scheduler answered an order to set a host by {answer!r}")
        return answer.reason if isinstance(answer, BuildRejected) else ""

    async def _save(self, campaign: CampaignState, was: CampaignHost, host: CampaignHost) -> bool:
        """Write the host, if it is at the stage that it was at."""
        async with self._store.transaction() as transaction:
            now = await transaction.run(rows.lock_host, campaign.id, host.id)
            if now is None or (now.stage, now.stage_at) != (was.stage, was.stage_at):
                return False
            await transaction.run(rows.save_host, campaign.id, host, is_news=host.stage != was.stage)
        if host.stage != was.stage:
            log.info("campaign %s: host %s is %s %s", campaign.name, host.host, host.stage, host.reason)
        return True

    async def _step(self, campaign: CampaignState, host: CampaignHost) -> None:
        """Bring a host that is out one stage further, if it is so far."""
        match host.stage:
            case "emptying":
                after = await self._after_emptying(campaign, host)
            case "hook":
                after = await self._after_hook(campaign, host)
            case _:
                after = await self._after_return(campaign, host)
        if after != host:
            await self._save(campaign, host, after)

    async def _after_emptying(self, campaign: CampaignState, host: CampaignHost) -> CampaignHost:
        now = self._clock()
        known = await self._store.read(rows.movements_of, campaign.id, (*OPEN, "done", "given_up"), host.host)
        known = [each for each in known if each.cell == host.cell]
        is_over, has_others = not any(each.life in OPEN for each in known), False
        key = campaign.id, str(host.id)
        if is_over or self._listed.get(key, now) <= now:
            self._listed[key] = now + timedelta(seconds=self._pace.list_s)
            if why := why_not_emptied(campaign.work, await self._host(host)):
                planned = [each for each in known if each.life == "planned"]
                await self._change(planned, lambda each: withdrawn(each, why, now))
                return staged(host, "failed", now, why)
            guests = await self._guests_on(host)
            known = await self._plan_guests(campaign, host, guests, known)
            has_others = bool({each.id for each, _ in guests} - {each.instance for each in known})
        lives = Counter(each.life for each in known)
        stays = [each.reason for each in known if each.life == "given_up"]
        left = sum(lives[each] for each in OPEN)
        seen = structs.replace(
            host, left=left, moved=lives["done"], stay=len(stays), reason=stays[0] if stays else ""
        )
        if left or not is_over or (has_others and campaign.life not in ("running", "paused")):
            return seen
        after = emptied(seen, campaign.work, now)
        is_to_be_down = campaign.work.kind == "drain" and campaign.work.then == "down"
        if after.stage == "done" and is_to_be_down and (why := await self._set(campaign, host, "down")):
            return staged(seen, "failed", now, why)
        return after

    async def _guests_on(self, host: CampaignHost) -> list[tuple[InstanceState, InstanceDetails]]:
        question = AskInstances(host=host_in_cell(host.cell, host.host), living=True, limit=ASKED_MAX)
        return [
            each
            async for page in pages(self._ask_all, question, InstancesFound)
            for each in zip(page.instances, page.details, strict=True)
            if is_guest(each[0])
        ]

    async def _plan_guests(
        self,
        campaign: CampaignState,
        host: CampaignHost,
        guests: Sequence[tuple[InstanceState, InstanceDetails]],
        known: Sequence[Movement],
    ) -> list[Movement]:
        """Write a movement for each guest that has none, and withdraw those of instances that are not there any more. Returns the host's
        movements.
        """
        now, ids = self._clock(), {each.id for each, _ in guests}
        have = {each.instance for each in known if each.life in OPEN or each.life == "given_up"}
        may_begin = campaign.life in ("running", "paused")
        new = [each for each in guests if may_begin and each[0].id not in have]
        planned = planned_for(campaign, host, new, now)
        async with self._store.transaction() as transaction:
            await transaction.run(rows.add_movements, planned)
        gone = [each for each in known if each.life == "planned" and each.instance not in ids]
        await self._change(gone, lambda each: withdrawn(each, "it has left its host by itself", now))
        # One that was given up, and has left since by an order of a person, does not stay.
        return [
            each
            for each in (*known, *planned)
            if each not in gone and (each.life != "given_up" or each.instance in ids)
        ]

    async def _after_hook(self, campaign: CampaignState, host: CampaignHost) -> CampaignHost:
        now = self._clock()
        if not self._hooks.runs(campaign, host) and campaign.life != "running":
            return (
                host
                if campaign.life == "paused"
                else staged(host, "skipped", now, f"its campaign is {campaign.life}")
            )
        why = self._hooks.result(campaign, host)
        if why is None:
            return host
        return staged(host, "failed", now, why) if why else staged(host, "returning", now)

    async def _after_return(self, campaign: CampaignState, host: CampaignHost) -> CampaignHost:
        after = returned(host, await self._host(host), campaign.work, self._clock())
        if after.stage == "done" and (why := await self._set(campaign, host, "up")):
            return staged(host, "failed", self._clock(), why)
        return after

    async def _host(self, host: CampaignHost) -> HostState | None:
        question = AskHosts(name=host_in_cell(host.cell, host.host))
        (found,) = await asked(self._ask_all, (question,), HostsFound)
        return next((each for each in found.hosts if each.id == host.id), None)

    # Grants

    async def _grant(self, campaign: CampaignState) -> int:
        """Plan guests of hosts that are emptied, and have those granted that find a host. Returns how many were granted."""
        now = self._clock()
        going = await self._store.read(rows.movements_of, campaign.id, GOING)
        free = campaign.work.guests_at_once - sum(bool(each.to) for each in going)
        planned = await self._store.read(rows.movements_of, campaign.id, PLANNED)
        units = units_of([each for each in planned if self._rests.get(each.id, now) <= now])
        if free <= 0 or not units:
            return 0
        active = await self._active({each.group for each in planned if each.group})
        # No host is sought for those that budgets hold up wherever they would go.
        held_up = await self._held_up(campaign, units, free, active)
        chosen = _first_of([unit for unit in units if unit[0].id not in held_up], max(2 * free, 1))
        seen = await self._planned(campaign, chosen, is_alone=not going) if chosen else []
        seen += [[structs.replace(each, reason=held_up[each.id])] for each in planned if each.id in held_up]
        granted, waits = await self._decided(campaign, planned, seen, active)
        self._rest(each for unit in seen for each in unit if each.id in waits and each.id not in held_up)
        self._seen["granted",] += len(granted)
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

    async def _planned(
        self, campaign: CampaignState, units: Sequence[Sequence[Movement]], *, is_alone: bool
    ) -> list[list[Movement]]:
        """These units, each with the host that schedulers would choose for it. Guests do not go to a host that the campaign empties later,
        unless there is no other.
        """
        work, now = campaign.work, self._clock()
        async with self._store.transaction() as transaction:
            there = await transaction.run(
                rows.hosts_at, campaign.id, (*OPEN_STAGES, "done", "failed"), AVOIDED_MAX
            )
        stay_away = [each for each in there if each.stage in OPEN_STAGES or work.kind != "restart"]
        plans: dict[InstanceId, DrainedInstance] = {}
        for avoided in (stay_away, [each for each in stay_away if each.stage != "waiting"]):
            left = [
                each.instance
                for unit in units
                for each in unit
                if each.instance not in plans or not plans[each.instance].to
            ]
            if not left or (plans and len(avoided) == len(stay_away)):
                break
            question = AskDrain(
                host="",
                instances=tuple(left),
                avoid=tuple([host_in_cell(each.cell, each.host) for each in avoided]),
                to=work.to,
                evacuate=work.kind == "evacuate",
            )
            (found,) = await asked(self._ask_all, (question,), DrainFound)
            plans |= {each.id: each for each in found.instances}
        nothing = DrainedInstance(id=units[0][0].instance, reason="no scheduler knows it")
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
            stored = {
                each.id: each
                for each in await transaction.run(rows.lock_movements, [*{each.id for each in changed}])
            }
            # What another keeper has changed since is planned anew.
            units = [[each for each in unit if stored.get(each.id) == was[each.id]] for unit in seen]
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
        budgets = [each.budget for each in await self._store.read(rows.all_budgets)]
        if not groups or not any(each.alive_min is not None for each in budgets):
            return {}
        wanted = sorted(groups)
        found = await asked(self._ask_all, [AskGroups(id=each) for each in wanted], GroupsFound)
        members = {
            group: {InstanceId(each.consumer) for state in page.groups for each in state.members}
            for group, page in zip(wanted, found, strict=True)
        }
        told = await self._instances([each for some in members.values() for each in some])
        active = {id_ for id_, state in told.items() if state.state == "active"}
        return {group: some & active for group, some in members.items()}

    # The end

    async def _end_what_waits(self, campaign: CampaignState) -> None:
        """A campaign that was stopped or cancelled begins nothing more: withdraw what is planned, and skip the hosts that wait."""
        now = self._clock()
        why = f"its campaign is {campaign.life}"
        planned = await self._store.read(rows.movements_of, campaign.id, PLANNED)
        await self._change(
            planned, lambda each: withdrawn(each, why, now) if each.life == "planned" else each
        )
        async with self._store.transaction() as transaction:
            for host in await transaction.run(
                rows.hosts_at, campaign.id, ("waiting", "emptying"), AVOIDED_MAX
            ):
                lives = await transaction.run(rows.count_of_host, campaign.id, host.host)
                if not any(lives.get(each) for each in OPEN):
                    left = structs.replace(host, left=0, moved=lives.get("done", 0))
                    await transaction.run(rows.save_host, campaign.id, staged(left, "skipped", now, why))

    async def _note_end(self, campaign: CampaignState) -> None:
        """Note whether the campaign has ended, and whether anything of it goes on."""
        async with self._store.transaction() as transaction:
            current = await transaction.run(rows.lock_campaign, campaign.id)
            if current is None:
                return
            stages = (await transaction.run(rows.count_stages, (campaign.id,))).get(campaign.id, {})
            after = ends_as(current, stages)
            goes_on = any(stages.get(each) for each in OPEN_STAGES)
            if after.life in ("running", "paused") or (goes_on and after is current):
                return
            if after is not current or not goes_on:
                ended = structs.replace(
                    after, ended_at=after.ended_at or (None if goes_on else self._clock())
                )
                await transaction.run(rows.save_campaign, ended, is_open=goes_on)
        log.info("campaign %s is %s %s", after.name, after.life, after.reason)

    async def _say(self) -> None:
        """Tell of what has changed, until the broker has it."""
        while True:
            unsaid = await self._store.read(rows.unsaid, ASKED_MAX)
            messages: list[Message] = [
                CampaignChanged(campaign=each.id, state=each) for each in unsaid.campaigns
            ]
            messages += [CampaignChanged(campaign=campaign, host=host) for campaign, host in unsaid.hosts]
            messages += [MovementChanged(movement=each) for each in unsaid.movements]
            if not messages or not await self._station.publisher.send_within(SAY_S, messages):
                return
            async with self._store.transaction() as transaction:
                await transaction.run(rows.note_said, unsaid)

    async def _forget(self) -> None:
        before = self._clock() - timedelta(seconds=self._settings.kept_s)
        gone = HELD_MAX
        while gone == HELD_MAX:
            async with self._store.transaction() as transaction:
                gone = await transaction.run(rows.forget, before, HELD_MAX)


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
