"""Keeping: the operator who places hosts, sets budgets and begins campaigns, and the checker of what keepers write and order.

The checker reads the keepers' rows after each commit, and shares no code with them.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from math import inf
from typing import TYPE_CHECKING, Any

import msgspec

from bus.codec import CODEC, known_messages
from bus.message import Message, Parcel
from bus.messages.build import BuildRejected
from bus.messages.hosts import HostPlace, HostsPlaced, PlaceHosts
from bus.messages.keeping import (
    AskBudgets,
    AskCampaignPlan,
    AskCampaigns,
    AskKeepingWeeks,
    AskMovements,
    BudgetsFound,
    BudgetState,
    CampaignChanged,
    CampaignHost,
    CampaignId,
    CampaignPlanned,
    CampaignsFound,
    CampaignState,
    DeleteBudget,
    KeepingWeeksFound,
    Movement,
    MovementChanged,
    MovementId,
    MovementsFound,
    SetBudget,
    SetCampaign,
    StartCampaign,
)
from bus.messages.moves import MoveInstance
from bus.messages.policies import AskPolicies, DeletePolicy, PoliciesFound, SetPolicy
from bus.messages.questions import AnswerQuestion, AskQuestions, QuestionsFound
from cell_conductor.core.rows import Instance
from engine.flavors import InstanceId, RequestId
from engine.inventories import ProviderId
from keeper.hooks import Hooks, Program
from laboratory.computes.faults import Dies
from scheduler_worker.core.instances.rows import InstanceRow
from tests.ledger_checker import breaches
from tests.simulation.drawing_keeping import PLACED_S
from tests.simulation.findings import Findings
from tests.simulation.host_history import short_id
from tests.simulation.loop import until_s
from tests.simulation.plan import BudgetOrder, CampaignOrder, FenceEnd, Plan
from tests.sqlite_memory import Tables

if TYPE_CHECKING:
    from tests.simulation.cloud import Cloud

KEEPING = "keeping"
# A host may be unknown for long, and one that is to be evacuated may not count as down yet.
ANSWERED_S, POLICIES_S = 2.5, 1.5
AGAIN_S, PLACED_UNTIL_S, BEGUN_UNTIL_S = 2.0, 40.0, 12.0
ASKED_S = (14.0, 32.0)

Ask = Callable[..., Awaitable[Message]]


class CampaignOperator:
    """Carries out what a plan says of places, budgets and campaigns. `ask` repeats a question until it has an answer of these kinds."""

    def __init__(self, plan: Plan, findings: Findings, ask: Ask) -> None:
        self._plan = plan
        self._findings = findings
        self._ask = ask

    def work(self) -> Iterator[Any]:
        """One coroutine for each order."""
        yield from (self._place(host, place) for host, place in self._plan.places.items())
        yield from map(self._set_budget, self._plan.budgets)
        yield from map(self._begin, self._plan.campaigns)
        if self._plan.campaigns:
            yield self._look()
        if self._plan.policies:
            yield self._set_policies()
            yield self._answer()

    async def _set_policies(self) -> None:
        """A policy is refused as long as its hosts are not known."""
        await until_s(POLICIES_S)
        for policy in self._plan.policies:
            while self._findings.now_s < PLACED_UNTIL_S:
                self._findings.log("operator", "sets {}", policy)
                if isinstance(
                    await self._ask(SetPolicy(policy=policy), PoliciesFound, BuildRejected), PoliciesFound
                ):
                    break
                await asyncio.sleep(AGAIN_S)
        await self._ask(AskPolicies(), PoliciesFound)
        await until_s(PLACED_UNTIL_S)
        last = self._plan.policies[-1]
        await self._ask(DeletePolicy(scope=last.scope, of=last.of), PoliciesFound)

    async def _answer(self) -> None:
        """Answer the keepers' questions by what is true: a host that has died is off, and one that is only silent is not."""
        died = {
            host: fault.after_s
            for fault in self._plan.script.faults
            if isinstance(fault, Dies)
            for host in fault.hosts
        }
        tried_again = set[ProviderId | None]()
        while True:
            await asyncio.sleep(ANSWERED_S)
            found = await self._ask(AskQuestions(), QuestionsFound)
            for each in found.questions if isinstance(found, QuestionsFound) else ():
                is_off = died.get(each.host, inf) <= self._findings.now_s
                # A fence that hangs is tried once more.
                again = is_off and "hangs" in each.text and each.host_id not in tried_again
                tried_again |= {each.host_id} if again else set()
                alone = "again" if again else "off" if is_off else "leave"
                answer = alone if each.host_id is not None else ("evacuate", "leave")[each.id.int % 2]
                self._findings.log("operator", "answers {} to {}", answer, each.text)
                self._findings.count(KEEPING, f"answered {answer}")
                await self._ask(
                    AnswerQuestion(question=each.id, answer=answer), QuestionsFound, BuildRejected
                )

    async def _place(self, host: str, place: str) -> None:
        await until_s(PLACED_S)
        order = PlaceHosts(hosts=(HostPlace(host=host, place=place),))
        while self._findings.now_s < PLACED_UNTIL_S:
            if isinstance(await self._ask(order, HostsPlaced, BuildRejected), HostsPlaced):
                return
            await asyncio.sleep(AGAIN_S)

    async def _set_budget(self, order: BudgetOrder) -> None:
        await until_s(order.at_s)
        budget = order.budget
        self._findings.log("operator", "{} {}", "deletes" if order.is_deleted else "sets", budget)
        await self._ask(
            DeleteBudget(name=budget.name) if order.is_deleted else SetBudget(budget=budget), BudgetsFound
        )

    async def _begin(self, planned: CampaignOrder) -> None:
        """Begin a campaign, and change it later. An evacuation is refused as long as its host counts as up."""
        await until_s(planned.at_s)
        order = StartCampaign(id=planned.id, name=planned.name, work=planned.work, join=planned.join)
        while True:
            self._findings.log("operator", "begins {}", planned)
            answer = await self._ask(order, CampaignsFound, BuildRejected)
            if isinstance(answer, CampaignsFound):
                break
            self._findings.log("operator", "was refused: {}", answer)
            if planned.work.kind != "evacuate" or self._findings.now_s > planned.at_s + BEGUN_UNTIL_S:
                return
            await asyncio.sleep(AGAIN_S)
        self._findings.count(KEEPING, f"{planned.work.kind} begun")
        if planned.is_repeated:
            await self._ask(order, CampaignsFound)
        begun_s = self._findings.now_s
        for change in planned.changes:
            await until_s(begun_s + change.after_s)
            self._findings.log("operator", "{}s {}", change.to, planned.name)
            # Refused if it has ended by itself.
            await self._ask(SetCampaign(campaign=planned.name, to=change.to), CampaignsFound, BuildRejected)

    async def _look(self) -> None:
        """Ask the questions of an operator's screens."""
        first = self._plan.campaigns[0]
        for at_s in ASKED_S:
            await until_s(at_s)
            await self._ask(AskCampaigns(ended=True), CampaignsFound)
            await self._ask(AskCampaigns(campaign=first.name), CampaignsFound)
            await self._ask(AskMovements(campaign=first.name, ended=True), MovementsFound)
            await self._ask(AskBudgets(), BudgetsFound)
            await self._ask(AskCampaignPlan(work=first.work), CampaignPlanned, BuildRejected)
            await self._ask(AskKeepingWeeks(), KeepingWeeksFound)


