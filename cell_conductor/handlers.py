"""Handles orders of the API level, messages of hosts, and rows whose time is due: load, decide, save, send. The rules are in core/.

It also counts how boots end, and measures how long they take.
"""

import asyncio
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from functools import partial
from math import inf
from typing import TypeVar, get_args
from uuid import UUID

from msgspec import structs

from bus.message import Message
from bus.messages.audit import AskCellBooks, CellBooksFound
from bus.messages.build import (
    AlternatesSpent,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceMoved,
    InstanceState,
)
from bus.messages.cell import MoveInCell, PlaceInCell, RebuildInCell
from bus.messages.cloud import RowFailed, page_that_fits
from bus.messages.hosts import HostHolds, HostsNotHere, SetHostInCell
from bus.messages.placement import ClaimAnswered, ReleaseClaim
from bus.workers.handlers import Answer, Bury, Handler, Handlers, OutboxKey, ReadOnly, Received, Said, Tell
from bus.workers.publisher import Outgoing
from bus.workers.set_aside import SET_ASIDE, FailedRows, RowWork
from cell_conductor.core.books import entry_of
from cell_conductor.core.decide import (
    CellMessage,
    DecidedMessage,
    Decision,
    Due,
    HostsLost,
    Input,
    RowGivenUp,
    decide,
)
from cell_conductor.core.rows import (
    ALL_UP,
    ConductorRules,
    DrawId,
    HostStates,
    Instance,
    Question,
    SwapAnswered,
    concerns,
    hosts_of,
)
from cell_conductor.settings import ConductorPace
from cell_conductor.store_sql import ConductorStore, ConductorTransaction
from engine.flavors import InstanceId
from engine.inventories import CellName, ConsumerId
from kit.errors import Operational, WrongAnswer
from kit.logs import InstanceLine, InstanceLog
from kit.metrics import Histogram, Metric, Readings
from kit.parts import Background, Pauses, Periodic, Retrying, Status, operational, wait_at_most

M = TypeVar("M", CellMessage, SetHostInCell, HostHolds, HostsNotHere, AskCellBooks)


class Decider:
    """Decides what follows from messages and timeouts in a cell, and saves it. It goes by the cell's rules, the clock, and what
    this process knows of the cell's hosts: the host watch keeps `hosts` current (hosts.py).
    """

    def __init__(self, rules: ConductorRules, clock: Callable[[], datetime], draw: DrawId) -> None:
        """`draw` draws the ids of new consumers."""
        self.rules = rules
        self.clock = clock
        self.hosts: HostStates = ALL_UP
        # Has the host watch read the modes of hosts that operators have set?
        self.modes_are_read = False
        self._draw = draw
        self.times = BootTimes(rules.cell)

    @property
    def readings(self) -> Readings:
        return self.times.readings

    async def decide(
        self,
        tx: ConductorTransaction,
        rows: Mapping[InstanceId, Instance],
        inputs: Sequence[Input],
        received: Sequence[Received[CellMessage]] = (),
    ) -> tuple[Decision, OutboxKey | None]:
        """The decision on these inputs, which the transaction saves; and the key of its note of messages, if it has any.

        `received` are the inputs as they were received, if these are messages.
        """
        now = self.clock()
        while True:
            decision = decide(rows, inputs, now, self.rules, self.hosts, draw=self._draw)
            if not await self._learns_more(tx, rows, decision):
                break
        note = await tx.save(decision.rows, decision.forgotten, decision.unconfirmed)
        self.times.note(rows, decision, now)
        if LOG.is_on:
            LOG.write(endings(decision.said, received))
        return decision, note

    async def give_up(self, tx: ConductorTransaction, given_up: RowGivenUp) -> list[Said]:
        rows = await tx.load((given_up.instance,))
        decision, note = await self.decide(tx, rows, [given_up])
        return [Tell(each.message, None, note) for each in decision.said]

    async def _learns_more(
        self, tx: ConductorTransaction, rows: Mapping[InstanceId, Instance], decision: Decision
    ) -> bool:
        """Read the modes of those hosts, named by the rows before or after the decision, that may not be as is known here.
        Returns whether one is not.

        Those are all hosts as long as the host watch has not read any, and always the dead ones: another conductor may have set
        one up. Nothing is destroyed on a dead host, and one that is up and clean is not asked what it has. And those whose
        setting is named by a later number than is known here: another conductor has got it.
        """
        dead, concerned = self.hosts.dead(), (*rows.values(), *decision.rows)
        behind = {host for row in concerned if (host := self.hosts.source_behind(row)) is not None}
        if not dead and self.modes_are_read and not behind:
            return False
        named = hosts_of(concerned, next_ones=not self.modes_are_read)
        doubted = [each for each in named if each.int in dead or each in behind or not self.modes_are_read]
        if not doubted:
            return False
        before = self.hosts
        self.hosts = before.with_modes(doubted, await tx.lock_hosts(doubted))
        return self.hosts != before


