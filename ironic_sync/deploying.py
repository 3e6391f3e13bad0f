"""Deploys, rebuilds and undeploys this daemon's nodes through Ironic's REST API, one step at a time (core/deploying.py).

A node's order is on its row. The owner reads the node, takes the next step, and writes the result. A change of the row wakes
it, and so does the time at which the node must be read again. The final answer for the conductor is written on the row
together with the result, then sent, and removed from the row when the broker has confirmed it.

The daemon does nothing on a node that it has not read under its present epoch, and nothing when its lease may have expired.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import assert_never, get_args
from uuid import UUID

from msgspec import Struct, structs

from bus.messages.cell import (
    DeployProgressed,
    InstanceRedeployed,
    NodePower,
    RedeployInstance,
    SpawnFailed,
    UndeployOrdered,
)
from bus.workers.handlers import Handlers, Received, Said, Tell
from bus.workers.set_aside import FailedRows, RowWork
from engine.inventories import ProviderId
from ironic_sync.applying import Change, NodeWriter
from ironic_sync.core.deploying import (
    Again,
    AttachVif,
    ClearInstance,
    DetachVif,
    Fail,
    Finish,
    Gone,
    Note,
    Outcome,
    ReadVifs,
    Seen,
    SetInstance,
    SetState,
    Step,
    Validate,
    WaitForNode,
    after_failure,
    after_no_effect,
    after_refusal,
    after_step,
    ended,
    is_end,
    is_held,
    leaves_ports,
    next_step,
    why_invalid,
)
from ironic_sync.core.node import InterfaceCheck, Node
from ironic_sync.core.ordering import held_missing, read_again, read_as_gone
from ironic_sync.core.ring import Owned
from ironic_sync.core.rows import AT_ONCE, Answer, Deployed, NodeDeploy, NodeRow
from ironic_sync.core.settling import (
    Order,
    after_order,
    node_words,
    power_news,
    why_not_unasked,
    why_unasked,
    with_unasked,
)
from ironic_sync.membership import Membership
from ironic_sync.rest import HttpIronicApi, IronicRefused, NoLongerOurs, PatchOperation
from ironic_sync.settings import DaemonRules
from ironic_sync.store_sql import IronicStore
from kit.clock import moment
from kit.errors import CredentialsRefused, Locked, Operational, WrongAnswer
from kit.parts import Background, PartGroup, Periodic, Status, Supervised

log = logging.getLogger(__name__)

# The text shown while a deploy waits for placement to reserve the node.
UNTIL_HELD = "placement must hold the node first"
# Within this time daemons take only so many instances off by themselves (`undeploys_unasked`).
UNASKED_WITHIN = timedelta(hours=1)
# So many failed tries in a row are normal: a node is often locked for seconds.
TRIES_UNTOLD_MAX = 4


# Sends a message to the conductor of its cell, or an event; the future is done when its broker has confirmed it.
Say = Callable[[Answer | DeployProgressed | UndeployOrdered | NodePower], "asyncio.Future[None]"]


class _LookResult(Struct, frozen=True):
    """The result of one look at a node: its state in Ironic, read last at `at_us`, and the outcome after all steps
    that could be taken.
    """

    node: Node | None
    at_us: int
    outcome: Outcome
    # Ironic took the order to rebuild, to take the instance off, or to clean the node; its answer to the second was lost.
    is_ordered: bool = False
    is_sent: bool = False


class Deployer(PartGroup):
    """Deploys, rebuilds and undeploys this daemon's nodes through Ironic, one step at a time."""

    def __init__(  # noqa: PLR0917 - the daemon's parts that it stands on
        self,
        api: HttpIronicApi,
        writer: NodeWriter,
        store: IronicStore,
        ring: Membership,
        say: Say,
        rules: DaemonRules,
        failed: FailedRows,
        *,
        chance: random.Random | None = None,
    ) -> None:
        self._rows = failed.of("deploy nodes", RowWork(self._try_alone, self._give_up))
        self._working = Supervised("deploy nodes", self._work_until_stopped, chance=chance)
        self._asking = Status("deploy steps", chance=chance)
        self._looking = Periodic(
            "look for deploys that are due",
            self._look_for_due,
            rules.look_s,
            is_cut_short=True,
            chance=chance,
        )
        super().__init__(self._working, self._looking, statuses=(self._asking,))
        self._api = api
        self._writer = writer
        self._store = store
        self._ring = ring
        self._say = say
        self._rules = rules
        self._chance = chance or random.Random("deploy nodes")
        self._wanted: dict[ProviderId, None] = {}
        self._woken = asyncio.Event()
        # Nodes that are worked on, and nodes whose answers are being sent.
        self._running = Background(lambda _: self._woken.set())
        self._answering = Background()
        # The parts of the row that the last look used: other changes of the row need no new look.
        self._looked_by: dict[ProviderId, object] = {}
        # The last progress message about each node: the attempt and the text, and when it was sent. By the loop's clock: a wall clock
        # that jumps back would keep us silent.
        self._last_progress: dict[ProviderId, tuple[object, float]] = {}

    # What others tell

    def touch(self, rows: Iterable[NodeRow]) -> None:
        for row in rows:
            if row.deploy is None and row.answers_at is None:
                self._looked_by.pop(row.id, None)
                self._last_progress.pop(row.id, None)
            elif row.owner == self._ring.name and self._looked_by.get(row.id) != _signature(row):
                self._want(row.id)

    def gained(self, nodes: Sequence[Owned]) -> None:
        """Does nothing: a deploy of a gained node is found when it is due, or when the node was read and its row is
        written.
        """

    def lost(self, nodes: Sequence[ProviderId]) -> None:
        for node in nodes:
            self._wanted.pop(node, None)
            self._looked_by.pop(node, None)
            self._last_progress.pop(node, None)
            self._running.cancel(node)
            self._answering.cancel(node)

    def _want(self, node: ProviderId) -> None:
        self._wanted[node] = None
        self._woken.set()

    # Which nodes are worked on

    async def _look_for_due(self) -> None:
        """Find the rows of this daemon's nodes that are due, and have the deployer work on these nodes. Orders that
        another daemon wrote on the rows are found in this way.
        """
        now, rules = self._now(), self._rules
        longest_s = max(rules.deploy_read_s, rules.deploy_pauses.max_s)
        # What waits for a cell's broker stays due, and must not fill the page.
        limit = rules.page + len(self._running) + len(self._answering)
        for row in await self._store.due(self._ring.name, now, now + timedelta(seconds=longest_s), limit):
            if row.id not in self._running and row.id not in self._answering:
                self._want(row.id)

    async def _work_until_stopped(self) -> None:
        # Work on nodes ends before the answers do: it starts them.
        async with self._answering, self._running:
            while True:
                self._woken.clear()
                for node in [each for each in self._wanted if each not in self._running]:
                    if len(self._running) >= self._rules.deploys_at_once:
                        break
                    del self._wanted[node]
                    self._running.start(self._work_on(node), node)
                self._working.status.well()
                await self._woken.wait()

    async def _work_on(self, node: ProviderId) -> None:
        """Take the steps of a node's order until no other can be taken at once. After a failure, the node is worked
        on again when its row is due.
        """
        if self._rows.rests(node):
            return
        async with self._rows.trying(node):
            try:
                while await self._has_worked_on(node):
                    pass
            except Operational as problem:
                self._asking.left(problem)

    async def _try_alone(self, row: str) -> None:
        """Work on one node at which a daemon has met a bug. Only its owner can; `Locked` has the others wait for it."""
        node = ProviderId(UUID(row))
        known = (await self._store.read((node,))).get(node)
        if known is None or known.deploy is None:
            return
        if known.owner != self._ring.name or not self._ring.may_act_on(node) or node in self._running:
            raise Locked(f"node {node} is for {known.owner or 'no daemon yet'} to work on")
        while await self._has_worked_on(node):
            pass

    async def _give_up(self, row: str, why: str, _: object) -> Sequence[Said]:
        """Fail the deploy or the rebuild of this node. What is taken off a node is tried for ever."""

        def change(now: NodeRow) -> NodeRow | None:
            work, outcome = now.deploy, Fail(why)
            if work is None or work.kind == "undeploy" or work.failure:
                return None
            log.debug("the work on a node at which daemons met bugs is given up")
            if not is_end(work, outcome):
                return structs.replace(now, deploy=_deploy_after(work, outcome, work, AT_ONCE))
            after, answer = ended(now, work, outcome, now.node)
            if answer is None:
                return after
            return structs.replace(after, answers=(*after.answers, answer), answers_at=self._now())

        await self._writer.change({ProviderId(UUID(row)): change})
        return ()

    async def _has_worked_on(self, node: ProviderId) -> bool:
        row = (await self._store.read((node,))).get(node)
        if row is None or not self._ring.may_act_on(node):
            log.debug("a node is not worked on: this daemon may not act on it")
            return False
        if (row.owner, row.epoch) != (self._ring.name, self._ring.owned.get(node)):
            return False
        if row.answers_at is not None and node not in self._answering:
            # In a task of its own: a cell's broker may be away for a long time.
            self._answering.start(self._send_answers(row), node)
        if row.deploy is None or row.read_epoch != row.epoch:
            return False
        if row.deploy.is_unasked:
            return await self._is_allowed(row, row.deploy)
        return await self._write_result(row, row.deploy, await self._look_at(row, row.deploy))

    async def _is_allowed(self, row: NodeRow, deploy: NodeDeploy) -> bool:
        """May this daemon take an instance off that nobody told it to? If so, it is written on the row, with why.

        It is noted first and counted then: daemons that ask at the same time all see the notes of each other, and never order too
        many.
        """
        now = self._now()
        if deploy.due_at is not None and deploy.due_at > now:
            return False
        noted = lambda row: with_unasked(row, now)  # noqa: E731 - typed by its use
        if not await self._writer.change({row.id: self._if_still(deploy, noted)}):
            return False
        why_not = why_not_unasked(
            await self._store.alarms(now - UNASKED_WITHIN), self._rules.undeploys_unasked
        )
        later = now + timedelta(seconds=self._rules.deploy_pauses.max_s)
        decided = structs.replace(deploy, is_allowed=not why_not, progress=why_not, due_at=later)

        def change(row: NodeRow) -> NodeRow:
            unasked = row.unasked[:-1] if why_not else row.unasked
            return structs.replace(row, deploy=decided, unasked=unasked)

        if why_not != deploy.progress or not why_not:
            level = logging.ERROR if why_not else logging.WARNING
            what = (
                f"is held: {why_not}" if why_not else "is ordered by this daemon itself, and not by a person"
            )
            log.log(
                level,
                "the undeploy of instance %s from node %s, of which attempt %d has ended, %s",
                *(deploy.instance, row.id, deploy.attempt, what),
            )
        is_allowed = bool(await self._writer.change({row.id: self._if_still(deploy, change)})) and not why_not
        if is_allowed:
            ordered = UndeployOrdered(
                cell=deploy.cell,
                instance=deploy.instance,
                attempt=deploy.attempt,
                host=row.id,
                reason=why_unasked(deploy),
            )
            self._answering.start(self._send_news(ordered))
        return is_allowed

    def _if_still(self, deploy: NodeDeploy, change: Callable[[NodeRow], NodeRow]) -> Change:
        """The change, if the row has still this daemon as its owner, and this order."""

        def changed(row: NodeRow) -> NodeRow | None:
            is_ours = row.owner == self._ring.name and self._ring.may_act_on(row.id)
            return change(row) if is_ours and row.deploy == deploy else None

        return changed

    # Steps towards Ironic

    async def _look_at(self, row: NodeRow, deploy: NodeDeploy) -> _LookResult:
        """Read the node from Ironic, and take the steps of its order one after the other, until none can be taken now
        or one fails.

        NoLongerOurs is raised if this daemon may no longer act on the node: then the API has not sent the change.
        """
        node, at_us, is_ordered = row.node, self._writer.clock_us(), False
        seen: Seen | None = None
        step: Step | Outcome | None = None
        try:
            seen = Seen(await self._api.node(row.id), row=row)
            self._asking.well()
            ordered: list[Step] = []
            while True:
                node = seen.node
                step = next_step(deploy, seen)
                if not isinstance(step, Step):
                    return _LookResult(node, at_us, step, is_ordered)
                if step in ordered:
                    log.debug("a step towards Ironic has had no effect")
                    return _LookResult(node, at_us, after_no_effect(deploy, step))
                result = await self._send_step(row.id, step)
                if isinstance(result, IronicRefused):
                    return _LookResult(
                        node, at_us, after_refusal(deploy, step, result.status, result.message)
                    )
                if isinstance(result, Fail):
                    return _LookResult(node, at_us, result)
                if not isinstance(step, ReadVifs | Validate):
                    ordered.append(step)
                if isinstance(step, SetState | ClearInstance):
                    is_ordered = isinstance(step, SetState) and step.target in {
                        "rebuild",
                        "deleted",
                        "provide",
                    }
                    # The time of the question: a change that happens while the answer is on its way is newer.
                    at_us = self._writer.clock_us()
                    seen = Seen(await self._api.node(row.id), is_ordered=is_ordered, row=row)
                else:
                    seen = after_step(seen, step) if result is None else structs.replace(seen, vifs=result)
        except NoLongerOurs:
            raise
        except Operational as problem:
            after = self._after_error(deploy, seen, problem)
            return _LookResult(node, at_us, after, is_ordered, is_sent=step == SetState("deleted"))

    def _after_error(self, deploy: NodeDeploy, seen: Seen | None, problem: Operational) -> Outcome:
        """The outcome when a request to Ironic fails. If not even the node could be read (`seen` is None), Ironic is
        away: that concerns all nodes, and is waited for.
        """
        if seen is None:
            self._asking.left(problem)
            return Again(str(problem))
        is_answer = isinstance(problem, Locked | CredentialsRefused | WrongAnswer)
        return after_failure(deploy, str(problem), is_answer=is_answer)

    async def _send_step(  # noqa: PLR0911 - one for each step
        self, node: ProviderId, step: Step
    ) -> IronicRefused | Fail | tuple[str, ...] | None:
        """Send this step to Ironic. Returns None if Ironic accepted it, and the attached ports for `ReadVifs`.
        Otherwise the step was refused, or the node cannot be deployed.
        """
        match step:
            case SetInstance(info, instance):
                added = [] if instance is None else [PatchOperation("add", "/instance_uuid", str(instance))]
                return await self._api.patch(node, [*added, PatchOperation("add", "/instance_info", info)])
            case ClearInstance():
                return await self._api.patch(
                    node,
                    [PatchOperation("remove", "/instance_uuid"), PatchOperation("remove", "/instance_info")],
                )
            case ReadVifs():
                return await self._api.vifs(node)
            case AttachVif(vif):
                return await self._api.attach_vif(node, vif)
            case DetachVif(vif):
                return await self._api.detach_vif(node, vif)
            case Validate():
                return _verdict(await self._api.validate(node))
            case SetState(target, configdrive):
                return await self._api.set_provision_state(node, target, configdrive=configdrive or None)
            case _:
                assert_never(step)

    # What became of it

    async def _write_result(self, row: NodeRow, deploy: NodeDeploy, looked: _LookResult) -> bool:
        """Write the result of a look on the node's row, unless the row has another owner, epoch or order by now.
        Returns whether there is more to do on the node at once.
        """
        outcome = looked.outcome
        if isinstance(outcome, Finish | Gone) and not is_held(row):
            outcome = WaitForNode(UNTIL_HELD)
        counted = _counted(deploy, outcome)
        due_at = self._now() + self._pause(outcome, counted.tries)
        if isinstance(outcome, WaitForNode | Again):
            # If somebody else has written the row since it was read, that wakes us: this look did not use it.
            self._looked_by[row.id] = _signature(self._with_node(row, looked, row.version))

        def change(now: NodeRow) -> NodeRow | None:
            work = now.deploy
            if (
                (now.owner, now.epoch) != (row.owner, row.epoch)
                or work is None
                or _work_of(work) != _work_of(deploy)
            ):
                return None
            after = self._with_node(now, looked, row.version)
            # After "manage", the order that counts is "provide".
            work = structs.replace(
                work,
                is_ordered=work.is_ordered or looked.is_ordered,
                is_sent=work.is_sent or looked.is_sent,
            )
            if _is_unsure(after, looked):
                # Ironic has accepted the order all the same, and the next look depends on that.
                return structs.replace(now, deploy=work)
            if is_end(work, outcome):
                after, answer = ended(after, work, outcome, looked.node)
                if answer is None:
                    return after
                return structs.replace(after, answers=(*after.answers, answer), answers_at=self._now())
            return structs.replace(after, deploy=_deploy_after(work, outcome, counted, due_at))

        written = await self._writer.change({row.id: change})
        if not written or _is_unsure(written[0], looked):
            # Somebody else has written it since: look again.
            return True
        self._tell(row.id, counted, outcome)
        return isinstance(outcome, Fail | Finish | Gone | Note)

    def _with_node(self, row: NodeRow, looked: _LookResult, version: int) -> NodeRow:
        """The row with the node as this look read it; the row unchanged if it was written since `version`, since it
        is newer then.
        """
        if looked.node is None:
            is_held = isinstance(looked.outcome, WaitForNode)
            return (held_missing if is_held else read_as_gone)(row, version, looked.at_us) or row
        return read_again(row, looked.node, version, looked.at_us) or row

    def _pause(self, outcome: Outcome, tries: int) -> timedelta:
        if not isinstance(outcome, Again) or outcome.is_without_effect:
            # Ironic may only be slow to begin.
            return timedelta(seconds=self._rules.deploy_read_s)
        return timedelta(seconds=self._rules.deploy_pauses.after(tries, self._chance))

    def _tell(self, node: ProviderId, deploy: NodeDeploy, outcome: Outcome) -> None:
        match outcome:
            case Fail(reason):
                log.warning(
                    "the %s of instance %s on node %s fails: %s", deploy.kind, deploy.instance, node, reason
                )
            case WaitForNode(why):
                self._tell_progress(node, deploy, why)
            case Again(why) if deploy.tries >= TRIES_UNTOLD_MAX and deploy.tries.bit_count() == 1:
                # At 4, 8, 16... tries: a step that is repeated for long is told again, and does not fill the log.
                log.warning(
                    "the %s of instance %s on node %s has made %d tries without success, and goes on: %s",
                    "cleanup after the failed deploy" if deploy.failure else deploy.kind,
                    deploy.instance,
                    node,
                    deploy.tries,
                    why,
                )
            case Gone() if leaves_ports(deploy):
                log.error(
                    "ports of instance %s may still be attached to node %s: Ironic did not detach them",
                    deploy.instance,
                    node,
                )

    # Messages to the conductor

    def _tell_progress(self, node: ProviderId, deploy: NodeDeploy, text: str) -> None:
        """Tell the conductor what a deploy or rebuild waits for: when the text changes, and at intervals while it
        does not. If a message is lost, the one of the next interval takes its place.
        """
        if deploy.kind == "undeploy" or deploy.failure:
            return
        news, now_s = (deploy.instance, deploy.attempt, text), asyncio.get_running_loop().time()
        last, told_at_s = self._last_progress.get(node, (None, 0.0))
        if last == news and now_s - told_at_s < self._rules.progress_s:
            return
        self._last_progress[node] = news, now_s
        progress = DeployProgressed(
            cell=deploy.cell, instance=deploy.instance, attempt=deploy.attempt, host=node, words=text
        )
        # A bug in a task of its own ends the part. A callback's exception would only be logged.
        self._answering.start(self._send_news(progress))

    async def _send_news(self, news: DeployProgressed | UndeployOrdered) -> None:
        try:
            await self._say(news)
        except Operational as problem:
            self._asking.left(problem)

    async def _send_answers(self, row: NodeRow) -> None:
        """Send the final answers of a row to their conductors, and remove them from the row when the broker has
        confirmed them. After a failure they stay on the row, which stays due.
        """
        async with self._rows.trying(row.id):
            await self._send_all(row)

    async def _send_all(self, row: NodeRow) -> None:
        try:
            for answer in row.answers:
                await self._say(answer)
            words, done = node_words(row), row.living
            if done is not None and words != done.told:
                await self._say(
                    DeployProgressed(
                        cell=done.cell,
                        instance=done.instance,
                        attempt=done.attempt,
                        host=row.id,
                        words=words,
                        at_rest=True,
                    )
                )
                done = structs.replace(done, told=words)
            for news in power_news(row):
                await self._say(news)
            await self._take_off(row, done)
        except Operational as problem:
            self._asking.left(problem)

    async def _take_off(self, row: NodeRow, done: Deployed | None) -> None:
        """Remove from the row what was sent. `done` is its living instance with what its conductor was told."""

        def change(now: NodeRow) -> NodeRow | None:
            left = tuple(each for each in now.answers if each not in row.answers)
            if now.answers_at is None:
                return None
            known = done if now.deployed == row.deployed and done is not None else now.deployed
            return structs.replace(
                now,
                deployed=known,
                answers=left,
                answers_at=now.answers_at if left else None,
                power_loss_told=row.power_loss,
            )

        await self._writer.change({row.id: change})

    def _now(self) -> datetime:
        return moment(self._writer.clock_us())


