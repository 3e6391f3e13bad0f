"""Handles orders of the API level and messages of hosts: load, decide, save, send. The rules are in core/."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, TypeVar

from bus.logs import InstanceLog
from bus.measuring import Readings
from bus.message import CellName
from bus.messages.books import AskCellBooks
from bus.messages.build import InstanceId
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
from bus.messages.cells import TellLive
from bus.messages.host_modes import HostHolds, SetHostInCell
from bus.workers.handling import Bury, Handlers, OutboxKey, Received, Said, Tell
from cell_conductor.core.decide import CellMessage, Decision, Input, decide
from cell_conductor.core.host_states import ALL_UP, HostStates
from cell_conductor.core.instance import ConductorRules, DrawId, Instance
from cell_conductor.log_lines import endings
from cell_conductor.metrics import BootTimes
from cell_conductor.store import ConductorTransaction

if TYPE_CHECKING:
    from bus.configuration.live import Remade

LOG = InstanceLog("moor.instances")
M = TypeVar("M", CellMessage, SetHostInCell, HostHolds, TellLive, AskCellBooks)


class Decider:
    """Decides what follows from messages and timeouts in a cell, and saves it. It goes by the cell's rules, the clock, and what
    this process knows of the cell's hosts: the host watch keeps `hosts` current (host_watch.py).
    """

    def __init__(self, rules: ConductorRules, clock: Callable[[], datetime], draw: DrawId) -> None:
        """`draw` draws the ids of new consumers."""
        self.rules = rules
        self.clock = clock
        self.hosts: HostStates = ALL_UP
        self._draw = draw
        # Makes the rules again when the settings change.
        self.remade: Remade | None = None
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
        decision = decide(rows, inputs, now, self.rules, self.hosts, draw=self._draw)
        note = await tx.save(decision.rows, decision.forgotten, decision.kept)
        self.times.note(rows, decision, now)
        if LOG.is_on:
            LOG.write(endings(decision.said, received))
        return decision, note


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
