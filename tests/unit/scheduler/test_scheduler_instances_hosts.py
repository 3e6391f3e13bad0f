"""What becomes of an instance at API level, and of hosts: the rules beside core."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import numpy as np
import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import BuildInstance, InstanceActive, InstanceDeleted, InstanceFailed, InstancePlaced
from bus.messages.cell import PlaceInCell, RemoveFromCell
from bus.messages.hosts import HostImages, HostMetrics, HostsMeasured, HostsReported, ImagesCached
from bus.messages.placement import ReleaseClaim
from cell_conductor.core.rows import newer
from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.choosing.plugins import as_read
from engine.flavors import Flavor, InstanceId, RequestId
from engine.hosts import HostFacts, HostSetting, HostState
from engine.inventories import Choice, ProviderId, ResourceAmount, Share
from engine.picture.columns import METRIC_NAMES_MAX, PROFILES_KEPT
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from scheduler_worker.core.hosts import is_untold, reported, with_mode, word_for_cell
from scheduler_worker.core.instances.lifecycle import deleted, heard, overdue
from scheduler_worker.core.instances.rows import InstanceRow, accepted, failed, messages_of, placed
from scheduler_worker.forgetting import Forgetting
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.store import HostQuery
from tests.simulation.loop import run_simulated, until_s
from tests.stores_in_memory import MemorySchedulerStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
LATER = NOON + timedelta(minutes=10)
HOST = ProviderId(UUID(int=7))
OTHER = ProviderId(UUID(int=8))
INSTANCE = InstanceId(UUID(int=1))

DRAINING = HostSetting(mode="draining", reason="broken fan", number=1)


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


class Noticing(Picture):
    """A picture that remembers what it was told of hosts, and a clock to go with it."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOON
        self.up: list[bool] = []
        self.sequences: list[int] = []
        self.forgotten: list[ProviderId] = []

    def put_hosts(self, hosts: object) -> None:
        assert isinstance(hosts, list)
        self.up += [host.up for host in hosts]
        self.sequences += [host.sequence for host in hosts]

    def remove_hosts(self, hosts: object) -> None:
        assert isinstance(hosts, list)
        self.forgotten += hosts

    def clock(self) -> datetime:
        return self.now


def a_host() -> HostState:
    return HostState(id=HOST, name="h1", cell="c1", up=True, sequence=3)


def a_registry(picture: Noticing) -> HostRegistry:
    return HostRegistry(picture, timedelta(seconds=60), picture.clock)


def test_a_host_is_believed_for_one_period_and_then_down_until_it_is_heard_of() -> None:
    picture = Noticing()
    registry = a_registry(picture)
    registry.learn([a_host()])

    picture.now += timedelta(seconds=59)
    registry.look()
    assert picture.up == [True]
    picture.now += timedelta(seconds=1)
    registry.look()
    assert picture.up == [True, False]
    assert not registry.as_heard(a_host()).up

    registry.hear_beats("c2", [HOST])
    registry.hear_beats("c1", [HOST], speaks_for="c2")
    assert picture.up == [True, False]
    registry.hear_beats("c1", [HOST])
    assert picture.up == [True, False, True]
    assert picture.sequences == sorted(picture.sequences)


def test_a_host_keeps_what_an_operator_said_of_it_when_it_reports() -> None:
    picture = Noticing()
    registry = a_registry(picture)
    registry.learn([structs.replace(a_host(), setting=DRAINING)])

    registry.hear_facts(HostsReported(cell="c1", hosts=(HostFacts(id=HOST, name="h1", io_ops=2),)))
    registry.hear_facts(HostsReported(cell="c2", hosts=(HostFacts(id=HOST, name="mine"),)))

    host = registry.get(HOST)
    assert host is not None
    assert (host.name, host.io_ops, host.setting) == ("h1", 2, DRAINING)


def test_an_older_row_does_not_undo_a_later_one() -> None:
    registry = a_registry(Noticing())
    registry.learn([structs.replace(a_host(), sequence=4, setting=DRAINING)])

    registry.learn([a_host()])

    host = registry.get(HOST)
    assert host is not None
    assert host.setting == DRAINING


def a_report(io_ops: int, *, epoch: int = 0, sequence: int = 0) -> HostsReported:
    facts = HostFacts(id=HOST, name="h1", io_ops=io_ops)
    return HostsReported(cell="c1", hosts=(facts,), epoch=epoch, sequence=sequence)


