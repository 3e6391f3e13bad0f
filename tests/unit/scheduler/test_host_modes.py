"""The modes of hosts at the API level: how they are set and told to cells, and when a host may be used again."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.codec import known_messages
from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.build import BuildRejected
from bus.messages.hosts import HostChanged, HostCleaned, HostSet, HostsReported, SetHost, SetHostInCell
from bus.topology import objects_of
from bus.workers.handling import Answer, Received, Said, Tell
from bus.workers.health_server import Metrics
from bus.workers.station import Station
from engine.hosts import NODE, HostFacts, HostSetting, HostState, why_down, why_not_enabled
from engine.inventories import ProviderId
from engine.picture.picture import Picture
from kit.health import About, Health
from scheduler_worker.core.hosts import cleaned, is_untold, may_be_up, problem_of, reported, with_mode
from scheduler_worker.handlers import host_order_handlers, host_report_handlers
from scheduler_worker.hosts import HostRegistry, HostWatch, ModeTeller
from scheduler_worker.outbox import Outbox, OutboxNotes
from scheduler_worker.store import HostQuery
from tests.simulation.loop import run_simulated
from tests.stores_in_memory import MemorySchedulerStore

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOST = ProviderId(UUID(int=7))
UP = HostState(id=HOST, name="rack-1", cell="c1", up=True)


def test_each_setting_has_the_next_number_and_says_who_when_and_why() -> None:
    dead = with_mode(UP, "dead", "fire", "moor-operator", NOON)

    assert dead.setting == HostSetting(mode="dead", reason="fire", by="moor-operator", at=NOON, number=1)
    assert with_mode(dead, "dead", "fire", "moor-operator", NOON + timedelta(hours=1)) is dead
    assert with_mode(dead, "up", "", "moor-operator", NOON).setting.number == 2
    assert with_mode(dead, "dead", "flood", "moor-operator", NOON).setting.number == 2


def test_only_a_host_that_was_dead_must_clean_until_its_cell_confirms_this_setting() -> None:
    dead = with_mode(UP, "dead", "", "", NOON)
    back = with_mode(dead, "up", "", "", NOON)

    assert not with_mode(with_mode(UP, "down", "", "", NOON), "up", "", "", NOON).must_clean
    assert back.must_clean
    assert with_mode(with_mode(dead, "draining", "", "", NOON), "up", "", "", NOON).must_clean
    assert cleaned(dead, 1) is dead
    assert cleaned(back, 1) is back
    assert not cleaned(back, 2).must_clean


@pytest.mark.parametrize(
    ("host", "down", "not_enabled"),
    [
        (UP, "", ""),
        (with_mode(UP, "draining", "disks", "", NOON), "", "is draining: disks"),
        (with_mode(UP, "down", "", "", NOON), "is set down: no reason given", "is set down: no reason given"),
        (with_mode(UP, "dead", "fire", "", NOON), "is dead: fire", "is dead: fire"),
        (
            structs.replace(UP, must_clean=True),
            "was dead, and has not confirmed yet that it has cleaned up",
            "",
        ),
    ],
    ids=["up", "draining", "down", "dead", "unclean"],
)
def test_a_host_that_may_not_be_used_says_why(host: HostState, down: str, not_enabled: str) -> None:
    assert (why_down(host), why_not_enabled(host)) == (down, not_enabled)
    assert may_be_up(host) is (down == "")


def test_a_bare_metal_node_cannot_be_dead() -> None:
    node = structs.replace(UP, kind=NODE)

    assert "a bare-metal node cannot be set dead" in problem_of(node, SetHost(host="rack-1", mode="dead"))
    assert problem_of(node, SetHost(host="rack-1", mode="down")) == ""
    assert problem_of(UP, SetHost(host="rack-1", mode="dead")) == ""


def test_failed_builds_leave_what_an_operator_has_set_and_a_node_in_a_new_cell_is_told_there_again() -> None:
    facts = HostFacts(id=HOST, name="rack-1", failed_builds=9)
    down = structs.replace(with_mode(UP, "down", "fire", "moor-operator", NOON), told=1)
    node = structs.replace(down, kind=NODE)
    moved = HostsReported(cell="c2", hosts=(structs.replace(facts, kind=NODE, failed_builds=0),))

    after = reported(down, facts, HostsReported(cell="c1", hosts=(facts,)), NOON, failed_builds_max=3)
    elsewhere = reported(node, moved.hosts[0], moved, NOON)

    assert after is not None
    assert (after.setting, after.told) == (down.setting, 1)
    assert elsewhere is not None
    assert (elsewhere.cell, elsewhere.told, is_untold(elsewhere)) == ("c2", 0, True)


def test_a_cell_that_reports_a_host_first_does_not_keep_it_from_the_cell_whose_it_is() -> None:
    facts = HostFacts(id=HOST, name="rack-1")
    false = structs.replace(
        with_mode(UP, "down", "", "", NOON), cell="c9", sequence=40, report_sequence=2**60
    )
    true = HostsReported(cell="c1", hosts=(facts,), sequence=1)

    after = reported(false, facts, true, NOON, speaks_for="c1", placed_in=lambda _: "c1")

    assert after is not None
    assert (after.cell, after.setting.mode, after.sequence) == ("c1", "up", 40)
    assert after.setting.number > false.setting.number
    assert reported(false, facts, true, NOON, speaks_for="c1", placed_in=lambda _: "c9") is None
    assert reported(false, facts, true, NOON, speaks_for="c1") is None


class Worker:
    """A scheduler's handlers about hosts, on a store and a registry."""

    def __init__(self, *hosts: HostState) -> None:
        self.store = MemorySchedulerStore()
        self.hosts = hosts
        self.registry = HostRegistry(Picture(), timedelta(seconds=60), lambda: NOON)
        self._outbox = Outbox(self.store, OutboxNotes(self.store, timedelta(seconds=5), lambda: NOON))
        self._handlers = {
            **host_order_handlers(self.registry, lambda: NOON),
            **host_report_handlers(self.registry, lambda: NOON),
        }

    async def open(self) -> None:
        async with self.store.transaction() as tx:
            await tx.save_hosts(self.hosts, NOON)
        self.registry.learn(self.hosts)

    async def handle(self, *messages: Message, cell: str | None = None) -> list[Message]:
        """The answers and other messages of one batch."""
        asks = [
            Received(each, "id", "", "moor-operator", "answers.moor-operator.x", 0, cell=cell)
            for each in messages
        ]
        handler = self._handlers[type(messages[0])]
        assert callable(handler), "it gets a transaction"
        async with self._outbox.transaction() as tx:
            said: list[Said] = [*await handler(asks, tx)]
        return [each.message for each in said if isinstance(each, Answer | Tell)]

    async def row(self) -> HostState:
        (host,) = await self.store.hosts(HostQuery(ids=(HOST,)))
        return host


