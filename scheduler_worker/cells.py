"""What this process knows of cells: which are down, their workers and how fast they are, and what guests in them say on their consoles."""

import asyncio
import itertools
import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta

import numpy as np
from msgspec import Struct, structs

from bus.message import Message
from bus.messages.build import CellHeard, CellLife
from bus.messages.cell import AskConsole, ConsoleFound, ConsoleTold, TellConsole
from bus.messages.cloud import (
    AskCells,
    CellsFound,
    CellState,
    ConductorAlive,
    ConductorHeard,
    Durations,
    InstanceCount,
    StageTimes,
    WorkerAlive,
    WorkerHeard,
)
from bus.topology import CELL0, broker_user_of
from bus.workers.connections import Station
from bus.workers.handlers import Answer, Handlers, ReadOnly, Received, Said
from bus.workers.heartbeats import STAGES, is_silent
from bus.workers.publisher import Outgoing
from engine.inventories import CellName, ProviderId
from engine.picture.picture import Picture
from kit.errors import Operational, Unavailable
from kit.metrics import BUCKETS_S, quantile
from kit.parts import Background, Periodic, Status, mark_seen
from scheduler_worker.core.instances.rows import UNANSWERED
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.store_sql import InstanceQuery, KnownCell, SchedulerStore

# The cells that this process knows: when a conductor of each was last heard, and which cells are down.
#
# Only heartbeats of conductors that say they can work count. A cell is down when none of these came for the time
# `down_after`. If none has come to this process yet, the time counts from the moment when it learned of the cell: by its
# row, by its hosts, or by a conductor that cannot work. A cell of which nothing was ever heard is unknown, and counts as up.


# A cell's conductors may be started again and again: so many are remembered, the latest ones, and each for so long.
CONDUCTORS_MAX = 16
REMEMBERED_FOR = timedelta(minutes=15)


class _Cell(Struct):
    # The last heartbeat of a conductor that can work, and when the silence since then began to count.
    heard_at: datetime | None
    counts_from: datetime
    # Their last heartbeats, each with its time, the latest last.
    conductors: dict[str, tuple[datetime, ConductorAlive]]
    # Why it is down, as the last look has found; empty while it is up.
    told: str = ""
    # When it was last found down.
    down_at: datetime | None = None


