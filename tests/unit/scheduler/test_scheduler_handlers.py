"""The handlers of a scheduler: answers, releases, and what a worker knows before and after a commit."""

import hashlib
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TypeVar
from uuid import UUID

import msgspec
import pytest
from msgspec import structs

from bus.memory import MemoryBroker
from bus.message import Message
from bus.messages.administration import AskQuotas, QuotasFound
from bus.messages.build import AskInstances, BuildInstance, BuildRejected, InstanceFailed, RebuildInstance
from bus.messages.cloud import AskCells
from bus.messages.hosts import AskAggregates, AskHosts, HostChanged, HostsFound, HostsReported, SetHost
from bus.messages.moves import AskHistory, AskMoves, EndMove, MoveInstance
from bus.messages.placement import ReleaseClaim
from bus.messages.planning import AskCapabilities, AskDrain, AskExplanation, AskPlan, AskReasons
from bus.messages.stored_names import AskApplications, AskDeviceProfiles, AskFlavors, AskGroups, AskImages
from bus.unreadable import Unreadable
from bus.workers.handling import Answer, Bury, Handlers, ReadOnly, Received, Said, Tell, Weighed
from bus.workers.station import Station
from engine.choosing.plugin_settings import PluginSettings, chosen_plugins
from engine.flavors import Flavor, Image, InstanceId, RequestId, instance_id_of
from engine.hosts import HostFacts, HostState
from engine.inventories import ProviderId, QuotaState
from engine.picture.picture import Picture
from engine.requests import InstanceSpec
from scheduler_worker.aggregates import AggregateMembership, AggregateOrders
from scheduler_worker.applications import Applications
from scheduler_worker.core.instances.history import decoded, encoded
from scheduler_worker.core.instances.rows import accepted
from scheduler_worker.handlers import event_handlers, question_handlers, request_handlers
from scheduler_worker.hosts import HostRegistry
from scheduler_worker.outbox import Outbox, OutboxNotes
from scheduler_worker.questions import Explainer, Planner
from scheduler_worker.registry import CellRegistry
from scheduler_worker.requests.adopting import InstanceAdopter
from scheduler_worker.requests.building import BURIED, Builder, Burial, new_rows
from scheduler_worker.requests.cell_events import AlternatesFinder
from scheduler_worker.requests.move_needs import MoveNeedsFinder
from scheduler_worker.requests.moving import MoveHostFinder, Mover, UnclaimedShares
from scheduler_worker.requests.reading import (
    LastFilters,
    RequestReader,
    Search,
    ValidRequest,
    with_neighbours,
)
from scheduler_worker.settings import SchedulerSettings
from scheduler_worker.store import HostQuery, InstanceQuery, NewRequest
from scheduler_worker.waiting import WaitingSpecs
from scheduler_worker.wiring import STANDARD
from tests.contracts.placement_orders import provider
from tests.plugins import standard_plugins
from tests.stores_in_memory import MemorySchedulerStore
from tests.unit.choosing.scheduler_worlds import a_host, a_state, vcpus
from tests.unit.choosing.test_scheduler_picture import free_of

pytestmark = pytest.mark.asyncio

M = TypeVar("M", bound=Message)

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
DAY = timedelta(days=1)
HOST = ProviderId(UUID(int=7))
REQUEST = RequestId(UUID(int=9 << 80))
INSTANCE = InstanceId(UUID(int=8))


class NoClaims:
    """A claimer that must not be asked for a host."""

    async def find_hosts(self, searches: Sequence[Search]) -> None:
        assert not searches


async def asks_no_one() -> None: ...


async def asks_nothing(questions: Sequence[Message]) -> Sequence[Message]:
    assert not questions
    return ()


async def finds_nothing() -> None:
    """Nothing was written elsewhere."""