@pytest.mark.parametrize(
    ("reports", "last"),
    [
        ([a_report(1, sequence=5), a_report(2, sequence=4)], 1),
        ([a_report(1, sequence=5), a_report(2, sequence=6)], 2),
        ([a_report(1, epoch=2, sequence=1), a_report(2, epoch=1, sequence=9)], 1),
        ([a_report(1), a_report(2)], 2),
        ([a_report(1, sequence=5), a_report(2)], 1),
    ],
    ids=["late", "in order", "of an older term", "without numbers", "without a number after one with"],
)
def test_of_a_hosts_reports_the_latest_counts_whenever_it_comes(
    reports: list[HostsReported], last: int
) -> None:
    registry = a_registry(Noticing())
    for report in reports:
        registry.hear_facts(report)

    host = registry.get(HOST)
    assert host is not None
    assert host.io_ops == last


def test_a_row_that_was_written_by_an_older_report_does_not_undo_what_the_host_said_since() -> None:
    registry = a_registry(Noticing())
    registry.learn([a_host()])
    registry.hear_facts(a_report(7, sequence=9))

    registry.learn([structs.replace(a_host(), sequence=4, setting=DRAINING, io_ops=1, report_sequence=8)])

    host = registry.get(HOST)
    assert host is not None
    assert (host.io_ops, host.setting, host.sequence) == (7, DRAINING, 4)


def test_a_host_that_was_forgotten_and_comes_back_is_heard_of_then() -> None:
    picture = Noticing()
    registry = a_registry(picture)
    registry.learn([a_host()])
    picture.now += timedelta(days=2)
    registry.look()

    registry.forget([HOST])
    registry.learn([a_host()])

    assert picture.forgotten == [HOST]
    assert picture.up == [True, False, True]


@pytest.mark.parametrize("sequence", [3, 4], ids=["heard of by nobody", "heard of by another worker"])
def test_a_removed_host_is_forgotten_unless_another_worker_has_heard_of_it_since(sequence: int) -> None:
    picture = Noticing()
    registry = a_registry(picture)
    registry.learn([a_host()])
    store = MemorySchedulerStore()

    async def scenario() -> list[HostState]:
        async with store.transaction() as transaction:
            await transaction.save_hosts([structs.replace(a_host(), sequence=sequence)], NOON)
        forgetting = Forgetting(
            store,
            registry,
            lambda _: False,
            picture.clock,
            horizon=timedelta(days=1),
            down_after=timedelta(seconds=60),
            every_s=10,
        )
        picture.now += timedelta(hours=1)
        running = asyncio.create_task(forgetting.run())
        await until_s(5)
        picture.now += timedelta(days=2)
        await until_s(15)
        await forgetting.stop()
        await running
        return [*await store.hosts(HostQuery(ids=(HOST,)))]

    rows = run_simulated(scenario())

    assert (picture.forgotten, rows) == (
        ([HOST], []) if sequence == 3 else ([], [structs.replace(a_host(), sequence=4)])
    )


def test_a_removed_host_that_was_set_is_forgotten_when_its_cell_knows_that_it_is_not_set_any_more() -> None:
    picture = Noticing()
    registry = a_registry(picture)
    dead = structs.replace(with_mode(a_host(), "dead", "fire", "", NOON), told=1)
    registry.learn([dead])
    store = MemorySchedulerStore()

    async def scenario() -> tuple[HostState, list[HostState]]:
        async with store.transaction() as transaction:
            await transaction.save_hosts([dead], NOON)
        forgetting = Forgetting(
            store,
            registry,
            lambda _: False,
            picture.clock,
            horizon=timedelta(days=1),
            down_after=timedelta(seconds=60),
            every_s=10,
        )
        picture.now += timedelta(hours=1)
        running = asyncio.create_task(forgetting.run())
        await until_s(5)
        picture.now += timedelta(days=2)
        await until_s(35)
        (untold,) = registry.untold()
        told = structs.replace(untold, told=2, sequence=untold.sequence + 1)
        async with store.transaction() as transaction:
            await transaction.lock_hosts([HOST], ())
            await transaction.save_hosts([told], NOON)
        registry.learn([told])
        await until_s(45)
        await forgetting.stop()
        await running
        return untold, [*await store.hosts(HostQuery(ids=(HOST,)))]

    untold, rows = run_simulated(scenario())

    assert (untold.setting.mode, untold.setting.number, untold.must_clean) == ("up", 2, True)
    assert (picture.forgotten, rows) == ([HOST], [])


def test_the_settings_of_a_host_that_comes_back_after_it_was_forgotten_are_later_ones_for_its_cell() -> None:
    facts = HostFacts(id=HOST, name="h1")
    report = HostsReported(cell="c1", hosts=(facts,))
    first = reported(None, facts, report, NOON)
    assert first is not None
    known = newer(None, word_for_cell(with_mode(first, "down", "", "", NOON)))
    back = reported(None, facts, report, NOON + timedelta(days=1))
    assert back is not None
    assert not is_untold(back), "a new host costs its cell no message"

    dead = newer(known, word_for_cell(with_mode(back, "dead", "fire", "", NOON)))

    assert dead is not None
    assert dead.mode == "dead"


