"""What becomes of an instance at API level, and of hosts: the rules beside core."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildInstance, InstanceActive, InstanceDeleted, InstanceFailed, InstancePlaced
from bus.messages.cell import PlaceInCell, RemoveFromCell
from bus.messages.placement import ReleaseClaim
from engine.flavors import Flavor, InstanceId, RequestId
from engine.hosts import HostState
from engine.inventories import Choice, ProviderId, ResourceAmount, Share
from engine.picture.columns import METRIC_NAMES_MAX, PROFILES_KEPT
from engine.picture.picture import Picture
from scheduler_worker.core.instances.lifecycle import deleted, heard, overdue
from scheduler_worker.core.instances.rows import InstanceRow, accepted, failed, messages_of, placed

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=10)
HOST = ProviderId(UUID(int=7))
OTHER = ProviderId(UUID(int=8))
INSTANCE = InstanceId(UUID(int=1))


def a_row() -> InstanceRow:
    (row,) = accepted(BuildInstance(request_id=RequestId(UUID(int=9)), name="web"), [INSTANCE], NOON, LATER)
    return row


def an_order(row: InstanceRow) -> PlaceInCell:
    share = Share(host=HOST, amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=1),))
    return PlaceInCell(
        cell="c1",
        instance=row.id,
        request_id=row.told.request_id,
        sequence=2,
        attempt=1,
        issued_at=NOON,
        ends_by=LATER,
        flavor=Flavor(vcpus=1),
        chosen=Choice(name="h1", share=share),
    )


def a_placed_row() -> InstanceRow:
    row = placed(a_row(), an_order(a_row()), "h1", NOON)
    assert row is not None
    return row


def kinds(row: InstanceRow | None) -> list[type[Message]]:
    assert row is not None
    return [type(message) for message in messages_of(row)]


def active(sequence: int, cell: str = "c1") -> InstanceActive:
    state = structs.replace(a_placed_row().told, sequence=sequence, state="active", host="h2", attempt=2)
    return InstanceActive(cell=cell, instance=state)


def test_what_is_placed_says_so_to_its_cell_and_to_everybody() -> None:
    row = a_placed_row()

    assert (row.told.state, row.told.cell, row.told.host, row.told.sequence) == ("placed", "c1", "h1", 2)
    assert kinds(row) == [PlaceInCell, InstancePlaced]


def test_of_placing_failing_and_deleting_the_first_counts() -> None:
    over = deleted(a_row(), NOON)
    assert over is not None
    assert placed(over, an_order(over), "h1", NOON) is None
    assert failed(over, NOON, reason="late") is None
    assert deleted(over, NOON) is None
    assert failed(a_placed_row(), NOON, reason="late") is None


def test_what_ends_without_a_cell_lets_go_of_any_claim_on_its_way() -> None:
    assert kinds(deleted(a_row(), NOON)) == [InstanceDeleted, ReleaseClaim]
    assert kinds(failed(a_row(), NOON, reason="no valid host")) == [InstanceFailed, ReleaseClaim]


def test_what_a_cell_has_is_deleted_by_the_cell() -> None:
    row = deleted(a_placed_row(), NOON)
    assert row is not None
    assert row.told.state == "deleting"
    (order,) = messages_of(row)
    assert isinstance(order, RemoveFromCell)
    assert order.sequence == row.told.sequence == 3

    over = heard(row, InstanceDeleted(cell="c1", instance=active(105).instance), LATER)
    assert over is not None
    assert messages_of(over) == ()


def test_a_cells_word_counts_if_it_is_later_and_the_cells_own() -> None:
    now = heard(a_placed_row(), active(102), LATER)
    assert now is not None
    assert (now.told.state, now.told.host, now.told.attempt, now.told.sequence) == ("active", "h2", 2, 102)
    assert messages_of(now) == ()

    assert heard(now, active(101), LATER) is None
    assert heard(now, active(103, cell="c2"), LATER) is None
    assert heard(a_row(), active(103), LATER) is None


def test_what_is_being_deleted_is_not_active_again_and_its_order_is_still_to_be_said() -> None:
    row = deleted(a_placed_row(), NOON)
    assert row is not None

    now = heard(row, active(102), LATER)

    assert now is not None
    assert (now.told.state, now.told.host) == ("deleting", "h2")
    assert kinds(now) == [RemoveFromCell]


def test_only_what_was_never_placed_is_ended_by_its_deadline() -> None:
    assert overdue(a_row(), LATER - timedelta(seconds=1)) is None
    assert overdue(a_placed_row(), LATER) is None
    row = overdue(a_row(), LATER)
    assert row is not None
    assert (row.told.state, row.told.cell) == ("error", "cell0")
    assert row.told.reason.startswith("not placed within 600 s of its acceptance")


def a_host() -> HostState:
    return HostState(id=HOST, name="h1", cell="c1", up=True, sequence=3)


# Failed builds, and metrics


def test_the_codes_of_profiles_that_no_host_has_any_more_are_given_up() -> None:
    picture = Picture()

    for number in range(2000):
        host = structs.replace(a_host(), hypervisor_type=f"QEMU {number}", sequence=number)
        picture.put_hosts([host, structs.replace(a_host(), id=OTHER, name="h2", hypervisor_type="KVM")])

    assert len(picture.columns.profiles.names) <= PROFILES_KEPT
    told = [picture.columns.profiles.names[code].hypervisor_type for code in picture.columns.profile[:2]]
    assert told == ["QEMU 1999", "KVM"]


def test_columns_of_metrics_are_bounded() -> None:
    picture = Picture()
    picture.put_hosts([a_host()])

    for number in range(METRIC_NAMES_MAX + 50):
        picture.measure(HOST, {f"metric {number}": 1.0})

    assert len(picture.columns.metrics) == METRIC_NAMES_MAX