def handlers(decider: Decider, expect: Callable[[Sequence[Instance]], None]) -> Handlers:
    """The handlers of orders and of hosts' messages, by message type.

    `expect` is called with rows that are about to be saved, so that timers know their due times.
    """

    async def on_messages(received: Sequence[Received[CellMessage]], tx: ConductorTransaction) -> list[Said]:
        ours, said = of_cell(decider.rules.cell, received)
        messages = [each.message for each in ours]
        kinds = [*map(type, messages)]
        if placing := kinds.count(PlaceInCell):
            decider.times.took(ours[kinds.index(PlaceInCell)].sent_at, decider.clock(), placing)
        rows = await tx.load([message.instance for message in messages])
        decision, note = await decider.decide(tx, rows, messages, ours)
        expect(decision.rows)
        said += [
            Tell(each.message, ours[each.cause], note if each.sequence is not None else None)
            for each in decision.said
        ]
        return said

    return dict.fromkeys(get_args(CellMessage), on_messages)


def before_burial(decider: Decider, failed: FailedRows) -> Mapping[type[Message], Sequence[Handler]]:
    """What is done before a message becomes a dead letter: its build ends, and its claim is released; or its move or rebuild ends."""

    async def end(
        orders: Sequence[Received[PlaceInCell | MoveInCell | RebuildInCell]], tx: ConductorTransaction
    ) -> list[Said]:
        said: list[Said] = []
        for each in orders:
            order = each.message
            said += await decider.give_up(tx, RowGivenUp(order.instance, SET_ASIDE, order))
        return said

    async def tell(orders: Sequence[Received[PlaceInCell]], _: ConductorTransaction) -> list[Said]:
        """If even the row cannot be written: the API level has one."""
        return [Tell(message) for each in orders for message in _ends_of(each.message, decider.clock())]

    return {
        PlaceInCell: (end, tell),
        MoveInCell: (end,),
        RebuildInCell: (end,),
        RowFailed: (failed.end,),
    }


def _ends_of(order: PlaceInCell, now: datetime) -> tuple[InstanceFailed, ReleaseClaim]:
    state = InstanceState(
        id=order.instance,
        request_id=order.request_id,
        sequence=order.sequence + 1,
        state="error",
        cell=order.cell,
        attempt=order.attempt,
        name=order.name,
        project=order.project,
        reason=SET_ASIDE,
        changed_at=now,
    )
    release = ReleaseClaim(
        cell=order.cell, consumer=ConsumerId(order.instance), attempt=order.attempt, issued_at=order.issued_at
    )
    return InstanceFailed(cell=order.cell, instance=state), release


def of_cell(cell: CellName, received: Sequence[Received[M]]) -> tuple[list[Received[M]], list[Said]]:
    """Separate the messages that name this cell from the others, each of which is to go to the dead-letter queue."""
    ours = [each for each in received if each.message.cell == cell]
    if len(ours) == len(received):
        return ours, []
    return ours, [
        Bury(each, f"cell is {each.message.cell!r}, but this is the conductor of cell {cell!r}")
        for each in received
        if each.message.cell != cell
    ]