def _verdict(checks: Mapping[str, InterfaceCheck] | IronicRefused) -> IronicRefused | Fail | None:
    if isinstance(checks, IronicRefused):
        return checks
    flaws = why_invalid(checks)
    return Fail(flaws) if flaws else None


def _counted(deploy: NodeDeploy, outcome: Outcome) -> NodeDeploy:
    """The order with its failed tries counted, this outcome included. Progress begins a new count."""
    match outcome:
        case Again():
            return structs.replace(
                deploy,
                tries=deploy.tries + 1,
                refusals=deploy.refusals + outcome.is_refusal,
                repeats=deploy.repeats + outcome.is_without_effect,
            )
        case WaitForNode(why) if why != UNTIL_HELD:
            return structs.replace(deploy, tries=0, refusals=0, repeats=0)
        case _:
            return deploy


def _deploy_after(work: NodeDeploy, outcome: Outcome, counted: NodeDeploy, due_at: datetime) -> NodeDeploy:
    """The order with what this outcome adds to it: what it waits for, the state noted before a rebuild, or the failure
    that must be cleaned up.
    """
    match outcome:
        case WaitForNode(why) | Again(why):
            tries = {"tries": counted.tries, "refusals": counted.refusals, "repeats": counted.repeats}
            return structs.replace(work, progress=why, due_at=due_at, **tries)
        case Note(before):
            # Only an order that follows counts.
            return structs.replace(work, before=before, is_ordered=False)
        case Fail(reason):
            return structs.replace(work, failure=reason, tries=0, refusals=0, repeats=0, due_at=AT_ONCE)
        case _:
            return work


