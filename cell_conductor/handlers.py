"""Handles orders of the API level and messages of hosts: load, decide, save, send. The rules are in core/."""

from collections.abc import Callable, Sequence
from datetime import datetime

from bus.messages.cell import (
    DeployProgressed,
    EndMoveInCell,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    InstanceStopped,
    MoveInCell,
    PlaceInCell,
    RebuildInCell,
    RemoveFromCell,
    SpawnFailed,
)
from bus.workers.handling import Bury, Handlers, Received, Said, Tell
from cell_conductor.core.decide import CellMessage, decide
from cell_conductor.core.host_states import HostStates
from cell_conductor.core.instance import Instance, Rules
from cell_conductor.store import ConductorTransaction


def handlers(
    rules: Rules,
    clock: Callable[[], datetime],
    expect: Callable[[Sequence[Instance]], None],
    hosts: Callable[[], HostStates],
) -> Handlers:
    """Which handler takes which message. `expect` is told of rows that are about to be saved and may have timeouts. `hosts` is
    what this process knows of the hosts.
    """

    async def on_messages(received: Sequence[Received[CellMessage]], tx: ConductorTransaction) -> list[Said]:
        ours = [each for each in received if each.message.cell == rules.cell]
        rows = await tx.load([each.message.instance for each in ours])
        decision = decide(rows, [each.message for each in ours], clock(), rules, hosts())
        kept = await tx.save(decision.rows, decision.forgotten, decision.kept)
        expect(decision.rows)
        said: list[Said] = [
            Tell(each.message, ours[each.cause], kept if each.sequence is not None else None)
            for each in decision.said
        ]
        if len(ours) < len(received):
            said += [_buried(each, rules.cell) for each in received if each.message.cell != rules.cell]
        return said

    return dict.fromkeys(
        (
            *(PlaceInCell, RemoveFromCell, RebuildInCell, MoveInCell, EndMoveInCell),
            *(InstanceSpawned, SpawnFailed, InstanceDestroyed, InstanceStopped),
            *(DeployProgressed, InstanceRedeployed),
        ),
        on_messages,
    )


def _buried(item: Received[CellMessage], cell: str) -> Bury:
    return Bury(item, f"cell is {item.message.cell!r}, but this is the conductor of cell {cell!r}")