# Answers an audit's questions for a cell's own rows: its instances, and the claims and hosts behind them.


def question_handlers(cell: CellName, store: ConductorStore) -> Handlers:
    async def on_audit(asks: Sequence[Received[AskCellBooks]]) -> list[Said]:
        ours, said = of_cell(cell, asks)
        return [*said, *[Answer(ask, await _booked(cell, store, ask.message)) for ask in ours]]

    return {AskCellBooks: ReadOnly(on_audit)}


async def _booked(cell: CellName, store: ConductorStore, question: AskCellBooks) -> CellBooksFound:
    # One more than asked tells whether there is another page.
    rows = await store.read(question.instances, question.after, question.limit + 1)
    entries = [entry_of(row, cell) for row in rows]
    page = page_that_fits(entries[: question.limit])
    return CellBooksFound(entries=page, next=page[-1].instance.id if len(page) < len(entries) else None)


# Timers: attempts with a silent host, requests over their deadline, claims to be swapped.
#
# They work on rows that are due. A decision is saved with the row, which sets the next due time. Questions to placement
# run in the background; if the process dies meanwhile, the row is due again when the question's lease ends.

_SAVING = Retrying(5, Pauses(first_s=0.02, max_s=1.0, least=0.0))
# How many background tasks of earlier checks may run beside the next check.
BACKGROUND_MAX = 16
# So many due rows are handled at once, which keeps transactions short after an outage.
DUE_ROWS_MAX = 200

Ask = Callable[[Sequence[Message]], Awaitable[Sequence[Message]]]
# Sends messages, and has the note with one of these keys deleted when the broker has confirmed them.
Say = Callable[[Sequence[Outgoing], Sequence[OutboxKey]], Awaitable[None]]