class DrawnHooks(Hooks):
    """Fences that end as the plan says: this clock knows no programs."""

    def __init__(self, ends: Mapping[str, FenceEnd]) -> None:
        super().__init__("", outcome=self._end)
        self._ends = ends

    def why_unknown(self, name: str) -> str:
        return "" if name == "power" else "there is no such program"

    async def _end(self, program: Program, host: CampaignHost, _: Mapping[str, str], within_s: float) -> str:
        end = self._ends.get(host.host, "fails")
        await asyncio.sleep(within_s if end == "hangs" else 1.0)
        return "" if end == "off" else f"hook {program[0]} {end}"


GOING = ("granted", "moving")
OPEN = ("planned", *GOING)
# The lives that a movement may have after one commit.
NEXT = {
    "": {"planned"},
    "planned": {"granted", "given_up", "withdrawn"},
    "granted": {"planned", "moving", "given_up", "withdrawn"},
    "moving": {"planned", "done", "given_up", "withdrawn"},
    # It is there again.
    "done": {"planned"},
    "withdrawn": {"planned"},
    "given_up": set[str](),
}
LEDGER = "one ledger for all that moves unasked"
OPEN_STAGES = ("waiting", "held", "fencing", "asked", "fenced", "emptying", "giving", "hook", "returning")
# States of an instance in its cell.
ON_ITS_HOST = ("active", "stopped", "shelved", "broken")
# An order: its instances, how they move, where to, and where from.
Order = tuple[frozenset[InstanceId], str, tuple[str, ...], str]
Row = tuple[object, bytes]


