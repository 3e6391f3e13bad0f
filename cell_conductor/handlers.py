"""Handles orders of the API level and messages of hosts: load, decide, save, send. The rules are in core/."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from bus.message import CellName
from bus.messages.books import AskCellBooks
from bus.messages.cell import (
    DeployProgressed,
    EndMoveInCell,
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
from bus.workers.handling import Bury, Handlers, Received, Said, Tell
from cell_conductor.core.decide import CellMessage, decide
from cell_conductor.core.instance import ConductorRules, DrawId, Instance
from cell_conductor.known_hosts import KnownHosts
from cell_conductor.store import ConductorTransaction

M = TypeVar("M", CellMessage, SetHostInCell, HostHolds, TellLive, AskCellBooks)


def handlers(
    rules: ConductorRules,
    clock: Callable[[], datetime],
    expect: Callable[[Sequence[Instance]], None],
    hosts: KnownHosts,
    draw: DrawId,
) -> Handlers:
    """The handlers of orders and of hosts' messages, by message type.

    `expect` is called with rows that are about to be saved, so that timers know their due times. `draw` draws
    the ids of new consumers.
    """

    async def on_messages(received: Sequence[Received[CellMessage]], tx: ConductorTransaction) -> list[Said]:
        ours, said = of_cell(rules.cell, received)
        rows = await tx.load([each.message.instance for each in ours])
        decision = decide(rows, [each.message for each in ours], clock(), rules, hosts.states, draw=draw)
        kept = await tx.save(decision.rows, decision.forgotten, decision.kept)
        expect(decision.rows)
        said += [
            Tell(each.message, ours[each.cause], kept if each.sequence is not None else None)
            for each in decision.said
        ]
        return said

    return dict.fromkeys(
        (
            *(PlaceInCell, RemoveFromCell, RebuildInCell, MoveInCell, EndMoveInCell, MoreAlternates),
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