# Failed builds, and metrics


def after_failures(host: HostState | None, failed_builds: int, sequence: int = 0) -> HostState:
    facts = HostFacts(id=HOST, name="h1", failed_builds=failed_builds, sequence=sequence)
    after = reported(host, facts, HostsReported(cell="c1", hosts=(facts,)), NOON, failed_builds_max=3)
    assert after is not None
    return after


def test_a_host_where_too_many_builds_in_a_row_failed_is_disabled_with_the_reason() -> None:
    nearly = after_failures(a_host(), 2)
    over = after_failures(nearly, 3)

    assert (nearly.setting.mode, nearly.failed_builds) == ("up", 2)
    assert over.setting.mode == "draining"
    assert over.setting.reason == "3 builds in a row failed (failed_builds_max is 3)"


def test_a_host_that_an_operator_enables_again_is_disabled_by_the_next_failure_only() -> None:
    over = after_failures(a_host(), 5)
    enabled = structs.replace(over, setting=HostSetting())

    assert after_failures(enabled, 5).setting.mode == "up"
    assert after_failures(enabled, 0).setting.mode == "up"
    assert after_failures(enabled, 6).setting.mode == "draining"


def test_failures_leave_an_operators_reason_and_a_limit_of_zero_disables_nothing() -> None:
    closed = structs.replace(a_host(), setting=DRAINING)
    facts = HostFacts(id=HOST, name="h1", failed_builds=100)
    unlimited = reported(a_host(), facts, HostsReported(cell="c1", hosts=(facts,)), NOON)

    assert after_failures(closed, 9).setting.reason == "broken fan"
    assert unlimited is not None
    assert unlimited.setting.mode == "up"


def test_metrics_reach_the_picture_from_the_hosts_own_cell_and_in_their_order() -> None:
    picture = Picture()
    registry = HostRegistry(picture, timedelta(seconds=60), lambda: NOON)

    def hear(sequence: int, heat: float, cell: str = "c1", speaks_for: str | None = None) -> float:
        measured = HostMetrics(id=HOST, values={"heat": heat})
        registry.hear_unwritten(HostsMeasured(cell=cell, hosts=(measured,), sequence=sequence), speaks_for)
        return float(picture.columns.metrics["heat"][0]) if "heat" in picture.columns.metrics else -1.0

    assert hear(1, 10.0) == -1.0
    registry.learn([a_host()])
    assert hear(2, 20.0) == 20.0
    assert hear(4, 40.0) == 40.0
    assert hear(3, 30.0) == 40.0
    assert hear(5, 50.0, cell="c2") == 40.0
    assert hear(6, 60.0, speaks_for="c2") == 40.0
    registry.hear_unwritten(
        HostsMeasured(cell="c1", hosts=(HostMetrics(id=HOST, values={"load": 1.0}),), sequence=7)
    )
    assert np.isnan(picture.columns.metrics["heat"][0])


def test_cached_images_reach_the_picture_and_replace_earlier_ones() -> None:
    picture = Picture()
    registry = HostRegistry(picture, timedelta(seconds=60), lambda: NOON)
    registry.learn([a_host()])

    def hear(sequence: int, *images: str, cell: str = "c1") -> list[bool]:
        cached = HostImages(id=HOST, images=images)
        registry.hear_unwritten(ImagesCached(cell=cell, hosts=(cached,), sequence=sequence))
        return [picture.columns.images.knows(image) for image in ("debian", "fedora")]

    assert hear(2, "debian") == [True, False]
    assert hear(3, "fedora") == [False, True]
    assert hear(1, "debian") == [False, True]
    assert hear(4, "debian", cell="c2") == [False, True]
    assert picture.columns.images.having("fedora", 2).tolist() == [True, False]
    registry.forget([HOST])
    picture.remove_hosts([HOST])
    assert not picture.columns.images.knows("fedora")


def test_only_an_image_that_some_host_has_counts_and_only_where_it_is_weighed() -> None:
    picture = Picture()
    picture.put_hosts([a_host()])
    picture.cache_images(HOST, ("debian",))
    debian, fedora = (InstanceSpec(amounts=(("VCPU", 1),), image=image) for image in ("debian", "fedora"))
    plain = structs.replace(debian, image="")

    assert as_read(debian, picture, weighs_images=True) == debian
    assert as_read(fedora, picture, weighs_images=True) == plain
    assert as_read(debian, picture) == plain
    assert as_read(fedora, picture, frozenset({"image"})) == fedora
    weighing = PluginSettings(image_cache_weight_multiplier=2.0)
    assert (chosen_plugins(weighing).weighs_images, chosen_plugins(PluginSettings()).weighs_images) == (
        True,
        False,
    )


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