class CellRegistry:
    def __init__(
        self,
        picture: Picture,
        down_after: timedelta,
        clock: Callable[[], datetime],
        *,
        is_avoided: bool = True,
        trouble_at: Callable[[str], str] = lambda _: "",
    ) -> None:
        """With `is_avoided`, nothing new is built in a cell that is down. `trouble_at` says what is wrong with the
        connection to a cell's own broker.
        """
        self._picture = picture
        self._down_after = down_after
        self._clock = clock
        self._is_avoided = is_avoided
        self._trouble_at = trouble_at
        self._cells: dict[str, _Cell] = {}

    def learn(self, rows: Iterable[KnownCell]) -> None:
        """Take over rows about cells, read at start or written by another worker."""
        now = self._clock()
        for row in rows:
            known = self._cells.setdefault(row.name, _Cell(None, now, {}))
            # This process may not hear a cell that another one hears: it believes its own ears.
            known.heard_at = row.heard_at if known.heard_at is None else max(known.heard_at, row.heard_at)

    def learn_names(self, names: Iterable[str]) -> None:
        """Learn of cells whose hosts were heard."""
        now = self._clock()
        for name in names:
            self._cells.setdefault(name, _Cell(None, now, {}))

    def hear(self, beat: ConductorAlive, speaks_for: str | None = None) -> None:
        """Note a conductor's heartbeat. If its sender may speak for one cell only (`speaks_for`), other cells are ignored."""
        now = self._clock()
        if speaks_for not in (None, beat.cell):
            return
        cell = self._cells.setdefault(beat.cell, _Cell(None, now, {}))
        # The latest is the last.
        cell.conductors.pop(beat.conductor, None)
        cell.conductors[beat.conductor] = now, beat
        for name, (heard_at, _) in [*cell.conductors.items()]:
            if len(cell.conductors) > CONDUCTORS_MAX or now - heard_at > REMEMBERED_FOR:
                del cell.conductors[name]
        if not beat.trouble:
            cell.heard_at = cell.counts_from = now
            if cell.told:
                self.look()

    def ended(self, conductor: str, name: str, speaks_for: str | None = None) -> None:
        """Forget a conductor of this cell that has ended as it should: nobody has to look after it."""
        cell = self._cells.get(name)
        if cell is not None and speaks_for in (None, name):
            cell.conductors.pop(conductor, None)

    def look(self) -> None:
        """Tell the picture which cells are down now, and why."""
        for name, cell in self._cells.items():
            cell.told = self._why_down(name, cell)
            if cell.told:
                cell.down_at = self._clock()
        if self._is_avoided:
            self._picture.put_cells_down(self.down)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sorted(self._cells))

    @property
    def down(self) -> Mapping[str, str]:
        """The cells that were down at the last look, and why."""
        return {name: cell.told for name, cell in sorted(self._cells.items()) if cell.told}

    def heard(self, name: str) -> CellHeard:
        cell = self._cells.get(name)
        if cell is None:
            return CellHeard(cell=name, life="unknown")
        life: CellLife = "down" if cell.told else "up" if cell.heard_at else "unknown"
        return CellHeard(cell=name, life=life, heard_at=cell.heard_at, reason=cell.told)

    def excuses(self, name: str, for_long: timedelta) -> bool:
        """Do the silent hosts of this cell count as up, because the cell itself is down, or came back less than
        `for_long` ago? Never, if schedulers avoid cells that are down: then nothing is chosen there anyway.
        """
        cell = self._cells.get(name)
        if self._is_avoided or cell is None:
            return False
        if self._why_down(name, cell):
            cell.down_at = self._clock()
        return cell.down_at is not None and self._clock() - cell.down_at < for_long

    def conductors_of(self, name: str) -> tuple[ConductorHeard, ...]:
        """The conductors of this cell that were heard, the latest first."""
        cell = self._cells.get(name)
        return tuple(
            [
                ConductorHeard(
                    name=beat.conductor,
                    life="down" if beat.trouble or self._is_long_ago(heard_at) else "up",
                    heard_at=heard_at,
                    trouble=beat.trouble,
                )
                for heard_at, beat in reversed(cell.conductors.values() if cell else ())
                if self._clock() - heard_at <= REMEMBERED_FOR
            ]
        )

    def does_not_hear(self, name: str, host: ProviderId, after: datetime) -> bool:
        """Does this cell not hear the host? All of its conductors that can work, and were heard after this time, say so, and there is one.
        The word of an earlier heartbeat may not be true any more.
        """
        cell = self._cells.get(name)
        said = [
            host in beat.silent
            for heard_at, beat in (cell.conductors.values() if cell else ())
            if heard_at > after and not (beat.trouble or self._is_long_ago(heard_at))
        ]
        return all(said) and bool(said)

    def rows(self) -> list[KnownCell]:
        """When each cell was last heard, as rows to write: a worker that starts reads them."""
        return [
            KnownCell(name, cell.heard_at)
            for name, cell in sorted(self._cells.items())
            if cell.heard_at is not None
        ]

    def _why_down(self, name: str, cell: _Cell) -> str:
        if not self._is_long_ago(cell.counts_from):
            return ""
        last = "no conductor that can work was ever heard"
        if cell.heard_at is not None:
            last = f"no conductor that can work was heard since {cell.heard_at:%Y-%m-%d %H:%M:%S %Z}"
        said = [
            f"{beat.conductor} says: {beat.trouble}"
            for at, beat in reversed(cell.conductors.values())
            if beat.trouble and not self._is_long_ago(at)
        ]
        return "; ".join(filter(None, (last, *said[:1], self._trouble_at(name))))

    def _is_long_ago(self, at: datetime) -> bool:
        return self._clock() - at >= self._down_after


# Passes questions for the consoles of guests on to the cells of the instances, and what is told back to the askers.
#
# A client has no user on a cell's broker, so a scheduler asks the cell's compute for it. A cell may not send answers, so it
# publishes what it has as an event. Every scheduler hears this event, and the one that asked answers the client. A cell may
# be slow or away, so no batch waits for its question. Each question is a task of its own, which ends with the cell's
# event, or when its time is up.


# So many questions may wait for cells at once.
WAITING_MAX = 200
# A user waits for the answer: a cell that is slower than this is called silent.
ANSWER_S = 5.0
_FULL = f"{WAITING_MAX} questions wait for cells already: ask again later"
NONE_MAX = 255