class Worker:
    """A scheduler's store, registry and handlers."""

    def __init__(self, settings: SchedulerSettings | None = None) -> None:
        self.looked_at_hosts = 0
        self.store = MemorySchedulerStore()
        self.picture = Picture()
        self.registry = HostRegistry(self.picture, timedelta(seconds=60), lambda: NOON)
        self.outbox = Outbox(self.store, OutboxNotes(self.store, timedelta(seconds=5), lambda: NOON))
        settings = settings or SchedulerSettings()
        reader = RequestReader(STANDARD, settings.horizon, standard_plugins())
        builder = Builder(
            self.store,
            NoClaims(),  # type: ignore[arg-type]
            reader,
            lambda: NOON,
            settings,
            begin_waits=list,  # type: ignore[arg-type]
            last_filters=LastFilters(),
        )
        self.burial = Burial(reader, self.store, lambda: NOON, settings)
        publisher = Station(MemoryBroker().as_user(), "s").publisher
        self.applications = Applications(self.store, publisher, 5.0, lambda: NOON)
        membership = AggregateMembership(self.picture, asks_nothing, finds_nothing)
        aggregates = AggregateOrders(
            self.store,
            self.picture,
            membership,
            lambda: NOON,
            make_sure=finds_nothing,
            multipliers=(),
            horizon=settings.horizon,
        )
        self.more_alternates = AlternatesFinder(
            self.store,
            self.picture,
            standard_plugins(),
            lambda: NOON,
            alternates_max=settings.alternates_max,
            make_sure=finds_nothing,
            hold=lambda _: None,
            chance=random.Random(1),
        )
        self.waiting = WaitingSpecs(self.picture, standard_plugins())
        self.unclaimed = UnclaimedShares(self.picture)
        self.move_needs = MoveNeedsFinder(
            self.store, self.picture, reader, ask_all=asks_nothing, make_sure=finds_nothing
        )
        self.move_hosts = MoveHostFinder(
            self.picture,
            standard_plugins(),
            alternates_max=settings.alternates_max,
            make_sure=finds_nothing,
            chance=random.Random(1),
        )
        mover = Mover(
            self.move_needs,
            self.move_hosts,
            self.picture,
            lambda: NOON,
            settings,
            know_hosts=self.look_at_hosts,
            waiting=self.waiting,
            unclaimed=self.unclaimed,
            last_filters=LastFilters(),
        )
        self.handlers: Handlers = {
            **event_handlers(self.registry, self.applications, lambda: NOON, (), self.more_alternates),
            **request_handlers(
                builder,
                self.registry,
                self.applications,
                lambda: NOON,
                settings,
                store=self.store,
                picture=self.picture,
                aggregates=aggregates,
                mover=mover,
                adopter=InstanceAdopter(self.store, reader, asks_nothing, lambda: NOON, timeout_s=300),
                know_hosts=self.look_at_hosts,
            ),
        }
        self.quotas: list[QuotaState] = []
        self.questions = question_handlers(
            self.store,
            self.registry,
            self.applications,
            membership,
            {
                **Planner(
                    self.picture, standard_plugins(), reader, self.store, self.ask_for_quota
                ).question_handlers(),
                **Explainer(
                    self.store, self.picture, standard_plugins(), self.ask_for_quota
                ).question_handlers(),
            },
            cells=CellRegistry(self.picture, timedelta(seconds=20), lambda: NOON),
            picture=self.picture,
            catch_up=asks_no_one,
        )

    async def ask_for_quota(self, question: Message) -> Message:
        assert isinstance(question, AskQuotas)
        return QuotasFound(quotas=tuple(each for each in self.quotas if each.project == question.project))

    async def look_at_hosts(self) -> None:
        self.looked_at_hosts += 1

    async def bury(self, build: BuildInstance, *, with_a_row: bool = True) -> Sequence[Said]:
        """The messages before it is buried. `with_a_row=False`: the database refuses each of its rows."""
        end = self.burial.end_in_error if with_a_row else self.burial.release
        async with self.outbox.transaction() as transaction:
            return await end([an_ask(build, attempts=19)], transaction)

    async def handle(self, *messages: Message, attempts: int = 0, dies: bool = False) -> Sequence[Said]:
        handler = self.handlers[type(messages[0])]
        assert not isinstance(handler, ReadOnly)
        handle = handler.handle if isinstance(handler, Weighed) else handler
        async with self.outbox.transaction() as transaction:
            said = await handle([an_ask(message, attempts=attempts) for message in messages], transaction)
            if dies:
                raise ZeroDivisionError
        return said


