"""Handles orders of the API level and messages of hosts: load, decide, save, send. The rules are in core/. It also counts how boots
end, and measures how long they take.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from bus.messages.audit import AskCellBooks, CellBooksFound
from bus.messages.build import (
    AlternatesSpent,
    InstanceActive,
    InstanceDeleted,
    InstanceFailed,
    InstanceMoved,
    InstanceState,
)
from bus.messages.cell import (
    AdoptInCell,
    DeployProgressed,
    EndMoveInCell,
    GiveBackInCell,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    InstanceStopped,
    MoreAlternates,
    MoveInCell,
    PlaceInCell,
    RebuildInCell,
    RemoveFromCell,
    SpawnFailed,
)
from bus.messages.cloud import page_that_fits
from bus.messages.hosts import HostHolds, HostsNotHere, SetHostInCell
from bus.workers.handling import Answer, Bury, Handlers, OutboxKey, ReadOnly, Received, Said, Tell
from cell_conductor.core.books import entry_of
from cell_conductor.core.decide import CellMessage, DecidedMessage, Decision, Input, decide
from cell_conductor.core.host_states import ALL_UP, HostStates, hosts_of
from cell_conductor.core.instance import ConductorRules, DrawId, Instance
from cell_conductor.store import ConductorStore, ConductorTransaction
from engine.flavors import InstanceId
from engine.inventories import CellName
from kit.logs import InstanceLine, InstanceLog
from kit.metrics import Histogram, Metric, Readings

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
M = TypeVar("M", CellMessage, SetHostInCell, HostHolds, HostsNotHere, AskCellBooks)


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
        if not built:
            return
        self._whole.observe_each(
            [(decided_at - order.issued_at).total_seconds() for _, order in built if order is not None],
            self._labels,
        )
        self._on_host.observe_each(
            [
                (decided_at - before.changed_at).total_seconds()
                for before, order in built
                if before.state == "building" and order is not None
            ],
            self._labels,
        )


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
        note = await tx.save(decision.rows, decision.forgotten, decision.kept)
        self.times.note(rows, decision, now)
        if LOG.is_on:
            LOG.write(endings(decision.said, received))
        return decision, note

    async def _learns_more(
        self, tx: ConductorTransaction, rows: Mapping[InstanceId, Instance], decision: Decision
    ) -> bool:
        """Read the modes of those hosts, named by the rows before or after the decision, that may not be as is known here.
        Returns whether one is not.

        Those are all hosts as long as the host watch has not read any, and always the dead ones: another conductor may have set
        one up. Nothing is destroyed on a dead host, and one that is up and clean is not asked what it has.
        """
        dead = self.hosts.dead()
        if not dead and self.modes_are_read:
            return False
        named = hosts_of((*rows.values(), *decision.rows), next_ones=not self.modes_are_read)
        doubted = [each for each in named if each.int in dead or not self.modes_are_read]
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
        decision, kept = await decider.decide(tx, rows, messages, ours)
        expect(decision.rows)
        said += [
            Tell(each.message, ours[each.cause], kept if each.sequence is not None else None)
            for each in decision.said
        ]
        return said

    return dict.fromkeys(
        (
            *(PlaceInCell, RemoveFromCell, RebuildInCell, MoveInCell, EndMoveInCell, MoreAlternates),
            *(AdoptInCell, GiveBackInCell),
            *(InstanceSpawned, SpawnFailed, InstanceDestroyed, InstanceStopped),
            *(DeployProgressed, InstanceRedeployed),
        ),
        on_messages,
    )


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