class KeepingChecker:
    """Each commit of a keeper is judged, and each order that one sends. How many active members of a group stay (`alive_min`) is not: keepers
    ask that before they commit.
    """

    def __init__(self, findings: Findings, tables: Tables, cloud: "Cloud") -> None:
        self._findings = findings
        self._cloud = cloud
        self._driver = tables.driver
        self._writes = self._driver.total_changes
        self._read: dict[str, frozenset[Row]] = {}
        # By the ids as they are stored.
        self._campaigns: dict[object, CampaignState] = {}
        self._hosts: dict[tuple[object, ProviderId], CampaignHost] = {}
        self._movements: dict[MovementId, Movement] = {}
        # What each request was granted for, and the order that was sent for it.
        self._granted: dict[RequestId, dict[InstanceId, Movement]] = {}
        self._orders: dict[RequestId, Order] = {}
        self._said: set[bytes] = set()
        # The hosts that are done, and the instances, with their attempts, that their cells had there then. Those that were up since.
        self._emptied: dict[ProviderId, tuple[str, set[tuple[InstanceId, int]]]] = {}
        self._up_since: set[ProviderId] = set()

    def committed(self) -> None:
        """A keeper has committed: read what has changed in the keepers' rows."""
        if self._writes == self._driver.total_changes:
            return
        self._writes = self._driver.total_changes
        for id_, body in self._changed("SELECT id, body FROM keeper_campaigns"):
            campaign = msgspec.json.decode(body, type=CampaignState)
            before = self._campaigns.get(id_)
            self._campaigns[id_] = campaign
            if before is None or before.life != campaign.life:
                self._note(f"a campaign is {campaign.life}", campaign.name, campaign.reason)
        for id_, body in self._changed("SELECT campaign, body FROM keeper_hosts"):
            host = msgspec.json.decode(body, type=CampaignHost)
            stage = self._hosts[id_, host.id].stage if (id_, host.id) in self._hosts else ""
            self._hosts[id_, host.id] = host
            if host.stage == "emptying" != stage and host.fenced_by:
                self._check_off(host)
            if host.lost_at is not None and stage == "" and host.stage != "skipped":
                self._note("a host is lost", host.host)
            is_emptied = self._campaigns[id_].work.kind != "balance"
            if host.stage == "done" != stage and is_emptied:
                guests = {(own.id, own.host_attempt) for own in self._guests_of(host.id)}
                self._emptied[host.id] = host.host, guests
                self._up_since.discard(host.id)
            if host.stage != stage:
                self._note(f"a host is {host.stage}", host.host, host.reason)
        modes = {id_: self._cloud.hosts.rows[id_].setting.mode for id_ in self._emptied}
        self._up_since |= {id_ for id_, mode in modes.items() if mode == "up"}
        changed = self._changed("SELECT 0, body FROM keeper_movements")
        self._moved([msgspec.json.decode(body, type=Movement) for _, body in changed])

    def _check_off(self, host: CampaignHost) -> None:
        """A guest that is built anew must not run any more, where a fence or a person says so."""
        if not self._cloud.hosts.has_died(host.id):
            self._breaks(f"{host.host} is emptied, which {host.fenced_by} says is off, and it has not died")
        others = [
            each
            for (_, id_), each in self._hosts.items()
            if id_ == host.id and each.lost_at == host.lost_at is not None
        ]
        if len(others) > 1:
            self._breaks(f"the loss of {host.host} at {host.lost_at} was decided on {len(others)} times")

    def sent(self, parcel: Parcel) -> None:
        """A keeper sends this."""
        for envelope in known_messages(parcel, CODEC):
            match envelope.message:
                case MoveInstance() as order:
                    self._check_order(order)
                case CampaignChanged(state=CampaignState() as state):
                    self._said.add(msgspec.json.encode(state))
                case MovementChanged(movement=movement):
                    self._said.add(msgspec.json.encode(movement))

    def requests_written(self, rows: Iterable[InstanceRow]) -> None:
        """Check that each move that begins for a keeper leaves the host that was to be emptied: a person may have moved the instance."""
        for row in rows:
            move = row.told.move
            granted = None if move is None else self._granted.get(move.request_id, {}).get(row.id)
            if move is not None and granted is not None and move.source != granted.host:
                self._breaks(
                    f"{short_id(row.id)} is moved from {move.source}, and was to leave {granted.host}"
                )

    def unsettled(self) -> Iterator[str]:
        """Each campaign must have ended or be paused, and nothing goes on. Listeners have heard of the last state of each. A host that is to
        be drained and does not answer holds its campaign up, until it is back or a person has it evacuated.
        """
        held_up = {
            id_
            for (id_, host_id), host in self._hosts.items()
            if host.stage == "emptying" and self._cloud.hosts.is_dead(host_id)
        }
        held_up = {id_ for id_ in held_up if self._campaigns[id_].work.kind == "drain"}
        may_wait = {
            each.id for id_, each in self._campaigns.items() if each.life == "paused" or id_ in held_up
        }
        for id_, campaign in self._campaigns.items():
            open_hosts = [
                host.host for (of, _), host in self._hosts.items() if of == id_ and host.stage in OPEN_STAGES
            ]
            if campaign.life != "paused" and id_ not in held_up and (campaign.ended_at is None or open_hosts):
                yield f"campaign {campaign.name} is {campaign.life} {campaign.reason}, and has the hosts {open_hosts}"
        for each in self._movements.values():
            if each.life in GOING or (each.life == "planned" and each.campaign not in may_wait):
                yield f"the movement of {short_id(each.instance)} from {each.host} is {each.life}: {each.reason}"
        yield from self._undecided()
        said: tuple[CampaignState | Movement, ...] = (*self._campaigns.values(), *self._movements.values())
        for one in said:
            if one.life != "planned" and msgspec.json.encode(one) not in self._said:
                yield f"nobody was told that {one.name} is {one.life}"

    def _undecided(self) -> Iterator[str]:
        """Hosts that have died with guests on them: by policy they are recovered, or somebody is asked, unless a person empties them."""
        decided = {
            host_id
            for (id_, host_id), host in self._hosts.items()
            if host.lost_at is not None or self._campaigns[id_].work.kind == "evacuate"
        }
        for id_, row in self._cloud.hosts.rows.items() if self._cloud.plan.policies else ():
            is_lost = self._cloud.hosts.has_died(id_) and row.setting.mode in ("up", "draining")
            if is_lost and id_ not in decided and self._guests_of(id_):
                yield f"{row.name} has died, and no keeper has decided on it"

    def left_behind(self) -> Iterator[str]:
        """Guests on a host that was done, and that nobody has set up since: those that were there then, and those that came later."""
        for id_, (name, guests) in self._emptied.items():
            # A person may have set it draining again.
            is_up = id_ in self._up_since or self._cloud.hosts.rows[id_].setting.mode == "up"
            for own in self._guests_of(id_):
                if (own.id, own.host_attempt) in guests:
                    yield f"{short_id(own.id)} is {own.state} on {name}, which was emptied"
                elif not is_up:
                    yield f"{short_id(own.id)} is {own.state} on {name}, and came after that was emptied"

    def _guests_of(self, host: ProviderId) -> list[Instance]:
        return [
            own
            for own in self._cloud.cells.rows.values()
            if own.state in ON_ITS_HOST and own.host is not None and own.host.share.host == host
        ]

    # Rows

    def _changed(self, query: str) -> Iterable[Row]:
        """The rows that are not as they were when they were read before."""
        before = self._read.get(query, frozenset())
        now = self._read[query] = frozenset(self._driver.execute(query).fetchall())
        return sorted(now - before)

    def _moved(self, changed: Sequence[Movement]) -> None:
        before = dict(self._movements)
        self._movements |= {each.id: each for each in changed}
        granted = []
        for each in changed:
            was = before.get(each.id)
            self._check_next(was, each)
            if each.life == "granted" and (was is None or was.life != "granted"):
                granted.append(each)
            if was is None or was.life != each.life:
                self._note(f"a movement is {each.life}", each.instance, each.host, each.to, each.reason)
        there = Counter(each.instance for each in self._movements.values() if each.life in OPEN)
        for instance in [each.instance for each in changed if there[each.instance] > 1]:
            self._breaks(f"{short_id(instance)} has {there[instance]} movements that are open")
        if granted:
            self._check_grants(granted, before.values())

    def _check_next(self, was: Movement | None, now: Movement) -> None:
        life = "" if was is None else was.life
        if now.life != life and now.life not in NEXT[life]:
            self._breaks(f"the movement of {short_id(now.instance)} was {life}, and is {now.life}")
        if was is not None and life in GOING and now.life in GOING and was.request_id != now.request_id:
            self._breaks(f"the movement of {short_id(now.instance)} is granted again while it is {life}")

    def _check_grants(self, granted: Sequence[Movement], before: Iterable[Movement]) -> None:
        """Check the budgets as they are at this commit. One may be exceeded that was lowered; but then nothing is granted that counts for it."""
        for each in granted:
            assert each.request_id is not None, "what is granted has a request"
            if each.instance in self._granted.setdefault(each.request_id, {}):
                self._breaks(f"{short_id(each.instance)} is granted twice under one request")
            self._granted[each.request_id][each.instance] = each
        bodies = self._driver.execute("SELECT body FROM keeper_budgets").fetchall()
        budgets = [msgspec.json.decode(body, type=BudgetState).budget for (body,) in bodies]
        # Less than an hour has passed.
        going, recent = (
            [each for each in self._movements.values() if each.life in GOING],
            [each for each in self._movements.values() if each.granted_at],
        )
        ids = {each.id for each in granted}
        was = [each for each in before if each.granted_at]
        known = breaches(budgets, [each for each in going if each.id not in ids], was)
        for wrong in breaches(budgets, going, recent):
            if wrong not in known:
                self._breaks(f"a grant exceeds budget {wrong}")
        for each in granted:
            self._check_rest(each)
        for campaign in sorted({each.campaign for each in granted}):
            self._check_guests(campaign, [each for each in going if each.campaign == campaign and each.to])

    def _check_rest(self, granted: Movement) -> None:
        """A guest that has moved is not moved by a balance within its rest, which is longer than a run or nothing."""
        work = next(each for each in self._campaigns.values() if each.id == granted.campaign).work
        moved = [
            each
            for each in self._movements.values()
            if each.instance == granted.instance and each.life == "done"
        ]
        if work.kind == "balance" and work.rest_s and moved:
            self._breaks(f"{short_id(granted.instance)} has moved, and is to move again by a balance")

    def _check_guests(self, id_: CampaignId, going: Sequence[Movement]) -> None:
        """A group that leaves together may be larger."""
        work = next(each for each in self._campaigns.values() if each.id == id_).work
        if len(going) > work.guests_at_once and len({each.request_id for each in going}) > 1:
            self._breaks(f"{len(going)} guests of a campaign move, {work.guests_at_once} may")

    def _check_order(self, order: MoveInstance) -> None:
        """Each order is for what was granted under its id, and those of one id are the same."""
        assert order.request_id is not None, "a keeper names its requests"
        instances = frozenset((order.instance, *order.together))
        granted = self._granted.get(order.request_id, {})
        said = instances, order.kind, order.hosts, order.source
        first = self._orders.setdefault(order.request_id, said)
        if not instances <= granted.keys():
            self._breaks(f"{sorted(map(short_id, instances))} are to move, and {granted} was granted")
        elif order.hosts and order.hosts != (f"{granted[order.instance].cell}/{granted[order.instance].to}",):
            self._breaks(f"{order!r} was granted as {granted[order.instance]!r}")
        if first != said:
            self._breaks(f"two orders of one id: {first!r}, {said!r}")
        self._findings.count(KEEPING, "ordered" if first is said else "ordered again")

    def _note(self, what: str, *details: object) -> None:
        self._findings.count(KEEPING, what)
        self._findings.log("keepers", f"{what}: " + " ".join("{}" for _ in details), *details)

    def _breaks(self, how: str) -> None:
        self._findings.breaks(LEDGER, how)