class Timers:
    """Acts on rows whose time is due, such as attempts with a silent host. It runs until the conductor stops."""

    def __init__(
        self,
        store: ConductorStore,
        say: Say,
        ask: Ask,
        *,
        decider: Decider,
        failed: FailedRows,
        pace: ConductorPace,
        chance: random.Random | None = None,
    ) -> None:
        self._decider = decider
        self._rows = failed.of("do what is due", RowWork(self._try_alone, self._give_up))
        self._store = store
        self._say = say
        self._ask = ask
        self._pace = pace
        self._clock = decider.clock
        self._check_every = timedelta(seconds=pace.look_s)
        # Due times of rows that are being saved, and of rows saved; those before the next check of all rows.
        self._expected: list[datetime] = []
        self._soon: list[datetime] = []
        # To be called after the next commit.
        self._after_commit: list[Callable[[], None]] = []
        # By the event loop's clock: the rows' clock may be set back.
        self._check_by_s = 0.0
        self._rests_from_s = -inf
        self._has_more = False
        self._checking = Periodic("do what is due", self._check, self._pause_s, chance=chance)
        self._swapping = Status("swap claims", chance=chance)
        self._sending = Status("say what was decided", chance=chance)
        self.parts = (self._checking, self._swapping, self._sending, decider, failed)
        self._background = Background()

    def expect(self, rows: Sequence[Instance]) -> None:
        """Note when these rows are due. They are about to be saved, so nothing is done before the commit (`saved`)."""
        self._expected += self._due_soon(rows)

    def after_commit(self, call: Callable[[], None]) -> None:
        """Have this called once, after the next commit."""
        self._after_commit.append(call)

    def saved(self) -> None:
        """Called after each commit: rows noted by `expect` that are due now need not wait for the next check."""
        if self._expected:
            self._soon += self._expected
            self._expected.clear()
            self._wake_if_due()
        while self._after_commit:
            self._after_commit.pop()()

    def _due_soon(self, rows: Sequence[Instance]) -> list[datetime]:
        before = self._clock() + self._check_every
        return [at for row in rows if (at := row.due_at) is not None and at <= before]

    def _wake_if_due(self) -> None:
        if self._is_due(self._clock()):
            self._checking.wake()

    def _is_due(self, now: datetime) -> bool:
        return any(at <= now for at in self._soon)

    async def run(self) -> None:
        async with self._background:
            await self._checking.run()
            self._background.cancel_all()

    async def stop(self) -> None:
        await self._checking.stop()
        # Questions are not awaited: their rows are due again when the lease ends.
        self._background.cancel_all()

    async def _check(self) -> None:
        await self._until_rested()
        # Messages and questions of earlier checks may wait for the broker: rows stay due until some are done.
        await self._background.until_fewer_than(BACKGROUND_MAX)
        self._has_more = False
        is_time = self._check_by_s <= asyncio.get_running_loop().time()
        if is_time or self._is_due(self._clock()):
            await self._handle_due()

    def _pause_s(self) -> float:
        return 0.0 if self._has_more else self._pace.poll_s

    async def _until_rested(self) -> None:
        """Pause after a check, so that rows which fall due soon after it are handled by one further check.

        Checking one row costs nearly as much as checking many: here, in placement, and on the next host. After a longer time without
        due rows, a single one is handled at once.
        """
        left_s = self._rests_from_s + self._pace.rest_s - asyncio.get_running_loop().time()
        if left_s > 0:
            await wait_at_most(self._checking.stopping, left_s)

    async def _handle_due(self) -> None:
        now, known = self._clock(), len(self._soon)
        limit = DUE_ROWS_MAX + len(self._rows)
        rows: Mapping[InstanceId, Instance] = {}
        try:
            async with self._store.transaction() as tx:
                rows = await tx.take_due(now, limit)
                due = self._rows.awake(rows, lambda each: each)
                decision, note = await self._decider.decide(tx, rows, [Due(each) for each in due])
        except Exception as problem:
            if operational(problem) is not None or not rows:
                raise
            await self._rows.each(rows, self._act_on, lambda each: each)
            return
        self._has_more = len(rows) == limit
        now_s = asyncio.get_running_loop().time()
        self._check_by_s = now_s if self._has_more else now_s + self._pace.look_s
        self._rests_from_s = -inf if self._has_more else now_s
        # Rows saved during the check may have been missed.
        self._soon[:known] = [at for at in self._soon[:known] if at > now]
        self._follow(decision, note)

    async def _act_on(self, due: Sequence[InstanceId]) -> None:
        async with self._store.transaction() as tx:
            rows = await tx.load(due)
            decision, note = await self._decider.decide(tx, rows, [Due(each) for each in rows])
        self._follow(decision, note)

    async def _try_alone(self, row: str) -> None:
        """Do at one row what is due, with the question that follows and its answer."""
        instance, now = InstanceId(UUID(row)), self._clock()
        async with self._store.transaction() as tx:
            rows = await tx.load((instance,))
            # The same question may be asked again before its lease ends.
            rows = {
                id_: structs.replace(each, state_ends_at=now) if each.state == "swapping" else each
                for id_, each in rows.items()
            }
            lost = [HostsLost(each.id) for each in rows.values() if concerns(each, self._decider.hosts)]
            inputs: list[Input] = [*map(Due, rows), *lost]
            decision, note = await self._decider.decide(tx, rows, inputs)
        await self._send(decision.said, note)
        if decision.swaps:
            answered, _ = await self._answers_to(decision.swaps)
            await self._carry_out(answered)

    async def _give_up(self, row: str, why: str, tx: ConductorTransaction) -> Sequence[Said]:
        return await self._decider.give_up(tx, RowGivenUp(InstanceId(UUID(row)), why))

    def _follow(self, decision: Decision, note: OutboxKey | None) -> None:
        self._soon += self._due_soon(decision.rows)
        if decision.said:
            self._background.start(_with_status(self._sending, partial(self._send, decision.said, note)))
        if decision.swaps:
            self._background.start(_with_status(self._swapping, partial(self._swap, decision.swaps)))

    async def _swap(self, swaps: Sequence[Question]) -> None:
        answered, problem = await self._answers_to(swaps)
        # If saving still fails, the question is asked again when the lease ends.
        await self.carry_out(answered)
        if problem is not None:
            raise problem

    async def carry_out(self, inputs: Sequence[SwapAnswered | HostsLost]) -> None:
        """Decide what follows from these inputs, save the changed rows, and send what was decided."""
        await self._rows.each(inputs, self._carry_out, lambda each: each.instance)

    async def _carry_out(self, inputs: Sequence[SwapAnswered | HostsLost]) -> None:
        decision, note = await _SAVING(self._save, inputs)
        # A refused swap tries the next alternate at once.
        self._soon += self._due_soon(decision.rows)
        self._wake_if_due()
        await self._send(decision.said, note)

    async def _save(self, inputs: Sequence[SwapAnswered | HostsLost]) -> tuple[Decision, OutboxKey | None]:
        async with self._store.transaction() as tx:
            rows = await tx.load([each.instance for each in inputs])
            return await self._decider.decide(tx, rows, inputs)

    async def _answers_to(
        self, swaps: Sequence[Question]
    ) -> tuple[Sequence[SwapAnswered], Operational | None]:
        """Ask placement for these swaps, and return its verdicts. If one is missing, the error is returned, too."""
        try:
            answers = await self._ask(swaps)
        except Operational as nobody:
            return [SwapAnswered(swap.consumer, swap, None) for swap in swaps], nobody
        problem: Operational | None = None
        answered = []
        for swap, answer in zip(swaps, answers, strict=True):
            verdict = answer.verdict if isinstance(answer, ClaimAnswered) else None
            if verdict is None:
                problem = WrongAnswer(f"placement answered a swap by {answer!r}")
            answered.append(SwapAnswered(swap.consumer, swap, verdict))
        return answered, problem

    async def _send(self, said: Sequence[DecidedMessage], note: OutboxKey | None) -> None:
        # Messages that the broker does not accept stay noted, and the worker's sweep sends them again.
        await self._say([Outgoing(each.message) for each in said], () if note is None else (note,))