def an_ask(message: M, *, reply_to: str = "", attempts: int = 0) -> Received[M]:
    return Received(message=message, id="7", trace="", sender="", reply_to=reply_to, attempts=attempts)


def a_report(name: str = "h1") -> HostsReported:
    return HostsReported(cell="c1", hosts=(HostFacts(id=HOST, name=name),), sequence=1)


def known(worker: Worker) -> HostState | None:
    return worker.registry.get(HOST)


async def test_a_report_that_is_not_committed_is_not_learnt() -> None:
    worker = Worker()

    with pytest.raises(ZeroDivisionError):
        await worker.handle(a_report(), dies=True)
    assert known(worker) is None

    await worker.handle(a_report())
    host = known(worker)
    assert host is not None
    assert host.up


@pytest.mark.parametrize(
    "order",
    [
        MoveInstance(request_id=REQUEST, instance=INSTANCE, kind="migrate"),
        EndMove(request_id=REQUEST, instance=INSTANCE, how="revert"),
        RebuildInstance(request_id=REQUEST, instance=INSTANCE, image=Image(source="http://images/a")),
    ],
    ids=["a move", "its end", "a rebuild"],
)
async def test_hosts_that_another_worker_has_just_written_are_known_before_an_order_is_refused(
    order: Message,
) -> None:
    worker = Worker()

    await worker.handle(order)

    assert worker.looked_at_hosts == 1


async def with_instances(worker: Worker, count: int) -> list[InstanceId]:
    """Active instances on h1, with room for more on h2."""
    hosts = ("h1", "h2")
    worker.picture.apply([a_state(name, vcpus(16), internal=n) for n, name in enumerate(hosts, 1)])
    worker.picture.put_hosts([a_host(name) for name in hosts])
    build = BuildInstance(request_id=REQUEST, flavor=Flavor(vcpus=2), count=count)
    spec = RequestReader(STANDARD, DAY, standard_plugins()).spec_of(build)
    assert isinstance(spec, InstanceSpec)
    ids = [InstanceId(UUID(int=number + 1)) for number in range(count)]
    rows = [
        structs.replace(row, told=structs.replace(row.told, state="active", cell="c1", host="h1"))
        for row in accepted(build, ids, NOON, NOON + DAY, encoded(spec, build))
    ]
    async with worker.store.transaction() as transaction:
        await transaction.accept([NewRequest(REQUEST, b"", tuple(rows))])
    return ids


@pytest.mark.parametrize("dies", [True, False])
async def test_a_move_that_does_not_begin_takes_no_room(dies: bool) -> None:  # noqa: FBT001
    """The database fails; or of two that move together one is above a limit."""
    worker = Worker(SchedulerSettings(moves_per_cell_max=1))
    first, second, third = await with_instances(worker, 3)

    def an_order(instance: InstanceId, *together: InstanceId) -> MoveInstance:
        return MoveInstance(request_id=REQUEST, instance=instance, kind="migrate", together=together)

    if dies:
        with pytest.raises(ZeroDivisionError):
            await worker.handle(an_order(first), dies=True)
    else:
        said = await worker.handle(an_order(first), an_order(second, third))
        told = [each.message for each in said if isinstance(each, Answer | Tell)]
        assert {each.field for each in told if isinstance(each, BuildRejected)} == {"moves_per_cell_max"}

    assert free_of(worker.picture, "h2") == (16 if dies else 14)


async def test_an_operators_word_that_is_not_committed_is_not_learnt() -> None:
    worker = Worker()
    await worker.handle(a_report())
    off = SetHost(host="h1", mode="draining", reason="broken fan")

    with pytest.raises(ZeroDivisionError):
        await worker.handle(off, dies=True)
    host = known(worker)
    assert host is not None
    assert host.setting.mode == "up"

    await worker.handle(off)
    host = known(worker)
    assert host is not None
    assert (host.setting.mode, host.setting.reason) == ("draining", "broken fan")


def gone(sequence: int = 2) -> HostsReported:
    return HostsReported(cell="c1", hosts=(HostFacts(id=HOST, name="h1", sequence=sequence, is_gone=True),))


async def stored(worker: Worker) -> tuple[HostState, ...]:
    return tuple(await worker.store.hosts(HostQuery(ids=(HOST,))))