def test_a_set_host_is_answered_told_by_an_event_and_known_at_once() -> None:
    async def story() -> None:
        worker = Worker(UP)
        await worker.open()

        event, answer = await worker.handle(
            SetHost(host="rack-1", mode="down", reason="fire", for_user="ann")
        )

        assert isinstance(answer, HostSet)
        assert answer.host.setting == HostSetting(
            mode="down", reason="fire", by="moor-operator for ann", at=NOON, number=1
        )
        assert not answer.host.up
        assert event == HostChanged(cell="c1", host=answer.host)
        known = worker.registry.get(HOST)
        assert known is not None
        assert (known.setting, known.up) == (answer.host.setting, False)
        worker.registry.hear_beats("c1", [HOST])
        known = worker.registry.get(HOST)
        assert known is not None
        assert not known.up, "a heartbeat does not make it up"

    asyncio.run(story())


def test_a_name_in_two_cells_means_a_host_only_with_its_cell() -> None:
    async def story() -> None:
        namesake = structs.replace(UP, id=ProviderId(UUID(int=8)), cell="c2")
        worker = Worker(UP, namesake)
        await worker.open()

        (refused,) = await worker.handle(SetHost(host="rack-1", mode="dead"))
        event, answer = await worker.handle(SetHost(host="c2/rack-1", mode="down"))

        assert isinstance(refused, BuildRejected)
        assert (refused.field, refused.value) == ("host", "rack-1")
        assert refused.reason == (
            "hosts of cells c1 and c2 have this name: give one as c1/rack-1 or c2/rack-1"
        )
        assert isinstance(event, HostChanged)
        assert isinstance(answer, HostSet)
        assert (answer.host.id, answer.host.cell, answer.host.also_in) == (namesake.id, "c2", ("c1",))
        assert (await worker.row()).setting == HostSetting()

    asyncio.run(story())