async def _with_status(status: Status, work: Callable[[], Awaitable[None]]) -> None:
    """Run this work, and show in `status` whether it failed.

    A failure is not retried here: the row falls due again, and unconfirmed messages are sent again by the worker.
    """
    try:
        await work()
    except Operational as problem:
        status.left(problem)
    else:
        status.well()


# The lines of a conductor's log: how instances of its cell ended, and which attempts failed.

_ENDINGS = frozenset((InstanceActive, InstanceMoved, InstanceFailed, InstanceDeleted, AlternatesSpent))


def endings(said: Sequence[DecidedMessage], received: Sequence[Received[CellMessage]]) -> list[InstanceLine]:
    """A line for each event that the cell tells the API level, and for each attempt that failed before it."""
    lines: list[InstanceLine] = []
    for each in said:
        if type(each.message) in _ENDINGS:
            trace = received[each.cause].trace if received else ""
            state: InstanceState = each.message.instance  # type: ignore[union-attr, assignment] # they are events
            if state.failures:
                lines += _failures(state, trace)
            reason = state.reason or (state.move.failure if state.move is not None else "")
            lines.append(
                InstanceLine(
                    state.state, state.id, state.request_id, state.host, state.cell, trace, reason=reason
                )
            )
    return lines


def _failures(state: InstanceState, trace: str) -> Iterator[InstanceLine]:
    for each in state.failures:
        yield InstanceLine(
            "attempt failed",
            state.id,
            state.request_id,
            each.host,
            state.cell,
            trace,
            attempt=str(each.attempt),
            reason=each.reason,
        )


LOG = InstanceLog("moor.instances")


