"""A release that comes before its claim leaves a row, a tombstone. Each owner may leave only so many; the rows of others and their own
claims are not concerned.
"""

from msgspec import structs

from bus.messages.placement import NO_OWNER, ReleaseClaim
from engine.inventories import ConsumerId
from engine.refusals import Released
from placement_worker.core.claims import decide_claims
from placement_worker.core.ledger import Sent
from placement_worker.core.owners import NO_CELL
from tests.contracts.placement_orders import (
    CELL,
    CLEANUP,
    DB,
    HORIZON,
    MIGRATION,
    NOON,
    WEB,
    a_release,
)
from tests.unit.placement.test_claims import a_ledger

OURS, THEIRS = (CELL, NO_OWNER), ("c2", NO_OWNER)


def released(*releases: ReleaseClaim, room: dict[tuple[str, str], int]) -> set[ConsumerId]:
    """The consumers whose rows these releases leave."""
    decision = decide_claims(a_ledger(), [Sent(each) for each in releases], NOON, HORIZON, room)
    assert {*decision.verdicts} == {Released(freed=False)}
    return {row.id for row in decision.changes.consumers}


def test_a_batch_leaves_no_more_rows_than_its_sender_has_room_for() -> None:
    ours = [a_release(each) for each in (WEB, DB, CLEANUP)]

    assert released(*ours, room={OURS: 2}) == {WEB, DB}
    assert released(*ours, room={OURS: 0}) == set()


def test_the_bound_of_one_owner_is_not_that_of_another() -> None:
    theirs = a_release(DB, cell="c2")
    of_shop = ReleaseClaim(cell=NO_CELL, consumer=CLEANUP, attempt=1, issued_at=NOON, project="shop")
    of_bank = structs.replace(of_shop, consumer=MIGRATION, project="bank")
    room = {OURS: 0, THEIRS: 1, (NO_CELL, "shop"): 0, (NO_CELL, "bank"): 1}

    assert released(a_release(WEB), theirs, of_shop, of_bank, room=room) == {DB, MIGRATION}