class ConsoleRelay:
    """Passes clients' questions on to the compute of the instance's cell."""

    def __init__(
        self,
        station: Station,
        stations_of_cells: Mapping[str, Station],
        store: SchedulerStore,
        *,
        clock: Callable[[], datetime],
        answer_s: float = ANSWER_S,
    ) -> None:
        self._clock = clock
        self._numbers = itertools.count(1)
        # Open questions, by their names: the cell, and the future that its answer ends.
        self._asked: dict[str, tuple[CellName, asyncio.Future[ConsoleTold]]] = {}
        self._station = station
        self._stations = stations_of_cells
        self._store = store
        self._answer_s = answer_s
        self._background = Background()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        async with self._background:
            await self._stopping.wait()
            self._background.cancel_all()

    async def stop(self) -> None:
        self._stopping.set()

    def question_handlers(self) -> Handlers:
        return {AskConsole: ReadOnly(self._on_console)}

    async def _on_console(self, asks: Sequence[Received[AskConsole]]) -> list[Said]:
        said: list[Said] = []
        for ask in asks:
            # A client repeats its question while the cell is slow.
            if (ask.sender, ask.id) in self._background:
                continue
            if len(self._background) >= WAITING_MAX:
                said.append(Answer(ask, ConsoleFound(none=_FULL)))
            else:
                self._background.start(self._relay(ask), (ask.sender, ask.id))
        return said

    async def _relay(self, ask: Received[AskConsole]) -> None:
        answer = Outgoing(await self._found(ask.message), ask.id, ask.trace, to=ask.reply_to)
        # If it cannot be sent, the asker asks again.
        self._station.publisher.send_all((answer,)).add_done_callback(mark_seen)

    async def _found(self, question: AskConsole) -> ConsoleFound:
        query = InstanceQuery(instances=(question.instance,), project=question.project, limit=1)
        rows = await self._store.instances(query)
        if not rows:
            return ConsoleFound(none=f"there is no instance {question.instance}")
        state = rows[0].told
        if not state.cell:
            return ConsoleFound(none=f"the instance is {state.state} and in no cell: it has no console")
        order = TellConsole(
            cell=state.cell,
            question=f"{self._station.name}-{next(self._numbers)}",
            asked_at=self._clock(),
            instance=question.instance,
            start=question.start,
            limit=question.limit,
        )
        try:
            told = await self._told(order)
        except TimeoutError:
            return _silent(order.cell, f"no compute has told it within {self._answer_s:g} s")
        except Operational as problem:
            return _silent(order.cell, str(problem))
        return ConsoleFound(
            text=told.text,
            start=told.start,
            next=told.next,
            size=told.size,
            attempt=told.attempt,
            none=told.none,
        )

    def hear(self, told: ConsoleTold) -> None:
        cell, waiting = self._asked.get(told.question, ("", None))
        if waiting is not None and cell == told.cell and not waiting.done():
            waiting.set_result(told)

    async def _told(self, order: TellConsole) -> ConsoleTold:
        waiting: asyncio.Future[ConsoleTold] = asyncio.get_running_loop().create_future()
        self._asked[order.question] = order.cell, waiting
        publisher = self._stations.get(order.cell, self._station).publisher
        sent = publisher.send(order)
        sent.add_done_callback(mark_seen)
        try:
            async with asyncio.timeout(self._answer_s):
                await sent
                return await waiting
        finally:
            del self._asked[order.question]
            publisher.withdraw(sent)


def _silent(cell: CellName, why: str) -> ConsoleFound:
    return ConsoleFound(none=f"cell {cell}: {why}"[:NONE_MAX])


# Answers questions about cells: which are up, their conductors, and how many hosts and instances each has.


def cell_questions(store: SchedulerStore, cells: CellRegistry, hosts: HostRegistry) -> Handlers:
    async def on_ask_cells(asks: Sequence[Received[AskCells]]) -> list[Said]:
        everywhere = cell_states(await store.instance_counts(), cells, hosts)
        return [
            Answer(
                ask,
                CellsFound(cells=tuple([each for each in everywhere if ask.message.name in ("", each.cell)])),
            )
            for ask in asks
        ]

    return {AskCells: ReadOnly(on_ask_cells)}