async def test_a_host_that_is_gone_is_forgotten_and_may_come_back() -> None:
    worker = Worker()
    await worker.handle(gone())
    assert (known(worker), await stored(worker)) == (None, ()), "nothing is known of it"

    await worker.handle(a_report())
    await worker.handle(gone(sequence=0))
    assert known(worker) is not None, "a later report is known"

    await worker.handle(gone())
    assert (known(worker), await stored(worker)) == (None, ())
    await worker.handle(a_report())
    host = known(worker)
    assert host is not None
    assert host.up


async def test_a_process_that_only_hears_that_a_host_is_gone_forgets_it_too() -> None:
    worker = Worker()
    worker.registry.hear_facts(a_report())
    worker.registry.hear_facts(gone(sequence=0))
    assert known(worker) is not None

    worker.registry.hear_facts(structs.replace(gone(), cell="c2"), speaks_for="c2")
    assert known(worker) is not None, "another cell says so"
    worker.registry.hear_facts(gone(), speaks_for="c1")
    assert known(worker) is None
    worker.registry.hear_facts(gone())
    assert known(worker) is None


async def test_a_host_that_is_gone_is_set_up_before_it_is_forgotten() -> None:
    """Its cell remembers how it was set, and a host of the same id would be a new one."""
    worker = Worker()
    await worker.handle(a_report())
    await worker.handle(SetHost(host="h1", mode="draining", reason="broken fan"))

    said = await worker.handle(gone())

    (row,) = await stored(worker)
    assert row.setting.mode == "up"
    assert [type(each.message) for each in said if isinstance(each, Tell)] == [HostChanged]
    async with worker.store.transaction() as transaction:
        await transaction.save_hosts(
            [structs.replace(row, told=row.setting.number, sequence=row.sequence + 1)], NOON
        )
    await worker.handle(gone(sequence=3))
    assert await stored(worker) == ()


async def test_a_rejected_request_that_comes_back_lets_go_of_what_it_may_have_claimed() -> None:
    worker = Worker()
    small = BuildInstance(request_id=REQUEST, flavor=Flavor(vcpus=1))
    await accept_another(worker, small)

    # The first try of this one claimed for two, found that the id is taken, and died before it let go.
    said = await worker.handle(structs.replace(small, count=2), attempts=1)

    assert [type(each.message) for each in said if isinstance(each, Answer)] == [BuildRejected]
    released = [each.message for each in said if isinstance(each, Tell)]
    assert [each.consumer for each in released if isinstance(each, ReleaseClaim)] == [
        instance_id_of(REQUEST, 1)
    ]


async def test_a_request_that_is_buried_before_it_was_written_ends_in_error_and_lets_go() -> None:
    worker = Worker()
    small = BuildInstance(request_id=REQUEST, flavor=Flavor(vcpus=1), count=2, name="a name")

    said = [each.message for each in await worker.bury(small) if isinstance(each, Tell)]

    instances = {instance_id_of(REQUEST, index) for index in range(2)}
    assert {each.consumer for each in said if isinstance(each, ReleaseClaim)} == instances
    ended = [each.instance for each in said if isinstance(each, InstanceFailed)]
    assert {each.id for each in ended} == instances
    assert {(each.state, each.reason, each.name) for each in ended} == {("error", BURIED, "")}
    # A worker that has a copy of it finds that, and releases its claims.
    again = await worker.handle(small, attempts=1)
    assert {each.message for each in again if isinstance(each, Tell)} >= set(said)


async def test_a_request_that_is_buried_when_it_was_written_goes_on() -> None:
    worker = Worker()
    small = BuildInstance(request_id=REQUEST, flavor=Flavor(vcpus=1))
    await accept_as_it_is(worker, small)

    assert await worker.bury(small) == []
    assert await worker.bury(small, with_a_row=False) == []
    (row,) = await worker.store.instances(InstanceQuery())
    assert row.is_open


async def test_a_buried_request_of_which_no_row_can_be_written_lets_go_all_the_same() -> None:
    worker = Worker()
    small = BuildInstance(request_id=REQUEST, flavor=Flavor(vcpus=1))

    (said,) = await worker.bury(small, with_a_row=False)

    assert isinstance(said, Tell)
    assert isinstance(said.message, ReleaseClaim)
    assert said.message.consumer == instance_id_of(REQUEST, 0)