def _is_unsure(row: NodeRow, looked: _LookResult) -> bool:
    """Whether something else was heard of the node meanwhile: then it is doubtful that it is gone, or has the instance."""
    if looked.node is None:
        return isinstance(looked.outcome, Fail | Gone) and not (row.is_deleted or row.missing_since_us)
    return isinstance(looked.outcome, Finish | Gone) and row.node != looked.node


def _work_of(deploy: NodeDeploy) -> tuple[object, ...]:
    number = deploy.order.number if isinstance(deploy.order, RedeployInstance) else 0
    attempt = deploy.cell, deploy.instance, deploy.attempt
    return deploy.kind, *attempt, number, deploy.before, deploy.failure


def _signature(row: NodeRow) -> object:
    """The parts of a row on which the next step of its order depends.

    If they are the same as at the last look, there is nothing to do before the row is due.
    """
    work = None if row.deploy is None else _work_of(row.deploy)
    node = row.node and (row.node.provision_state, row.node.instance_uuid, row.node.maintenance)
    return node, row.is_deleted, work, row.answers, row.epoch, row.read_epoch, is_held(row)


# Handles orders to deploy, undeploy and rebuild nodes. The rules are in ironic_sync/core/settling.py.
#
# Any daemon writes an order on the node's row, and the node's owner does the work (`Deployer`). An order is acknowledged when
# its row is written. An immediate answer is sent before that, so it is sent again if the order is redelivered.


async def _on_orders(orders: Sequence[Received[Order]], writer: NodeWriter) -> list[Said]:
    now, can_deploy = moment(writer.clock_us()), writer.policy.can_read
    of_nodes: dict[ProviderId, list[int]] = {}
    for number, each in enumerate(orders):
        of_nodes.setdefault(each.message.host, []).append(number)
    answers: dict[int, Answer | None] = {}

    def change_by(numbers: Sequence[int]) -> Change:
        def change(row: NodeRow) -> NodeRow | None:
            for number in numbers:
                row, answers[number] = after_order(row, orders[number].message, now, can_deploy=can_deploy)
            return row

        return change

    await writer.change({node: change_by(numbers) for node, numbers in of_nodes.items()})
    results: list[Said] = []
    for number, each in enumerate(orders):
        if (answer := answers[number]) is not None:
            if isinstance(answer, SpawnFailed):
                log.info("a deploy on node %s is refused: %s", answer.host, answer.reason)
            elif isinstance(answer, InstanceRedeployed) and answer.failure:
                log.info("a rebuild on node %s is refused: %s", answer.host, answer.failure)
            results.append(Tell(answer, each))
    return results


HANDLERS: Handlers = dict.fromkeys(get_args(Order), _on_orders)
