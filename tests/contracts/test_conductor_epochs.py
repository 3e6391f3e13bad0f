"""An evacuation as of a setting of its host: another conductor of the cell may know of a later one. On both databases."""

import pytest

from bus.messages.cell import SpawnInstance
from cell_conductor.core.rows import SwapAnswered
from cell_conductor.handlers import Decider
from engine.hosts import HostMode
from tests.contracts.stores import STORES, open_conductor_store
from tests.unit.conductor.cell import (
    CLAIMED,
    NOON,
    ONE,
    RULES,
    Cell,
    drawing,
    move,
    place,
    set_,
    spawned,
    states,
)


@pytest.mark.parametrize(
    ("known", "stored", "named", "then"),
    [
        (None, ("dead", 2), 2, "spawned"),
        (("up", 1), ("dead", 2), 2, "spawned"),
        (("dead", 2), ("up", 3), 2, "refused"),
        (("dead", 2), ("dead", 4), 2, "refused"),
        (None, ("up", 3), 2, "refused"),
        (None, None, 2, "refused"),
        (("dead", 2), ("dead", 2), 2, "spawned"),
    ],
)
@pytest.mark.parametrize("kind", STORES)
async def test_the_setting_that_is_stored_decides_whatever_this_conductor_knows(
    kind: str,
    known: tuple[HostMode, int] | None,
    stored: tuple[HostMode, int] | None,
    named: int,
    then: str,
) -> None:
    cell = Cell(place(), spawned(1, "h1"))
    cell.play(move("evacuate", source_epoch=named))
    assert cell.asked is not None
    decider = Decider(RULES, lambda: NOON, drawing())
    decider.hosts = states(*[set_("h1", known[0], number=known[1])] if known else [])
    decider.modes_are_read = True
    async with open_conductor_store(kind, "c1") as store:
        async with store.transaction() as tx:
            await tx.load((ONE,))
            await tx.save((cell.row,), (), ())
            if stored is not None:
                there = set_("h1", stored[0], number=stored[1])
                await tx.lock_hosts([there.word.host])
                await tx.save_hosts([there])
        async with store.transaction() as tx:
            rows = await tx.load((ONE,))
            decision, _ = await decider.decide(tx, rows, [SwapAnswered(ONE, cell.asked, CLAIMED)])
    sent = [each.message for each in decision.said]
    assert any(isinstance(each, SpawnInstance) for each in sent) is (then == "spawned")
    assert decision.rows[0].moving is not None
    assert decision.rows[0].moving.outcome == ("" if then == "spawned" else "failed")
