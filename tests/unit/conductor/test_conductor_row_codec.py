"""An instance's row stores no value twice, and is read back unchanged."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.cell import DestroyInstance, PlaceInCell, UndeployInstance
from cell_conductor.core.rows import Instance, Pending
from cell_conductor.core.transition import spawn_order
from cell_conductor.store_sql import (
    CACHED_ROWS_MAX,
    RowCache,
    assemble_row,
    decode_body,
    decode_note,
    encode_body,
    encode_note,
    encode_order,
    without_confirmed,
)
from engine.flavors import Flavor, Image, InstanceId, RequestId
from engine.hosts import NODE
from engine.inventories import Choice, ProviderId, ResourceAmount, ShapeSeen, Share

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


def a_choice(number: int) -> Choice:
    host = ProviderId(UUID(int=number))
    amounts = (ResourceAmount(provider=host, resource="VCPU", amount=2),)
    share = Share(host=host, amounts=amounts, shapes=(ShapeSeen(root=host, shape=number),))
    return Choice(name=f"host-{number}", share=share)


CHOSEN, FIRST, SECOND, ELSEWHERE = map(a_choice, range(1, 5))
ORDER = PlaceInCell(
    cell="c1",
    instance=InstanceId(UUID(int=100)),
    request_id=RequestId(UUID(int=200)),
    sequence=2,
    attempt=1,
    issued_at=NOON,
    ends_by=NOON + timedelta(minutes=10),
    flavor=Flavor(vcpus=2),
    chosen=CHOSEN,
    alternates=(FIRST, SECOND),
)
NEWCOMER = Instance(id=ORDER.instance, request_id=ORDER.request_id, state="deleting", changed_at=NOON)
PLACED = structs.replace(
    NEWCOMER, state="building", order=ORDER, attempt=1, host=CHOSEN, alternates=(FIRST, SECOND)
)
DESTROY = DestroyInstance(cell="c1", instance=ORDER.instance, attempt=1, host=CHOSEN.share.host)


@pytest.mark.parametrize(
    "row",
    [
        NEWCOMER,
        PLACED,
        structs.replace(PLACED, host=SECOND, alternates=()),
        structs.replace(PLACED, host=FIRST, alternates=(SECOND,), outbox=(Pending(101, NOON, DESTROY),)),
        structs.replace(PLACED, host=ELSEWHERE, alternates=(SECOND, ELSEWHERE)),
        structs.replace(PLACED, host=structs.replace(CHOSEN, name="renamed")),
    ],
    ids=[
        "no order",
        "as chosen",
        "the last alternate",
        "with words",
        "what was not chosen",
        "a choice renewed",
    ],
)
def test_a_row_is_read_as_it_was_written(row: Instance) -> None:
    assert assemble_row(decode_body(encode_body(row)), row.order) == row


def test_an_order_to_spawn_is_not_written_where_it_follows_from_the_row() -> None:
    spawn = Pending(101, NOON, spawn_order(PLACED, ORDER, CHOSEN))
    renewed = structs.replace(spawn.message, name="renamed")
    row = structs.replace(PLACED, outbox=(spawn, Pending(102, NOON, renewed), Pending(103, NOON, DESTROY)))

    written = encode_body(row)

    assert written.count(b"renamed") == written.count(b"VCPU") == 1
    assert assemble_row(decode_body(written), ORDER) == row


def test_an_order_to_deploy_is_not_written_where_it_follows_from_the_row() -> None:
    node = structs.replace(CHOSEN, kind=NODE)
    order = structs.replace(ORDER, chosen=node, image=Image(source="http://images/1"), ports=("port-1",))
    row = structs.replace(PLACED, order=order, host=node)
    undeploy = UndeployInstance(cell="c1", instance=row.id, attempt=1, host=node.share.host)
    deploy = spawn_order(row, order, node)
    row = structs.replace(row, outbox=(Pending(101, NOON, deploy), Pending(102, NOON, undeploy)))

    written = encode_body(row)

    assert b"images" not in written
    assert assemble_row(decode_body(written), order) == row


def test_unchanged_alternates_of_the_order_are_not_written_one_by_one() -> None:
    row = structs.replace(PLACED, alternates=ORDER.alternates)

    assert decode_body(encode_body(row)).alternates is None
    assert assemble_row(decode_body(encode_body(row)), ORDER) == row


def test_messages_confirmed_since_are_left_out() -> None:
    row = structs.replace(PLACED, outbox=(Pending(101, NOON, DESTROY), Pending(102, NOON, DESTROY)))
    first, second = ((row.id.bytes, each.sequence) for each in row.outbox)

    assert without_confirmed(row, ()) == PLACED
    assert without_confirmed(row, {second}) == structs.replace(row, outbox=row.outbox[1:])
    assert without_confirmed(row, {first, second, (b"another's", 101)}) is row


def test_a_note_is_read_as_it_was_written() -> None:
    said = [(PLACED.id.bytes, 101), (PLACED.id.bytes, 2**63 - 1), (bytes(16), 0)]

    assert decode_note(encode_note(said)) == set(said)
    assert decode_note(encode_note([])) == set()


def test_a_row_is_remembered_by_its_body_for_as_long_as_the_instance_is_being_built() -> None:
    cache = RowCache()
    placed, swapping, active = (
        structs.replace(PLACED, state=state) for state in ("building", "swapping", "active")
    )

    cache.replace(None, encode_body(placed), placed)
    assert cache.row_of(encode_body(placed)) is placed
    later = structs.replace(placed, order=structs.replace(ORDER, issued_at=NOON + timedelta(days=3)))
    assert cache.row_of(encode_body(later)) is None

    cache.replace(encode_body(placed), encode_body(swapping), swapping)
    assert cache.row_of(encode_body(placed)) is None
    assert cache.row_of(encode_body(swapping)) is swapping

    cache.replace(encode_body(swapping), encode_body(active), active)
    assert cache.row_of(encode_body(swapping)) is None
    assert cache.row_of(encode_body(active)) is None


def test_a_remembered_row_has_its_messages_until_all_notes_that_name_them_are_deleted() -> None:
    cache = RowCache()
    row = structs.replace(PLACED, outbox=(Pending(101, NOON, DESTROY), Pending(102, NOON, DESTROY)))
    body, (first, second) = encode_body(row), [(row.id.bytes, each.sequence) for each in row.outbox]
    cache.noted(1, [first, second])
    cache.noted(2, [second])
    cache.replace(None, body, row)

    for confirmed, left in (((), (101, 102)), ((1, 7), (102,)), ((1,), (102,)), ((2,), ()), ((2,), ())):
        cache.confirmed(confirmed)
        known = cache.row_of(body)
        assert known is not None
        assert tuple(each.sequence for each in known.outbox) == left


def test_among_many_rows_the_oldest_is_read_again() -> None:
    cache = RowCache()
    for number in range(CACHED_ROWS_MAX):
        cache.replace(None, b"%d" % number, PLACED)
    assert cache.row_of(b"0") is PLACED

    cache.replace(None, b"one more", PLACED)
    assert cache.row_of(b"0") is None
    assert cache.row_of(b"1") is PLACED


def test_the_choices_of_the_order_are_written_once() -> None:
    written = encode_body(PLACED) + encode_order(ORDER)

    for choice in (CHOSEN, FIRST, SECOND):
        assert written.count(choice.name.encode()) == 1
