"""Which of the nodes that Ironic does not have any more are believed to be gone."""

import pytest
from msgspec import structs

from ironic_sync.core.offers import MISSING, offer_of
from ironic_sync.core.ordering import (
    Belief,
    believed_missing,
    decide_missing,
    held_missing,
    read_again,
    read_as_gone,
)
from ironic_sync.core.rows import Deployed, NodeRow
from tests.unit.ironic.captured import a_node, a_word
from tests.unit.ironic.deploys import OURS
from tests.unit.ironic.node_rows import KNOWN, SECOND, T0, after

BELIEF = Belief(few=2, share=0.2, after_s=60)


def missing(
    *rows: NodeRow, known: int, lost_lately: int = 0, at_us: int = T0
) -> tuple[list[NodeRow], list[NodeRow]]:
    gone, held = decide_missing(rows, known=known, lost_lately=lost_lately, at_us=at_us, belief=BELIEF)
    return [*gone], [*held]


@pytest.mark.parametrize(
    ("count", "known", "lost_lately", "is_held"),
    [
        (2, 2, 0, False),
        (3, 3, 0, True),
        (3, 15, 0, False),
        (3, 14, 0, True),
        (20, 100, 0, False),
        (21, 100, 0, True),
        (1, 100, 20, True),
    ],
)
def test_more_than_a_few_and_more_than_a_share_are_held(
    count: int, known: int, lost_lately: int, *, is_held: bool
) -> None:
    rows = [KNOWN] * count

    decided = missing(*rows, known=known, lost_lately=lost_lately)

    assert decided == (([], rows) if is_held else (rows, []))


def test_what_stays_missing_is_believed_whatever_else_goes() -> None:
    long, short = (structs.replace(KNOWN, missing_since_us=T0 - seconds * SECOND) for seconds in (60, 59))

    assert missing(long, short, short, short, known=4) == ([long], [short] * 3)


def test_a_node_with_an_instance_is_never_believed_to_be_gone_until_somebody_says_so() -> None:
    used = structs.replace(KNOWN, deployed=Deployed(cell="c1", instance=OURS, attempt=1))
    ripe = structs.replace(used, missing_since_us=T0 - 60 * SECOND)

    assert missing(used, known=100) == ([], [used])
    assert missing(ripe, known=100) == ([], [ripe])

    held = read_as_gone(used, used.version, T0)
    assert held == held_missing(used, used.version, T0)
    assert held is not None
    assert (held.is_deleted, held.missing_since_us) == (False, T0)
    assert held.trouble == f"instance {OURS} lives here by the books, and Ironic has no such node any more"
    assert believed_missing(held).is_deleted
    # A notification that came late says it, too.
    late = after(held, a_word(T0 - SECOND, kind="delete", is_deleted=True))
    assert (late.is_deleted, late.missing_since_us) == (True, 0)
    assert read_as_gone(late, late.version, T0 + SECOND) is late


def test_a_missing_node_is_held_and_says_so_until_it_is_back_or_believed() -> None:
    held = held_missing(structs.replace(KNOWN, doubts=("a doubt",), is_doubted=True), KNOWN.version, T0)
    assert held is not None
    assert (held.missing_since_us, held.doubts, held.is_doubted) == (T0, (), False)
    offer = offer_of(held, frozenset())
    assert (offer.reserved, offer.reasons) == (True, (MISSING,))
    assert not held.is_deleted
    # It is not read again and again, and counts from when it was first missed.
    assert not held.needs_read
    assert held_missing(held, held.version, T0 + SECOND) is held

    back = read_again(held, a_node(), held.version, T0 + SECOND)
    assert back is not None
    assert not offer_of(back, frozenset()).reserved
    gone = read_as_gone(held, held.version, T0 + SECOND)
    assert gone is not None
    assert (gone.is_deleted, gone.missing_since_us) == (True, 0)
    assert believed_missing(held).is_deleted
    assert believed_missing(KNOWN) is KNOWN


def test_a_row_that_was_written_meanwhile_is_not_held_by_an_older_answer() -> None:
    assert held_missing(KNOWN, KNOWN.version - 1, T0) is None
