"""An instance's row stores no value twice, and is read back unchanged."""

from datetime import timedelta

import pytest
from msgspec import structs

from cell_conductor.core.rows import Instance, Pending
from cell_conductor.store_sql import (
    RowCache,
    assemble_row,
    decode_body,
    decode_note,
    decode_order,
    encode_body,
    encode_note,
    encode_order,
    without_confirmed,
)
from engine.flavors import Image
from tests.narrowing import present
from tests.unit.conductor.cell import (
    NOON,
    Cell,
    a_node,
    adopt,
    choice,
    destroy,
    place,
    place_on_node,
    rebuild,
    redeployed,
    spawned,
)

PLACED = Cell(place("h2", "h3")).row
DESTROYS = structs.replace(
    PLACED, outbox=(Pending(101, NOON, destroy(1, "h1")), Pending(102, NOON, destroy(1, "h2")))
)
ON_NODE = Cell(place_on_node(a_node("n2"), image=Image(source="debian"), ports=("port-1",))).row


@pytest.mark.parametrize(
    "row",
    [
        structs.replace(PLACED, state="deleting", order=None, host=None, alternates=()),
        PLACED,
        structs.replace(PLACED, host=choice("h3"), alternates=()),
        structs.replace(DESTROYS, host=choice("h2"), alternates=(choice("h3"),)),
        structs.replace(PLACED, host=choice("h7"), alternates=(choice("h3"), choice("h7"))),
        structs.replace(PLACED, host=structs.replace(choice("h1"), name="renamed")),
        Cell(place(), spawned(1, "h1"), rebuild(), redeployed()).row,
        ON_NODE,
    ],
    ids=[
        "no order",
        "as chosen",
        "the last alternate",
        "messages",
        "not chosen",
        "renewed",
        "rebuilt",
        "node",
    ],
)
def test_a_row_is_read_as_it_was_written(row: Instance) -> None:
    assert assemble_row(decode_body(encode_body(row)), row.order) == row


@pytest.mark.parametrize("order", [adopt("shelved"), place("h2")])
def test_an_order_is_read_as_it_was_written(order: object) -> None:
    assert decode_order(encode_order(order)) == order  # type: ignore[arg-type]


def test_what_follows_from_the_order_is_not_written_in_the_row() -> None:
    named = place(chosen=structs.replace(choice("h1"), name="host-1"))
    assert (encode_body(Cell(named).row) + encode_order(named)).count(b"host-1") == 1
    assert b"debian" not in encode_body(ON_NODE)
    assert len(ON_NODE.outbox) == 1


def test_messages_confirmed_since_are_left_out() -> None:
    first, second = ((DESTROYS.id.bytes, each.sequence) for each in DESTROYS.outbox)

    assert decode_note(encode_note([first, second])) == {first, second}
    assert without_confirmed(DESTROYS, {second}) == structs.replace(DESTROYS, outbox=DESTROYS.outbox[1:])
    assert without_confirmed(DESTROYS, {first, second, (b"another's", 101)}) is DESTROYS


def test_a_row_is_remembered_by_its_body_with_the_messages_that_are_not_confirmed() -> None:
    cache, body = RowCache(), encode_body(DESTROYS)
    first, second = ((DESTROYS.id.bytes, each.sequence) for each in DESTROYS.outbox)
    cache.noted(1, [first, second])
    cache.noted(2, [second])
    cache.replace(None, body, DESTROYS)
    later = structs.replace(
        DESTROYS, order=structs.replace(present(PLACED.order), issued_at=NOON + timedelta(days=3))
    )
    assert cache.row_of(encode_body(later)) is None

    for confirmed, left in (((), (101, 102)), ((1,), (102,)), ((2,), ())):
        cache.confirmed(confirmed)
        known = present(cache.row_of(body))
        assert tuple(each.sequence for each in known.outbox) == left