def cell_states(counts: Iterable[InstanceCount], cells: CellRegistry, hosts: HostRegistry) -> list[CellState]:
    instances, unanswered = Counter[str](), Counter[str]()
    for each in counts:
        if each.cell not in ("", CELL0):
            instances[each.cell] += each.count
            unanswered[each.cell] += each.count if each.state in UNANSWERED else 0
    known, up = hosts.count_by_cell()
    return [
        CellState(
            **structs.asdict(cells.heard(name)),
            conductors=cells.conductors_of(name),
            hosts=known[name],
            hosts_up=up[name],
            instances=instances[name],
            waiting=unanswered[name],
        )
        for name in sorted({*cells.names, *known, *instances})
    ]


# Looks which cells are down, tells it in health and metrics, and keeps in the database when each was last heard.


# A row is written again when it is so much behind: a worker that starts needs no better.
WRITTEN_AGAIN_AFTER = timedelta(seconds=15)


class CellWatch(Periodic):
    """Looks at an interval which cells are down. In `parts` is one health status for each cell; it fails while the cell
    is down, and does not keep the worker from being ready.
    """

    def __init__(
        self,
        store: SchedulerStore,
        cells: CellRegistry,
        hosts: HostRegistry,
        poll_s: float,
        chance: random.Random | None = None,
    ) -> None:
        super().__init__("look at cells", self._look, poll_s, chance=chance)
        self._store = store
        self._cells = cells
        self._hosts = hosts
        self._statuses: dict[str, Status] = {}

    @property
    def parts(self) -> Sequence[object]:
        return tuple(self._statuses.values())

    async def _look(self) -> None:
        try:
            await self._refresh()
        finally:
            # A cell may fall silent while the database cannot be read, and computes may run where no conductor does.
            self._cells.learn_names(self._hosts.heard_of)
            self._cells.look()
            self._tell_health()

    async def _refresh(self) -> None:
        written = {row.name: row for row in await self._store.cells()}
        self._cells.learn(written.values())
        behind = [
            row
            for row in self._cells.rows()
            if row.name not in written or row.heard_at - written[row.name].heard_at >= WRITTEN_AGAIN_AFTER
        ]
        if behind:
            async with self._store.transaction() as transaction:
                await transaction.save_cells(behind)

    def _tell_health(self) -> None:
        down = self._cells.down
        for name in self._cells.names:
            status = self._statuses.get(name)
            if status is None:
                status = self._statuses[name] = Status(f"cell {name}", is_beside=True)
            if name in down:
                status.failed(Unavailable(down[name]))
            else:
                status.well()


# How long the stages of boots took in the last minute and hour, over all workers that this process has heard.
#
# Workers tell counts since their start, by buckets. What a heartbeat has more than the one before it happened just before, and is added to
# the present slot of ten seconds. Buckets of several workers are added up, which percentiles of theirs could not be.


SLOT_S = 10
MINUTE, HOUR = 6, 360
BUCKETS = len(BUCKETS_S) + 1
# Of such a worker, all happened lately, though an earlier heartbeat was not heard.
JUST_STARTED = timedelta(minutes=1)
# A worker cannot have done so much between two heartbeats: they are wrong.
GROWTH_MAX = 10**9