async def test_a_buried_request_that_was_rejected_says_nothing() -> None:
    worker = Worker()

    assert await worker.bury(BuildInstance(request_id=REQUEST)) == []


async def accept_as_it_is(worker: Worker, build: BuildInstance) -> None:
    digest = hashlib.sha256(
        msgspec.json.Encoder(order="deterministic").encode(structs.replace(build, request_id=None))
    ).digest()
    rows = accepted(build, [instance_id_of(REQUEST, 0)], NOON, NOON + DAY)
    async with worker.store.transaction() as transaction:
        await transaction.accept([NewRequest(REQUEST, digest, rows)])


async def accept_another(worker: Worker, build: BuildInstance) -> None:
    """A request with the id of this one was accepted before."""
    rows = accepted(build, [instance_id_of(REQUEST, 0)], NOON, NOON + DAY)
    async with worker.store.transaction() as transaction:
        await transaction.accept([NewRequest(REQUEST, b"another digest", rows)])


@pytest.mark.parametrize(
    ("unreadable", "reason"),
    [
        (
            Unreadable(b"", "unknown message type 'group.move'", kind="group.move", field="type"),
            "unknown message type 'group.move'",
        ),
        (Unreadable(b"", "Expected `uuid`", kind="instance.delete", field="instance"), "Expected `uuid`"),
    ],
)
async def test_whoever_waits_is_told_why_its_order_cannot_be_read_and_a_person_keeps_it(
    unreadable: Unreadable, reason: str
) -> None:
    handler = Worker().handlers[Unreadable]
    assert isinstance(handler, ReadOnly)

    answer, letter = await handler.handle([an_ask(unreadable, reply_to="answers.moor-client.1")])

    assert isinstance(answer, Answer)
    assert isinstance(answer.message, BuildRejected)
    assert (answer.message.field, answer.message.reason) == (unreadable.field, reason)
    assert isinstance(letter, Bury)
    assert letter.reason == reason


async def test_whoever_waits_is_told_why_its_question_cannot_be_read() -> None:
    worker = Worker()
    handlers = worker.questions
    assert handlers.keys() == {
        *(AskInstances, AskHistory, AskMoves, AskHosts, AskGroups, AskApplications, AskAggregates),
        *(AskFlavors, AskImages, AskDeviceProfiles),
        *(AskPlan, AskReasons, AskCapabilities, AskDrain, AskExplanation, AskCells, Unreadable),
    }
    handler = handlers[Unreadable]
    assert isinstance(handler, ReadOnly)
    wrong = Unreadable(b"", "Expected `int`, got `str`", kind="instance.query", field="limit", value="many")

    answer, letter = await handler.handle([an_ask(wrong, reply_to="answers.moor-client.1")])

    assert isinstance(answer, Answer)
    assert answer.message == BuildRejected(
        request_id=None, field="limit", value="many", reason="Expected `int`, got `str`"
    )
    assert isinstance(letter, Bury)


NEIGHBOUR = InstanceId(UUID(int=77))


@pytest.mark.parametrize(
    ("field", "expected"), [("different_host", (("h1",), ())), ("same_host", ((), ("h1",)))]
)
async def test_the_hosts_of_the_instances_that_a_request_names_are_in_its_spec(
    field: str, expected: tuple[tuple[str, ...], tuple[str, ...]]
) -> None:
    (found,), unknown = await with_neighbours(await a_store_with("H1"), [a_valid(field)])

    assert unknown == []
    assert (found.spec.different_hosts, found.spec.same_hosts) == expected
    assert decoded(found.spec_bytes) == found.spec


async def test_an_instance_without_a_host_is_no_host_to_be_apart_from_and_none_to_be_with() -> None:
    store = await a_store_with("")
    (apart,), _ = await with_neighbours(store, [a_valid("different_host")])
    (beside,), _ = await with_neighbours(store, [a_valid("same_host")])

    assert apart.spec.different_hosts == ()
    assert beside.spec.same_hosts is None


