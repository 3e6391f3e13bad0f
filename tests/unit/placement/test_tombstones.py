"""A release that comes before its claim leaves a row, a tombstone. Each owner may leave only so many; the rows of others and their own
claims are not concerned.
"""

import logging
from datetime import timedelta

import pytest
from msgspec import structs

from bus.messages.placement import NO_OWNER, ReleaseClaim
from engine.inventories import ConsumerId
from engine.refusals import Claimed, Released
from placement_worker.core.claims import decide_claims
from placement_worker.core.ledger import Consumer, Sent
from placement_worker.core.owners import NO_CELL, owners_of_tombstones, room_for_tombstones
from placement_worker.handlers import TOLD_AGAIN, CrowdedOwners
from tests.contracts.placement_orders import (
    CELL,
    CLEANUP,
    DB,
    HORIZON,
    HOST,
    MIGRATION,
    NOON,
    WEB,
    a_claim,
    a_release,
    a_share,
    amounts,
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


def test_at_the_bound_what_is_known_is_released_as_ever() -> None:
    held = amounts(HOST, VCPU=1)
    web = Consumer(id=WEB, cell=CELL, generation=1, attempt=1, host=HOST)
    db = Consumer(id=DB, cell=CELL, attempt=1, ended_at=NOON)
    ledger = a_ledger(web, db, held={WEB: held})
    asked = [a_release(WEB), a_release(DB, attempt=7)]
    assert owners_of_tombstones(ledger, asked) == ()
    decision = decide_claims(ledger, [Sent(each) for each in asked], NOON, HORIZON, {OURS: 0})

    assert decision.verdicts == (Released(freed=True), Released(freed=False))
    # A later attempt of its own row is no further row.
    assert {row.id: row.attempt for row in decision.changes.consumers} == {WEB: 1, DB: 7}


def test_a_claim_after_a_release_that_left_no_row_is_granted() -> None:
    claim = a_claim(a_share(HOST, amounts(HOST, VCPU=1)), WEB)
    asked = [Sent(each) for each in (a_release(WEB), claim)]

    assert decide_claims(a_ledger(), asked, NOON, HORIZON, {OURS: 0}).verdicts[1] == Claimed()
    assert decide_claims(a_ledger(), asked, NOON, HORIZON, {OURS: 1}).verdicts[1] != Claimed()


def test_only_releases_without_a_row_of_their_sender_are_counted() -> None:
    tombstone = Consumer(id=DB, cell="c2", attempt=1, ended_at=NOON)
    ledger = a_ledger(Consumer(id=WEB, cell=CELL, generation=1, attempt=1), tombstone)

    assert owners_of_tombstones(ledger, [a_release(WEB)]) == ()
    assert owners_of_tombstones(ledger, [structs.replace(a_release(CLEANUP), leaves_group=True)]) == ()
    assert owners_of_tombstones(ledger, [a_release(DB, cell="c2")]) == ()
    assert owners_of_tombstones(ledger, [a_release(DB), a_release(CLEANUP)]) == (OURS,)
    assert room_for_tombstones({OURS: 3, THEIRS: 7}, 5) == {OURS: 2, THEIRS: 0}


def test_an_owner_without_room_is_named_in_the_log_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    crowded = CrowdedOwners(10)
    with caplog.at_level(logging.WARNING):
        for now in (NOON, NOON + timedelta(seconds=1), NOON + TOLD_AGAIN):
            crowded.tell({OURS: 0, THEIRS: 1, (NO_CELL, "shop"): 0}, now)

    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 4
    assert lines[0].startswith(f"cell {CELL} has left 10 rows by releases that came before their claims")
    assert lines[1].startswith("the API level for project shop has left 10 rows")
