"""Timers: attempts with a silent host, requests over their deadline, claims to be swapped.

They work on rows that are due. A decision is saved with the row, which sets the next due time. Questions to placement
run in the background; if the process dies meanwhile, the row is due again when the question's lease ends.
"""

import asyncio
import random
from collections.abc import Awaitable, Callable, Sequence
from datetime import datetime, timedelta
from functools import partial
from math import inf

from bus.message import Message
from bus.messages.placement import ClaimAnswered
from bus.workers.handling import OutboxKey
from bus.workers.publisher import Outgoing
from cell_conductor.core.decide import DecidedMessage, Decision, Due, HostsLost
from cell_conductor.core.instance import Instance
from cell_conductor.core.swapping import Question, SwapAnswered
from cell_conductor.handlers import Decider
from cell_conductor.settings import Pace
from cell_conductor.store import ConductorStore
from kit.errors import Operational, WrongAnswer
from kit.parts import Background, Periodic, Status, wait_at_most
from kit.retrying import Retrying

_SAVING = Retrying(5, delay_s_first=0.02, delay_s_max=1)
# How many background tasks of earlier checks may run beside the next check.
BACKGROUND_MAX = 16
# So many due rows are handled at once, which keeps transactions short after an outage.
DUE_ROWS_MAX = 200
# So many rows in one batch of the conductor's worker show that the cell is busy. With more, a check waits longer for further rows: in
# proportion, up to so many times as long.
BUSY_ROWS = 25
RESTS_MAX = 4.0

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
        pace: Pace,
        chance: random.Random | None = None,
    ) -> None:
        self._decider = decider
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
        # The rows of the largest batch that was saved since the last check.
        self._batch_rows = 0
        self._has_more = False
        self._checking = Periodic("do what is due", self._check, self._pause_s, chance=chance)
        self._swapping = Status("swap claims", chance=chance)
        self._sending = Status("say what was decided", chance=chance)
        self.parts = (self._checking, self._swapping, self._sending, decider)
        self._background = Background()

    def expect(self, rows: Sequence[Instance]) -> None:
        """Note when these rows are due. They are about to be saved, so nothing is done before the commit (`saved`)."""
        self._expected += self._due_soon(rows)
        self._batch_rows = max(self._batch_rows, len(rows))

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

        Checking one row costs nearly as much as checking many: here, in placement, and on the next host. So the pause is longer while
        the cell is busy. After a longer time without due rows, a single one is handled at once.
        """
        rest_s = self._pace.rest_s * min(max(self._batch_rows / BUSY_ROWS, 1.0), RESTS_MAX)
        left_s = self._rests_from_s + rest_s - asyncio.get_running_loop().time()
        if left_s > 0:
            await wait_at_most(self._checking.stopping, left_s)
        self._batch_rows = 0

    async def _handle_due(self) -> None:
        now, known = self._clock(), len(self._soon)
        async with self._store.transaction() as tx:
            rows = await tx.take_due(now, DUE_ROWS_MAX)
            decision, kept = await self._decider.decide(tx, rows, [Due(each) for each in rows])
        self._has_more = len(rows) == DUE_ROWS_MAX
        now_s = asyncio.get_running_loop().time()
        self._check_by_s = now_s if self._has_more else now_s + self._pace.look_s
        self._rests_from_s = -inf if self._has_more else now_s
        # Rows saved during the check may have been missed.
        self._soon[:known] = [at for at in self._soon[:known] if at > now]
        self._soon += self._due_soon(decision.rows)
        if decision.said:
            self._background.start(_with_status(self._sending, partial(self._send, decision.said, kept)))
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
        decision, kept = await _SAVING(self._save, inputs)
        # A refused swap tries the next alternate at once.
        self._soon += self._due_soon(decision.rows)
        self._wake_if_due()
        await self._send(decision.said, kept)

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

    async def _send(self, said: Sequence[DecidedMessage], kept: OutboxKey | None) -> None:
        # Messages that the broker does not accept stay noted, and the worker's sweep sends them again.
        await self._say([Outgoing(each.message) for each in said], () if kept is None else (kept,))


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