class StageHistory:
    def __init__(self, clock: Callable[[], datetime]) -> None:
        self._clock = clock
        self._began_at = clock()
        # The last slot is not full yet, so there is one more than an hour has.
        self._counts = np.zeros((HOUR + 1, len(STAGES), BUCKETS), dtype=np.int64)
        self._slot = 0

    def hear(self, beat: WorkerAlive, before: WorkerAlive | None) -> None:
        """Add what this heartbeat has more than the one before it. Without that one, it is not known when it happened, unless the
        worker has just started.
        """
        if before is None and beat.told_at - beat.started_at > JUST_STARTED:
            return
        earlier = before.stages if before is not None and before.started_at == beat.started_at else {}
        self._go_on()
        for number, stage in enumerate(STAGES):
            now = beat.stages.get(stage.name, ())
            if stage.role == beat.role and 0 < len(now) <= BUCKETS:
                growth = _padded(now) - _padded(earlier.get(stage.name, ())[:BUCKETS])
                if ((growth >= 0) & (growth <= GROWTH_MAX)).all():
                    self._counts[self._slot % (HOUR + 1), number] += growth

    def times(self) -> tuple[StageTimes, ...]:
        """The stages that boots went through in the last hour."""
        self._go_on()
        minute, hour = self._last(MINUTE), self._last(HOUR)
        return tuple(
            StageTimes(stage=stage.name, minute=minute[number], hour=hour[number])
            for number, stage in enumerate(STAGES)
            if hour[number].count
        )

    def _last(self, slots: int) -> list[Durations]:
        """What happened in the present slot and this many before it."""
        slots = min(slots, self._slot)
        wanted = np.arange(self._slot - slots, self._slot + 1) % (HOUR + 1)
        seconds = self._age_s() - (self._slot - slots) * SLOT_S
        return [
            Durations(
                seconds=max(seconds, 0.0),
                count=sum(counts),
                p50_s=quantile(counts, 0.5),
                p99_s=quantile(counts, 0.99),
            )
            for counts in self._counts[wanted].sum(axis=0).tolist()
        ]

    def _age_s(self) -> float:
        return (self._clock() - self._began_at).total_seconds()

    def _go_on(self) -> None:
        """Begin the slot of the present time. If the clock was set back, the last slot goes on."""
        slot = max(int(self._age_s() // SLOT_S), self._slot)
        for each in range(max(self._slot + 1, slot - HOUR), slot + 1):
            self._counts[each % (HOUR + 1)] = 0
        self._slot = slot


def _padded(counts: tuple[int, ...]) -> "np.ndarray[tuple[int, ...], np.dtype[np.int64]]":
    return np.array((*counts, *[0] * (BUCKETS - len(counts))), dtype=np.int64)


# The workers that this process has heard, each by its last heartbeat.


# Workers may be started again and again: so many of a role and cell are remembered, the latest ones, and each for so long.
WORKERS_MAX = 100


class WorkerRegistry:
    def __init__(self, down_after: timedelta, clock: Callable[[], datetime]) -> None:
        self._down_after = down_after
        self._clock = clock
        self.stages = StageHistory(clock)
        # By role and cell, and then by name, the latest heard last: whoever may speak for one cell can hide no other worker.
        self._heard: dict[tuple[str, str], dict[str, tuple[datetime, WorkerAlive]]] = {}

    def hear(self, beat: WorkerAlive, sender: str, speaks_for: str | None = None) -> None:
        """Note a heartbeat, unless its sender's role is not the one that it names, or it may not speak for its cell."""
        user = broker_user_of(sender)
        if speaks_for not in (None, beat.cell) or (user is not None and user.role != beat.role):
            return
        heard = self._heard.setdefault((beat.role, beat.cell), {})
        _, before = heard.pop(beat.worker, (None, None))
        self.stages.hear(beat, before)
        if not beat.has_ended:
            heard[beat.worker] = self._clock(), beat
        while len(heard) > WORKERS_MAX:
            del heard[next(iter(heard))]

    def everyone(self) -> tuple[WorkerHeard, ...]:
        """All workers, by role, cell and name. Their stages are left out: `stages` has them of all together."""
        now = self._clock()
        heard = [
            WorkerHeard(
                beat=structs.replace(beat, stages={}),
                heard_at=at,
                life="down" if is_silent(now - at, self._down_after) else "up",
            )
            for of_role in self._heard.values()
            for at, beat in of_role.values()
            if now - at <= REMEMBERED_FOR
        ]
        return tuple(sorted(heard, key=lambda each: (each.beat.role, each.beat.cell, each.beat.worker)))


def hear_cells(
    cells: CellRegistry,
    workers: WorkerRegistry,
    hosts: HostRegistry,
    consoles: ConsoleRelay,
    batch: Sequence[Received[Message]],
) -> None:
    """Give each message to the object that keeps what it says."""
    for heard in batch:
        match heard.message:
            case ConductorAlive() as beat:
                cells.hear(beat, heard.cell)
                hosts.hear_of_cell(beat.cell, heard.cell)
            case ConsoleTold() as told:
                consoles.hear(told)
            case WorkerAlive() as beat:
                workers.hear(beat, heard.sender, heard.cell)
                if beat.has_ended and beat.role == "conductor":
                    cells.ended(beat.worker, beat.cell, heard.cell)
            case _:
                hosts.hear(heard)