def test_a_name_in_two_cells_raises_one_alarm(caplog: pytest.LogCaptureFixture) -> None:
    async def story() -> None:
        worker = Worker(UP, structs.replace(UP, id=ProviderId(UUID(int=9)), name="other"))
        await worker.open()
        worker.registry.look()
        assert worker.registry.readings[0].by_labels == {}

        facts = HostFacts(id=ProviderId(UUID(int=8)), name="RACK-1")
        await worker.handle(HostsReported(cell="c2", hosts=(facts,)), cell="c2")
        worker.registry.look()
        worker.registry.look()

        assert worker.registry.readings[0].by_labels == {("rack-1",): 1}
        watch = HostWatch(worker.store, worker.registry, 1.0, lambda: NOON)
        page = Metrics(Health(About("scheduler", "1"), (watch,))).page().decode()
        assert 'moor_host_name_clashes_total{name="rack-1"} 1.0' in page
        assert [each.message for each in caplog.records if each.levelname == "ERROR"] == [
            "hosts of cells c1, c2 are called rack-1: give the name with its cell"
        ]
        worker.registry.forget([facts.id])
        worker.registry.look()
        assert worker.registry.as_heard(UP).also_in == ()

    asyncio.run(story())


def test_of_two_orders_at_once_each_gets_the_state_after_it_and_the_last_one_counts() -> None:
    async def story() -> None:
        worker = Worker(UP)
        await worker.open()

        said = await worker.handle(
            SetHost(host="rack-1", mode="dead", sure=True), SetHost(host="rack-1", mode="draining")
        )

        answers = [each.host.setting for each in said if isinstance(each, HostSet)]
        assert [(each.mode, each.number) for each in answers] == [("dead", 1), ("draining", 2)]
        row = await worker.row()
        assert (row.setting.mode, row.must_clean) == ("draining", True)

    asyncio.run(story())


def test_an_unknown_host_and_a_node_that_is_to_be_dead_are_refused_with_field_value_and_reason() -> None:
    async def story() -> None:
        worker = Worker(structs.replace(UP, kind=NODE))
        await worker.open()

        near, far, node = await worker.handle(
            SetHost(host="rack-l", mode="down"),
            SetHost(host="zzz", mode="down"),
            SetHost(host="rack-1", mode="dead"),
        )

        assert isinstance(near, BuildRejected)
        assert (near.field, near.value) == ("host", "rack-l")
        assert near.reason == "there is no host of this name; did you mean rack-1?"
        assert isinstance(far, BuildRejected)
        assert far.reason == "there is no host of this name; `moor host list` shows all hosts"
        assert isinstance(node, BuildRejected)
        assert (node.field, node.value) == ("mode", "dead")
        assert await worker.row() == structs.replace(UP, kind=NODE)

    asyncio.run(story())