async def test_an_instance_that_is_unknown_or_of_another_project_rejects_the_request_by_its_field() -> None:
    store = await a_store_with("h1")
    _, ((_, stranger),) = await with_neighbours(store, [a_valid("same_host", project="bank")])
    _, ((_, unknown),) = await with_neighbours(
        MemorySchedulerStore(), [a_valid("different_host", project="")]
    )

    assert (stranger.field, stranger.value) == ("same_host[0]", str(NEIGHBOUR))
    assert stranger.reason == "no instance of project bank has this id"
    assert (unknown.field, unknown.reason) == ("different_host[0]", "no instance has this id")


async def test_a_request_that_names_an_unknown_neighbour_is_answered_and_lets_go_when_it_came_back() -> None:
    worker = Worker()
    build = BuildInstance(request_id=REQUEST, flavor=Flavor(vcpus=1), same_host=(NEIGHBOUR,))

    said = await worker.handle(build, attempts=1)

    (answer,) = [each.message for each in said if isinstance(each, Answer)]
    assert isinstance(answer, BuildRejected)
    assert answer.field == "same_host[0]"
    released = [each.message for each in said if isinstance(each, Tell)]
    assert [each.consumer for each in released if isinstance(each, ReleaseClaim)] == [
        instance_id_of(REQUEST, 0)
    ]


async def test_a_wish_that_no_active_filter_reads_is_rejected() -> None:
    plugins = chosen_plugins(PluginSettings(filters=("capabilities",)))
    reader = RequestReader(STANDARD, timedelta(hours=1), plugins)
    small = BuildInstance(request_id=REQUEST, flavor=Flavor(vcpus=1))

    def rejected_field(build: BuildInstance) -> str:
        rejected = reader.spec_of(build)
        assert isinstance(rejected, BuildRejected)
        return rejected.field

    assert rejected_field(structs.replace(small, same_host=(NEIGHBOUR,))) == "same_host"
    assert (
        rejected_field(structs.replace(small, image_properties={"hw_vm_mode": "hvm"}))
        == "image_properties.hw_vm_mode"
    )
    wrong = Flavor(vcpus=1, extra_specs={"capabilities:cpu_info:model": ">= fast"})
    assert (
        rejected_field(structs.replace(small, flavor=wrong))
        == "flavor.extra_specs.capabilities:cpu_info:model"
    )


async def a_store_with(host: str) -> MemorySchedulerStore:
    store = MemorySchedulerStore()
    small = BuildInstance(
        request_id=REQUEST, flavor=Flavor(vcpus=1), instance_ids=(NEIGHBOUR,), project="shop"
    )
    (row,) = new_rows(small, NOON, SchedulerSettings())
    row = structs.replace(row, told=structs.replace(row.told, host=host))
    async with store.transaction() as transaction:
        await transaction.accept([NewRequest(REQUEST, b"", (row,))])
    return store


def a_valid(field: str, project: str = "shop") -> ValidRequest:
    build = BuildInstance(request_id=RequestId(UUID(int=9)), flavor=Flavor(vcpus=1), project=project)
    build = structs.replace(build, **{field: (NEIGHBOUR,)})
    ask = Received(message=build, id="1", trace="", sender="", reply_to="", attempts=0)
    return ValidRequest(ask, RequestId(UUID(int=9)), InstanceSpec(amounts=(("VCPU", 1),)), b"")


@pytest.mark.parametrize("limit", [1, 2, 3])
async def test_hosts_of_one_name_are_on_one_page_so_that_no_page_leaves_one_out(limit: int) -> None:
    worker, names = Worker(), ["h1", "h2", "h2", "h3"]
    rows = [
        HostState(id=provider(f"{name} {cell}"), name=name, cell=f"c{cell}", up=True)
        for cell, name in enumerate(names)
    ]
    async with worker.store.transaction() as transaction:
        await transaction.save_hosts(rows, NOON)
    question = worker.questions[AskHosts]
    assert isinstance(question, ReadOnly)

    listed: list[str] = []
    after = ""
    while after or not listed:
        (answer,) = await question.handle([an_ask(AskHosts(after=after, limit=limit))])
        assert isinstance(answer, Answer)
        assert isinstance(answer.message, HostsFound)
        listed += [host.name for host in answer.message.hosts]
        after = answer.message.next

    assert listed == names
