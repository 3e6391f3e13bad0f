"""Whose consumers are: nobody but its owner claims more for a consumer, swaps it or releases it."""

from collections.abc import Mapping
from dataclasses import dataclass

import pytest
from msgspec import structs

from bus.messages.placement import ClaimResources, ReleaseClaim
from engine.inventories import INTEGER_MAX, ConsumerId, ProviderId, ResourceAmount
from engine.refusals import Claimed, ClaimVerdict, NotAllowed, Released, Superseded
from placement_worker.core.claims import decide_claims
from placement_worker.core.ledger import ClaimChanges, ClaimOrder, Consumer, Ledger, Sent
from tests.contracts.placement_orders import (
    CLEANUP,
    DB,
    HORIZON,
    HOST,
    MIGRATION,
    NOON,
    OTHER_HOST,
    WEB,
    a_claim,
    a_release,
    a_share,
    a_swap,
    amounts,
    consumer,
)
from tests.narrowing import must_be
from tests.unit.placement.test_claims import a_ledger

# What orders of the API level name as their cell; and how far an attempt may be ahead of the last one.
NO_CELL, ATTEMPT_AHEAD_MAX = "cell0", 1_000_000
BANK = consumer("bank")
THEIRS = amounts(HOST, VCPU=1)


@dataclass
class Books:
    """Rows of consumers; each order changes them, as the store writes them."""

    rows: dict[ConsumerId, Consumer]
    held: dict[ConsumerId, tuple[ResourceAmount, ...]]
    cells: Mapping[ProviderId, str]

    def judge(self, order: ClaimOrder, by: str | None = None) -> ClaimVerdict:
        """The verdict on an order of this cell; of the API level, if it names none."""
        decision = decide_claims(self._ledger(order), [Sent(order, by)], NOON, HORIZON)
        self._write(decision.changes)
        return decision.verdicts[0]

    def _ledger(self, order: ClaimOrder) -> Ledger:
        named = [Consumer(id=order.consumer)]
        for id_ in (getattr(order, "returns", None), getattr(getattr(order, "heir", None), "id", None)):
            named += [Consumer(id=id_)] if id_ is not None else []
        rows = {row.id: row for row in named} | self.rows
        return a_ledger(*rows.values(), held=self.held, cells=self.cells)

    def _write(self, changes: ClaimChanges) -> None:
        self.rows |= {row.id: row for row in changes.consumers}
        self.held |= dict(changes.held)
        for gone in changes.forgotten:
            self.rows.pop(gone, None)


def books(*rows: Consumer, cells: Mapping[ProviderId, str] | None = None) -> Books:
    """These consumers; those that have not ended hold one VCPU."""
    held = {row.id: THEIRS for row in rows if row.ended_at is None}
    return Books({row.id: row for row in rows}, held, cells or {})


def a_row(**changes: object) -> Consumer:
    row = Consumer(id=BANK, project="bank", user="eve", cell="c1", generation=1, attempt=1, host=HOST)
    return structs.replace(row, **changes)


def ended(row: Consumer) -> Consumer:
    return structs.replace(row, ended_at=NOON, host=None)


def claim(project: str = "bank", attempt: int = 1, cell: str = "c1", **changes: object) -> ClaimResources:
    """A claim for the bank's consumer."""
    return structs.replace(a_claim(who=BANK, attempt=attempt, cell=cell), project=project, **changes)


def release(attempt: int = 1, cell: str = NO_CELL, project: str | None = "bank") -> ReleaseClaim:
    return structs.replace(a_release(BANK, attempt=attempt, cell=cell), project=project)


HEIRS = (a_row(type="MIGRATION"), a_row(type="CLEANUP"))
ROWS = (a_row(), *HEIRS, ended(a_row()), *map(ended, HEIRS), a_row(cell="c2"), a_row(attempt=0, generation=3))


@pytest.mark.parametrize("attempt", [1, 2, 9])
@pytest.mark.parametrize("row", ROWS)
def test_a_claim_of_another_project_is_refused_and_says_only_that_the_id_is_taken(
    row: Consumer, attempt: int
) -> None:
    for project in ("shop", ""):
        for cell in ("c1", "c2", NO_CELL):
            if cell == NO_CELL and not project:
                continue
            before = books(row)
            verdict = before.judge(claim(project, attempt, cell))

            assert verdict == NotAllowed(field="consumer", reason=f"the id {BANK} is taken")
            assert before == books(row)


