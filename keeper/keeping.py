"""Works on campaigns, round by round.

A round looks at the movements under way, begins with further hosts, plans their guests, has movements granted, and sends their orders.
It reads the rows, asks schedulers about all of a campaign's hosts or guests at once (asking.py), and decides on locked rows (core/).
Each step may be repeated: a keeper that dies is followed by another one, which finds in the rows how far it was. The
row of a granted movement has the id of its order, so each keeper sends the same order.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from msgspec import structs

from bus.messages.build import BuildRejected, InstancesFound
from bus.messages.keeping import (
    CAMPAIGN_HOSTS_MAX,
    CampaignChanged,
    CampaignHost,
    CampaignId,
    CampaignState,
    Movement,
    MovementChanged,
)
from bus.messages.questions import QuestionChanged
from bus.workers.connections import Station
from engine.hosts import HostMode, host_in_cell
from engine.inventories import ProviderId
from keeper import store_sql as rows
from keeper.asking import LISTED_MAX, Schedulers, named
from keeper.balancing import Balancing
from keeper.core.balance import after_steps
from keeper.core.campaigns import (
    FENCE,
    GOING,
    GRANTED,
    HELD,
    MOVING,
    OPEN,
    OPEN_STAGES,
    OUT,
    PLANNED,
    WAITING,
    after_answer,
    after_listing,
    after_look,
    claimed_on,
    ends_as,
    hosts_to_begin,
    is_at_stage_of,
    mode_when_done,
    order_for,
    returned,
    staged,
    why_not_emptied,
    withdrawn,
)
from keeper.core.fencing import after_fence, after_fenced, begun, closed, question_about
from keeper.granting import Granting
from keeper.hooks import Hooks
from keeper.metrics import CAMPAIGNS, MOVEMENTS, QUESTIONS
from keeper.recovering import kept_by_policy, rules_now
from keeper.settings import KeeperPace, KeeperSettings
from keeper.store_sql import KeeperStore
from kit.errors import Operational, WrongAnswer
from kit.metrics import Readings
from kit.parts import Periodic

log = logging.getLogger(__name__)

# A keeper works on so many campaigns at a time.
HELD_MAX = 20
# So many changes are told at once.
SAID_MAX = 200
SAY_S = 5.0

HostKey = tuple[CampaignId, ProviderId]


class CampaignDriver:
    """A part that works on the campaigns that this process holds."""

    def __init__(
        self,
        station: Station,
        schedulers: Schedulers,
        store: KeeperStore,
        balancing: Balancing,
        *,
        hooks: Hooks,
        settings: KeeperSettings,
        id_: UUID,
        clock: Callable[[], datetime],
        pace: KeeperPace,
    ) -> None:
        self._station = station
        self._schedulers = schedulers
        self._balancing = balancing
        self._granting = Granting(schedulers, store, balancing, clock, pace)
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
        self._asked = 0
        # When the guests of a host are to be listed again, though some of its movements go on.
        self._list_at: dict[HostKey, datetime] = {}
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
        return (
            MOVEMENTS.numbers(self._seen),
            CAMPAIGNS.numbers({(): self._held}),
            QUESTIONS.numbers({(): self._asked}),
        )

    def wake(self) -> None:
        """Begin a round now: there is something to do."""
        self._rounds.wake()

    async def _round(self) -> None:
        now = self._clock()
        until = now + timedelta(seconds=self._pace.lease_s)
        async with self._store.transaction() as transaction:
            held = await transaction.run(rows.take, self._id, now, until, HELD_MAX)
            mine = await transaction.run(rows.held_by, self._id)
            self._asked = await transaction.run(rows.count_open)
        self._held = len(mine)
        self._hooks.keep_only(mine)
        self._list_at = {key: at for key, at in self._list_at.items() if key[0] in mine}
        async with asyncio.TaskGroup() as tasks:
            for campaign in held:
                tasks.create_task(self._work_on(campaign))
        await self._say()

    async def _work_on(self, campaign: CampaignState) -> None:
        await self._look(campaign)
        # A keeper that died may have left orders unsent.
        await self._send(campaign)
        out = await self._store.read(rows.hosts_at, campaign.id, (*HELD, *OUT), CAMPAIGN_HOSTS_MAX)
        await self._step(campaign, out)
        if campaign.life == "running":
            await self._begin_hosts(campaign)
            if granted := await self._granting.grant(campaign):
                self._seen["granted",] += granted
                await self._send(campaign)
        elif campaign.life != "paused":
            await self._end_what_waits(campaign)
        await self._note_end(campaign)

    # What moves

    async def _look(self, campaign: CampaignState) -> None:
        """Look at the instances that move, and note which have arrived or failed."""
        moving = await self._store.read(rows.movements_of, campaign.id, MOVING)
        told = await self._schedulers.instances([each.instance for each in moving])
        now = self._clock()
        ended = [each for each in moving if after_look(each, told.get(each.instance), now) is not each]
        await self._change(ended, lambda each: after_look(each, told.get(each.instance), now))

    async def _change(self, seen: Sequence[Movement], after: Callable[[Movement], Movement]) -> None:
        """Decide on these movements as they are now, unless another order was sent for one since they were seen."""
        if not seen:
            return
        requests = {each.id: (each.request_id, each.life) for each in seen}
        async with self._store.transaction() as transaction:
            stored = await transaction.run(rows.lock_movements, [*requests])
            pairs = [(row, after(row)) for row in stored if (row.request_id, row.life) == requests[row.id]]
            changed = [new for old, new in pairs if new is not old]
            await transaction.run(rows.save_movements, changed)
        for old, new in pairs:
            if new.failures > old.failures:
                self._seen["failed",] += 1
                self._granting.rest((new,))
                log.info(
                    "movement of instance %s from host %s failed: %s", new.instance, new.host, new.reason
                )
            if new.life != old.life and new.life in ("done", "given_up", "withdrawn"):
                self._seen[new.life,] += 1

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
        answers = dict(zip(units, await self._schedulers.ask_all(orders), strict=True))
        for answer in answers.values():
            if not isinstance(answer, InstancesFound | BuildRejected):
                raise WrongAnswer(f"a scheduler answered an order to move by {answer!r}")
        granted = [each for unit in units.values() for each in unit]
        await self._change(granted, lambda each: after_answer(each, answers[each.request_id], self._clock()))

    # Hosts

    async def _begin_hosts(self, campaign: CampaignState) -> None:
        stages = (await self._store.read(rows.count_stages, (campaign.id,))).get(campaign.id, {})
        waiting = await self._store.read(rows.hosts_at, campaign.id, WAITING, LISTED_MAX)
        out = sum(stages.get(each, 0) for each in OUT)
        turns = hosts_to_begin(campaign.work, out, waiting, stages.get("done", 0))
        now = [begun(each, campaign.work, self._clock()) for each in turns]
        if campaign.work.kind != "evacuate":
            now = await self._set(campaign, now, "draining")
        saved = await self._save(campaign, turns, now)
        await self._step(campaign, [each for each in saved if each.stage in OUT])

    async def _set(
        self, campaign: CampaignState, hosts: Sequence[CampaignHost], mode: HostMode
    ) -> list[CampaignHost]:
        """Set these hosts to this mode. Those for which that is refused have failed."""
        refused, now = await self._schedulers.set_hosts(campaign, hosts, mode), self._clock()
        return [
            staged(each, "failed", now, refused[each.id]) if each.id in refused else each for each in hosts
        ]

    async def _step(self, campaign: CampaignState, hosts: Sequence[CampaignHost]) -> None:
        """Bring hosts that are out one stage further, if they are so far."""
        at = {stage: [each for each in hosts if each.stage == stage] for stage in (*HELD, *OUT)}
        after = [
            *await self._after_holding(campaign, at["held"]),
            *await self._after_fencing(campaign, [each for stage in FENCE for each in at[stage]]),
            *await self._after_emptying(campaign, at["emptying"]),
            *await self._after_giving(campaign, at["giving"]),
            *[self._after_hook(campaign, each) for each in at["hook"]],
            *await self._after_return(campaign, at["returning"]),
        ]
        if (mode := mode_when_done(campaign.work)) is not None:
            done = [each for each in after if each.stage == "done"]
            after = [
                *(each for each in after if each.stage != "done"),
                *await self._set(campaign, done, mode),
            ]
        await self._save(campaign, hosts, after)

    async def _save(
        self, campaign: CampaignState, was: Sequence[CampaignHost], after: Sequence[CampaignHost]
    ) -> Sequence[CampaignHost]:
        """Write these hosts, if they are at the stages that they were at. Returns those that were written."""
        old = {each.id: each for each in was}
        changed = [each for each in after if each != old[each.id]]
        if not changed:
            return ()
        async with self._store.transaction() as transaction:
            now = await transaction.run(rows.lock_hosts, campaign.id, [each.id for each in changed])
            saved = [
                each for each in changed if each.id in now and is_at_stage_of(now[each.id], old[each.id])
            ]
            await transaction.run(rows.save_hosts, campaign.id, saved)
            await self._ask(transaction.run, campaign, old, saved)
        for each in saved:
            if each.stage != old[each.id].stage:
                log.info("campaign %s: host %s is %s %s", campaign.name, each.host, each.stage, each.reason)
        return saved

    async def _ask(
        self,
        run: Callable[..., Awaitable[Any]],
        campaign: CampaignState,
        old: Mapping[ProviderId, CampaignHost],
        saved: Sequence[CampaignHost],
    ) -> None:
        """Ask about the hosts that a person must decide on now. Questions about those that have gone on by themselves do not matter any more."""
        decided = {each.id: each for each in saved if old[each.id].stage == "asked" != each.stage}
        for question in await run(rows.open_about, campaign.id, decided) if decided else ():
            host = next(each for id_, each in decided.items() if id_ == question.host_id)
            why = f"host {host.host} is {host.stage}: {host.reason}"
            await run(rows.save_question, closed(question, "void", self._clock(), reason=why))
        let_go = any(old[each.id].stage == "held" for each in saved)
        if let_go and not await run(rows.hosts_at, campaign.id, HELD, 1):
            for question in await run(rows.open_about, campaign.id, (campaign.id,)):
                why = f"none of these hosts is held any more: {saved[0].reason}"
                await run(rows.save_question, closed(question, "void", self._clock(), reason=why))
        asked = [each for each in saved if each.stage == "asked" != old[each.id].stage]
        await run(rows.ask, [question_about(campaign, each) for each in asked])

    async def _after_holding(
        self, campaign: CampaignState, hosts: Sequence[CampaignHost]
    ) -> list[CampaignHost]:
        """Hosts about which a person is asked. Those that are up again are let go."""
        told, now = await self._schedulers.hosts_of(hosts), self._clock()
        whys = {each.id: why_not_emptied(campaign.work, each, told.get(each.id)) for each in hosts}
        return [staged(each, "failed", now, whys[each.id]) if whys[each.id] else each for each in hosts]

    async def _after_fencing(
        self, campaign: CampaignState, hosts: Sequence[CampaignHost]
    ) -> list[CampaignHost]:
        """Hosts that must be off before they are emptied."""
        if not hosts:
            return []
        told = await self._schedulers.hosts_of(hosts)
        after: list[CampaignHost] = []
        for each in hosts:
            seen, runs = told.get(each.id), self._hooks.runs(campaign, each)
            if campaign.life not in ("running", "paused") and not runs:
                after.append(staged(each, "skipped", self._clock(), f"its campaign is {campaign.life}"))
                continue
            back = "" if runs or each.stage == "fenced" else why_not_emptied(campaign.work, each, seen)
            if back:
                after.append(staged(each, "failed", self._clock(), back))
            elif each.stage == "fenced":
                after.append(after_fenced(each, seen, self._clock()))
            elif each.stage == "fencing" and (runs or campaign.life == "running"):
                after.append(self._after_fence(campaign, each))
            else:
                after.append(each)
        # One that was heard until it was switched off is refused until it has been silent for long enough.
        off = [each for each in after if each.stage == "fenced" and each.id in told]
        await self._schedulers.set_hosts(campaign, off, "dead")
        return after

    def _after_fence(self, campaign: CampaignState, host: CampaignHost) -> CampaignHost:
        work = campaign.work
        why = self._hooks.result(campaign, host, host.fence, work.fence_s)
        return host if why is None else after_fence(host, host.fence, why, self._clock())

    async def _after_emptying(
        self, campaign: CampaignState, hosts: Sequence[CampaignHost]
    ) -> list[CampaignHost]:
        if not hosts:
            return []
        now, lives = self._clock(), (*OPEN, "done", "given_up")
        known: dict[str, list[Movement]] = {named(each): [] for each in hosts}
        names = [each.host for each in hosts]
        for movement in await self._store.read(rows.movements_of, campaign.id, lives, names):
            known.get(host_in_cell(movement.cell, movement.host), []).append(movement)
        # Those whose movements have all ended, and now and then the others.
        due = [
            each
            for each in hosts
            if not any(one.life in OPEN for one in known[named(each)])
            or self._list_at.get((campaign.id, each.id), now) <= now
        ][:LISTED_MAX]
        list_at = now + timedelta(seconds=self._pace.list_s)
        self._list_at.update(dict.fromkeys([(campaign.id, each.id) for each in due], list_at))
        # The claims are read before the guests are listed: a guest that is on its way there may come meanwhile.
        loads = await self._schedulers.loads_called([named(each) for each in due])
        told = {host.id: host for host, _ in loads}
        claimed = {host.id: claimed_on(use) for host, use in loads}
        for each in due:
            if why_not_emptied(campaign.work, each, told.get(each.id)):
                # What of it goes on may fail, and is not to be granted again.
                del self._list_at[campaign.id, each.id]
        guests = await self._schedulers.guests_on([named(each) for each in due])
        kept: dict[str, str] = {}
        if campaign.work.by_policy:
            rules = await rules_now(self._store)
            for each in due:
                if each.id in told:
                    name = named(each)
                    guests[name], kept[name] = kept_by_policy(rules, told[each.id], guests[name])
        seen = [
            after_listing(
                *(campaign, each, known[named(each)], told.get(each.id), guests.get(named(each))),
                now=now,
                kept=kept.get(named(each), ""),
                claimed=claimed.get(each.id, ""),
                claimed_s=self._pace.claimed_s,
            )
            for each in hosts
        ]
        if planned := [movement for each in seen for movement in each.planned]:
            async with self._store.transaction() as transaction:
                await transaction.run(rows.add_movements, planned)
        whys = {id_: why for each in seen for id_, why in each.withdrawn.items()}
        gone = [movement for some in known.values() for movement in some if movement.id in whys]
        await self._change(gone, lambda each: withdrawn(each, whys[each.id], now))
        return [each.host for each in seen]

    async def _after_giving(
        self, campaign: CampaignState, hosts: Sequence[CampaignHost]
    ) -> list[CampaignHost]:
        """Hosts that guests leave by a plan."""
        if not hosts:
            return []
        lives, names = (*OPEN, "done", "given_up", "withdrawn"), [each.host for each in hosts]
        known: dict[str, list[Movement]] = {named(each): [] for each in hosts}
        for movement in await self._store.read(rows.movements_of, campaign.id, lives, names):
            known.get(host_in_cell(movement.cell, movement.host), []).append(movement)
        told, now = await self._schedulers.hosts_of(hosts), self._clock()
        seen = [after_steps(campaign, each, known[named(each)], told.get(each.id), now) for each in hosts]
        whys = {id_: why for each in seen for id_, why in each.withdrawn.items()}
        gone = [each for some in known.values() for each in some if each.id in whys]
        await self._change(gone, lambda each: withdrawn(each, whys[each.id], now))
        return [each.host for each in seen]

    def _after_hook(self, campaign: CampaignState, host: CampaignHost) -> CampaignHost:
        now = self._clock()
        if campaign.life != "running" and not self._hooks.runs(campaign, host):
            is_paused = campaign.life == "paused"
            return host if is_paused else staged(host, "skipped", now, f"its campaign is {campaign.life}")
        why = self._hooks.result(campaign, host, campaign.work.hook, campaign.work.hook_s)
        if why is None:
            return host
        return staged(host, "failed", now, why) if why else staged(host, "returning", now)

    async def _after_return(
        self, campaign: CampaignState, hosts: Sequence[CampaignHost]
    ) -> list[CampaignHost]:
        told, now = await self._schedulers.hosts_of(hosts), self._clock()
        return [returned(each, told.get(each.id), campaign.work, now) for each in hosts]

    # The end

    async def _end_what_waits(self, campaign: CampaignState) -> None:
        """A campaign that was stopped or cancelled begins nothing more: withdraw what is planned, and skip the hosts that wait."""
        now, why = self._clock(), f"its campaign is {campaign.life}"
        planned = await self._store.read(rows.movements_of, campaign.id, PLANNED)
        await self._change(planned, lambda each: withdrawn(each, why, now))
        waiting = await self._store.read(rows.hosts_at, campaign.id, (*WAITING, *HELD), CAMPAIGN_HOSTS_MAX)
        await self._save(campaign, waiting, [staged(each, "skipped", now, why) for each in waiting])

    async def _note_end(self, campaign: CampaignState) -> None:
        """Note whether the campaign has ended, and whether anything of it goes on."""
        async with self._store.transaction() as transaction:
            current = await transaction.run(rows.lock_campaign, campaign.id)
            if current is None:
                return
            stages = (await transaction.run(rows.count_stages, (campaign.id,))).get(campaign.id, {})
            after = ends_as(current, stages)
            lives = (await transaction.run(rows.count_lives, (campaign.id,))).get(campaign.id, {})
            goes_on = any(stages.get(each) for each in OPEN_STAGES) or any(lives.get(each) for each in GOING)
            if after.life in ("running", "paused") or (goes_on and after is current):
                return
            if not goes_on and after.ended_at is None:
                after = structs.replace(after, ended_at=self._clock())
            if after is not current:
                await transaction.run(rows.save_campaign, after)
                log.info("campaign %s is %s %s", after.name, after.life, after.reason)
        if after.ended_at is not None and after.work.kind == "balance":
            reached = await self._balancing.figures(after.work)
            async with self._store.transaction() as transaction:
                ended = await transaction.run(rows.lock_campaign, after.id)
                if ended is not None:
                    await transaction.run(rows.save_campaign, structs.replace(ended, reached=reached))

    async def _say(self) -> None:
        """Tell of what has changed, until the broker has it."""
        while True:
            unsaid = await self._store.read(rows.unsaid, SAID_MAX)
            messages: list[CampaignChanged | MovementChanged | QuestionChanged] = [
                CampaignChanged(campaign=each.id, state=each) for each in unsaid.campaigns
            ]
            messages += [CampaignChanged(campaign=campaign, host=host) for campaign, host in unsaid.hosts]
            messages += [MovementChanged(movement=each) for each in unsaid.movements]
            messages += [QuestionChanged(question=each) for each in unsaid.questions]
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