def test_a_host_that_is_heard_is_set_dead_only_by_an_operator_who_is_sure() -> None:
    async def story() -> None:
        worker = Worker(UP)
        await worker.open()

        (refused,) = await worker.handle(SetHost(host="rack-1", mode="dead"))
        assert isinstance(refused, BuildRejected)
        assert (refused.field, refused.value) == ("sure", "false")
        assert "rack-1 was heard 0 s ago" in refused.reason
        assert (await worker.row()).setting == HostSetting()
        # One that is set down is still heard.
        await worker.handle(SetHost(host="rack-1", mode="down"))
        assert isinstance((await worker.handle(SetHost(host="rack-1", mode="dead")))[0], BuildRejected)

        await worker.handle(SetHost(host="rack-1", mode="dead", sure=True))
        _, again = await worker.handle(SetHost(host="rack-1", mode="dead", reason="fire"))
        assert isinstance(again, HostSet), "it is dead already"
        assert again.host.setting.reason == "fire"

        silent = Worker(structs.replace(UP, silent_since=NOON - timedelta(hours=1)))
        await silent.open()
        _, dead = await silent.handle(SetHost(host="rack-1", mode="dead"))
        assert isinstance(dead, HostSet)

    asyncio.run(story())


def test_a_clean_host_may_be_used_again_only_by_the_word_of_its_own_cell_about_its_present_setting() -> None:
    async def story() -> None:
        worker = Worker(UP)
        await worker.open()
        for mode in ("dead", "up"):
            await worker.handle(SetHost(host="rack-1", mode=mode, sure=True))
        assert not worker.registry.as_heard(await worker.row()).up

        for number, cell, speaks_for in ((1, "c1", None), (2, "c2", None), (2, "c1", "c2")):
            said = await worker.handle(HostCleaned(cell=cell, host=HOST, number=number), cell=speaks_for)
            assert said == []
        assert (await worker.row()).must_clean

        (event,) = await worker.handle(HostCleaned(cell="c1", host=HOST, number=2), cell="c1")
        assert isinstance(event, HostChanged)
        assert not event.host.must_clean
        assert worker.registry.as_heard(await worker.row()).up

    asyncio.run(story())


def test_an_event_of_a_cells_own_broker_about_a_setting_is_not_believed() -> None:
    worker = Worker(UP)
    worker.registry.learn((UP,))
    changed = HostChanged(cell="c1", host=structs.replace(UP, must_clean=True, sequence=9))

    worker.registry.hear(Received(changed, "", "", "", "", 0, cell="c1"))
    assert worker.registry.get(HOST) == UP
    worker.registry.hear(Received(changed, "", "", "", "", 0))
    known = worker.registry.get(HOST)
    assert known is not None
    assert known.must_clean


def test_a_cell_is_told_each_setting_until_its_broker_has_it() -> None:
    async def story() -> tuple[list[Message], HostState, HostState]:
        broker = MemoryBroker()
        worker = Worker(UP)
        await worker.open()
        station, cell = (Station(broker.as_user(), name) for name in ("scheduler", "conductor"))
        teller = ModeTeller(
            station, worker.store, worker.registry, lambda cell: cell == "c1", every_s=5.0, clock=lambda: NOON
        )
        running = asyncio.create_task(teller.run())
        await worker.handle(SetHost(host="rack-1", mode="down", reason="fire"))
        await asyncio.sleep(20)
        untold = await worker.row()

        # Before this, there is no queue for the order.
        connection = broker.connect("")
        await connection.declare(objects_of(("c1",)))
        consuming = await connection.open_consuming("conductor.c1.work", 10)
        await asyncio.sleep(20)
        told = await worker.row()
        heard = [
            envelope.message
            for delivery in await consuming.receive()
            for envelope in known_messages(delivery.parcel, cell.codec)
        ]
        await teller.stop()
        await running
        await station.close()
        await cell.close()
        await connection.close()
        return heard, untold, told

    heard, untold, told = run_simulated(story())

    assert (untold.told, told.told) == (0, 1)
    assert heard[0] == SetHostInCell(cell="c1", host=HOST, name="rack-1", setting=told.setting)