@pytest.mark.parametrize("row", [*HEIRS, *map(ended, HEIRS)])
def test_an_instance_never_gets_the_id_of_a_heir_of_its_own_project(row: Consumer) -> None:
    for attempt in (1, 2):
        before = books(row)
        assert before.judge(claim(attempt=attempt)) == NotAllowed(
            field="consumer", reason=f"the id {BANK} is taken"
        )
        assert before == books(row)


def test_the_api_level_hands_an_ended_consumer_to_another_cell_and_no_cell_takes_one() -> None:
    cells = {HOST: "c2", OTHER_HOST: "c2"}
    handed = books(ended(a_row()), cells=cells)
    taken = books(ended(a_row()), cells=cells)

    assert handed.judge(claim(attempt=2, cell="c2")) == Claimed()
    assert handed.rows[BANK].cell == "c2"
    refused = must_be(NotAllowed, taken.judge(claim(attempt=2, cell="c2"), "c2"))
    assert refused.field == "cell"
    assert "c1" not in refused.reason
    assert taken == books(ended(a_row()), cells=cells)


@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("attempt", [1, 2, 9])
def test_a_release_by_the_api_level_for_another_project_frees_nothing(row: Consumer, attempt: int) -> None:
    for project in ("shop", "", None):
        before = books(row)
        assert before.judge(release(attempt, project=project)) == Released(freed=False)
        assert before == books(row)


@pytest.mark.parametrize("row", HEIRS)
@pytest.mark.parametrize("project", ["bank", None])
def test_the_api_level_never_releases_a_heir(row: Consumer, project: str | None) -> None:
    before = books(row)

    assert before.judge(release(project=project)) == Released(freed=False)
    assert before == books(row)


@pytest.mark.parametrize("row", ROWS)
def test_no_cell_swaps_or_releases_a_consumer_of_another_cell(row: Consumer) -> None:
    swap = structs.replace(a_swap(a_share(OTHER_HOST), BANK), cell="c3")
    for order in (
        release(1, "c3", None),
        release(INTEGER_MAX, "c3", None),
        swap,
        claim(attempt=5, cell="c3"),
    ):
        before = books(row)
        refused = must_be(NotAllowed, before.judge(order, "c3"))
        assert refused.field == "cell"
        assert row.cell not in refused.reason
        assert before == books(row)


# Tombstones


def tombstone(cell: str, project: str | None = None, attempt: int = 1) -> Books:
    """The books after a release that came before its claim."""
    here = books()
    by = None if cell == NO_CELL else cell
    assert here.judge(release(attempt, cell, project), by) == Released(freed=False)
    assert here.rows[BANK].ended_at is not None
    return here


def test_a_tombstone_binds_the_claims_of_its_own_sender() -> None:
    for here, order, by in (
        (tombstone("c1"), claim(), "c1"),
        (tombstone(NO_CELL, "bank"), claim(), None),
        (tombstone(NO_CELL, None), claim(""), None),
        (tombstone(NO_CELL, ""), claim(""), None),
    ):
        assert here.judge(order, by) == Superseded(attempt=1, ended=True)


@pytest.mark.parametrize("attempt", [1, ATTEMPT_AHEAD_MAX])
def test_a_tombstone_binds_nobody_else(attempt: int) -> None:
    of_c2, of_shop = tombstone("c2", attempt=attempt), tombstone(NO_CELL, "shop", attempt)
    for here, order, by in (
        (of_c2, claim(), None),
        (tombstone("c2", attempt=attempt), claim(), "c1"),
        (of_shop, claim(), None),
        (tombstone(NO_CELL, "bank", attempt), claim(), "c1"),
    ):
        assert here.judge(order, by) == Claimed()
        row = here.rows[BANK]
        assert (row.type, row.project, row.cell, row.attempt) == ("INSTANCE", "bank", "c1", 1)


def test_a_release_by_the_api_level_counts_although_a_cell_has_left_a_tombstone() -> None:
    here = tombstone("c2", attempt=ATTEMPT_AHEAD_MAX)

    assert here.judge(release()) == Released(freed=False)
    assert here.judge(claim()) == Superseded(attempt=1, ended=True)