# How boots end, and how long they take.

_CELL = ("cell",)
PLACED = Metric(
    "moor_place_seconds",
    "histogram",
    "From the sending of the order to place an instance until a conductor of its cell works on it. Orders of one batch count as "
    "the first of them.",
    _CELL,
)
BOOT = Metric(
    "moor_boot_seconds",
    "histogram",
    "From the acceptance of a request to its instance being active, of every boot: the whole way through all workers.",
    _CELL,
)
HOST_BUILD = Metric(
    "moor_host_build_seconds",
    "histogram",
    "The part of that on the host: from the order to spawn or deploy until its answer, of the attempt that succeeded.",
    _CELL,
)
INSTANCES_ENDED = Metric(
    "moor_boots_ended",
    "counter",
    "Boots that ended in their cell, by `outcome`: `active`, or `error` when no alternate was left. One that finds no host "
    "reaches no cell (`moor_no_valid_host_total`).",
    ("cell", "outcome"),
)
ATTEMPTS_FAILED = Metric(
    "moor_attempts_failed",
    "counter",
    "Attempts on a host that failed; the next alternate is tried if there is one. `why`: `host` if the host failed or fell "
    "silent, `refused` if placement refused the claim there, or the host could not be used any more.",
    ("cell", "why"),
)
METRICS = (PLACED, BOOT, HOST_BUILD, INSTANCES_ENDED, ATTEMPTS_FAILED)
_ENDS = ("active", "error")


class BootTimes:
    """Counts how boots of a cell end, and how long they took. If a batch is decided anew after its transaction failed,
    it counts twice.
    """

    def __init__(self, cell: str) -> None:
        self._labels = (cell,)
        self._placed = Histogram(PLACED)
        self._whole = Histogram(BOOT)
        self._on_host = Histogram(HOST_BUILD)
        # Prometheus sees no growth of a counter that was not there before.
        self._outcomes = Counter(dict.fromkeys(_ENDS, 0))
        self._failed = Counter({"host": 0, "refused": 0})

    @property
    def readings(self) -> Readings:
        (cell,) = self._labels
        return (
            self._placed,
            self._whole,
            self._on_host,
            INSTANCES_ENDED.numbers({(cell, outcome): count for outcome, count in self._outcomes.items()}),
            ATTEMPTS_FAILED.numbers({(cell, why): count for why, count in self._failed.items()}),
        )

    def took(self, sent_at: datetime | None, now: datetime, instances: int) -> None:
        """Note that work on orders to place so many instances begins, of which the first was sent at this time."""
        if sent_at is not None:
            self._placed.observe((now - sent_at).total_seconds(), instances, self._labels)

    def note(self, rows: Mapping[InstanceId, Instance], decision: Decision, decided_at: datetime) -> None:
        """Note what one decision has changed. `rows` are those that were there before."""
        # A row takes the time of the decision itself only if the decision has changed its state.
        ended = [
            (before, row)
            for before, row in zip(decision.before, decision.rows, strict=True)
            if row.state in _ENDS
            and row.changed_at is decided_at
            and row.move is None
            and row.rebuild is None
        ]
        if ended:
            self._note_ended(ended, decided_at)
        for row in [row for row in decision.rows if row.failures]:
            if (known := rows.get(row.id)) is not None:
                for failure in row.failures[len(known.failures) :]:
                    self._failed["refused" if failure.is_refused else "host"] += 1

    def _note_ended(self, ended: Sequence[tuple[Instance, Instance]], decided_at: datetime) -> None:
        built = [(before, row.order) for before, row in ended if row.state == "active"]
        self._outcomes["active"] += len(built)
        self._outcomes["error"] += len(ended) - len(built)
        for before, order in built:
            if order is None:
                continue
            self._whole.observe((decided_at - order.issued_at).total_seconds(), labels=self._labels)
            if before.state == "building":
                self._on_host.observe((decided_at - before.changed_at).total_seconds(), labels=self._labels)