@pytest.mark.parametrize("attempt", [1, ATTEMPT_AHEAD_MAX])
def test_anothers_tombstone_keeps_no_heir_from_its_share(attempt: int) -> None:
    for kind in ("cleanup", "migration"):
        for cell, project in (("c2", None), (NO_CELL, "bank"), (NO_CELL, None)):
            here = tombstone(cell, project, attempt)
            web = structs.replace(a_row(), id=WEB)
            here.rows[WEB], here.held[WEB] = web, THEIRS
            swap = a_swap(a_share(OTHER_HOST), WEB, **{kind: BANK})  # type: ignore[arg-type]

            assert here.judge(swap, "c1") == Claimed()
            heir = here.rows[BANK]
            assert (heir.type, heir.cell, heir.project, heir.attempt) == (kind.upper(), "c1", "bank", 1)
            assert here.held[BANK] == THEIRS


OF_C2 = a_release(DB, cell="c2")
OF_SHOP, OF_BANK = (
    structs.replace(a_release(who, cell=NO_CELL), project=project)
    for who, project in ((CLEANUP, "shop"), (MIGRATION, "bank"))
)


@pytest.mark.parametrize(
    ("releases", "room", "rows"),
    [
        ([a_release(each) for each in (WEB, DB, CLEANUP)], {"c1": 2}, {WEB, DB}),
        ([a_release(WEB)], {"c1": 0}, set()),
        ([a_release(WEB), OF_C2, OF_SHOP, OF_BANK], {"c1": 0, "c2": 1}, {DB, CLEANUP, MIGRATION}),
    ],
    ids=["so many", "none", "each cell"],
)
def test_a_release_is_done_if_it_leaves_its_tombstone_and_refused_if_its_cell_has_no_room_for_one(
    releases: list[ReleaseClaim], room: dict[str, int], rows: set[ConsumerId]
) -> None:
    """Those of the API level always leave theirs."""
    decision = decide_claims(a_ledger(), [Sent(each) for each in releases], NOON, HORIZON, room)

    verdicts = zip(releases, decision.verdicts, strict=True)
    assert {each.consumer for each, verdict in verdicts if verdict == Released(freed=False)} == rows
    assert {row.id for row in decision.changes.consumers} == rows
    assert {type(each) for each in decision.verdicts} <= {Released, NotAllowed}


# Heirs and ways back


@pytest.mark.parametrize(
    "other",
    [
        a_row(),
        a_row(project="shop"),
        a_row(cell="c2", type="MIGRATION"),
        a_row(project="shop", type="MIGRATION"),
        a_row(type="MIGRATION"),
        ended(a_row()),
        ended(a_row(project="shop")),
        ended(a_row(project="shop", type="MIGRATION")),
        ended(a_row(cell="c2", type="MIGRATION")),
        ended(a_row(type="CLEANUP")),
    ],
)
def test_an_id_that_anything_else_has_is_taken_for_a_heir(other: Consumer) -> None:
    web = structs.replace(a_row(), id=WEB)
    before = books(web, other)

    verdict = before.judge(a_swap(a_share(OTHER_HOST), WEB, migration=BANK), "c1")

    assert verdict == NotAllowed(field="heir.id", reason=f"the id {BANK} is taken")
    assert before == books(web, other)


@pytest.mark.parametrize(
    "other",
    [a_row(project="shop"), a_row(project="shop", type="MIGRATION"), a_row(cell="c2", type="MIGRATION")],
)
def test_a_way_back_leaves_the_consumer_of_another_owner_alone(other: Consumer) -> None:
    web = structs.replace(a_row(), id=WEB)
    here = books(web, other)

    assert here.judge(a_swap(a_share(HOST, THEIRS), WEB, returns=BANK), "c1") == Claimed()
    assert here.rows[BANK] == other
    assert here.held[BANK] == THEIRS
    assert (here.rows[WEB].attempt, here.held[WEB]) == (2, THEIRS)


# Attempts


@pytest.mark.parametrize("by", [None, "c1"])
def test_an_attempt_far_ahead_of_the_last_one_is_refused(by: str | None) -> None:
    cell = NO_CELL if by is None else "c1"
    project = "bank" if by is None else None
    for here, last in ((books(), 0), (books(a_row()), 1), (books(ended(a_row())), 1)):
        for attempt in (last + ATTEMPT_AHEAD_MAX + 1, INTEGER_MAX):
            refused = must_be(NotAllowed, here.judge(release(attempt, cell, project), by))
            assert refused.field == "attempt"
        assert isinstance(here.judge(release(last + 1, cell, project), by), Released)
