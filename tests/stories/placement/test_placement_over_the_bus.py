"""A placement worker as others use it, on each kind of broker with each kind of store: over the bus, without HTTP, its books are read and written,
and candidates are asked for, of which each can be claimed as it is.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.books import (
    AlreadyThere,
    AskCandidates,
    Candidates,
    CandidatesFound,
    ConsumerAllocations,
    CreateClass,
    CreateProvider,
    CreateTrait,
    DeleteAllocations,
    DeleteProvider,
    DeleteTrait,
    Done,
    HasChildren,
    ProviderInventories,
    ProviderWritten,
    RequestGroup,
    Reshape,
    SetAggregates,
    SetAllocations,
    SetInventories,
    SetTraits,
    UnknownTrait,
    WriteAnswered,
    WriteVerdict,
)
from bus.messages.placement import (
    AskMembers,
    ClaimAnswered,
    ClaimResources,
    InventoryInUse,
    MembersPage,
    ProvidersChanged,
    ReleaseClaim,
    ReportAccepted,
    ReportAnswered,
    ReportInventory,
    ReportVerdict,
    SwapClaim,
)
from bus.topology import user_of
from engine.inventories import (
    ConsumerId,
    GroupId,
    ProviderId,
    ProviderState,
    ReportedInventory,
    ResourceAmount,
    ServerGroup,
    ShapeSeen,
    Share,
)
from engine.refusals import (
    AlreadyClaimed,
    Claimed,
    ClaimVerdict,
    DoesNotFit,
    NotAllowed,
    Released,
    ShapeMoved,
    Superseded,
    TooCostly,
)
from moor.client.bus_client import pages_of
from placement_worker import candidates
from placement_worker.settings import PlacementSettings
from tests.contracts.placement_orders import a_release
from tests.contracts.stage import CELLS, dead_letters
from tests.contracts.store_client import StoreClient
from tests.hostile_requests import hard_messages, hard_worlds
from tests.narrowing import must_be
from tests.stories.cloud import PLACING, SETTLED, Cloud, a_host, cloud
from tests.stories.scripted import host_id
from tests.waiting import until

STAGES = pytest.mark.parametrize(
    ("bus", "books"),
    [
        ("memory", "memory"),
        ("unix", "sqlite"),
        pytest.param("rabbitmq", "postgresql", marks=[pytest.mark.rabbitmq, pytest.mark.postgresql]),
    ],
)


class PlacementSetup:
    """A placement worker, a client that asks it, and the store behind it."""

    def __init__(self, running: Cloud, told: asyncio.Event) -> None:
        self.cloud = running
        self.client = running.client
        self.store = running.books
        self.broker = running.brokers.api.broker()
        # Ends the worker.
        self.placement_told = told

    async def report(self, report: ReportInventory) -> ReportVerdict:
        answer = must_be(ReportAnswered, await self.client.ask(report))
        return answer.verdict

    async def claim(self, *orders: Message) -> list[ClaimVerdict]:
        answers = await self.client.ask_all(orders)
        return [answer.verdict for answer in answers if isinstance(answer, ClaimAnswered)]

    async def providers(self) -> dict[str, ProviderState]:
        return await self.cloud.providers(2)


@asynccontextmanager
async def placement_setup(
    bus: str, books: str, user: str = "", settings: PlacementSettings = PLACING
) -> AsyncIterator[PlacementSetup]:
    async with cloud(bus, books, scripted=()) as setup:
        if user:
            await setup.brokers.api.add_users((user,), CELLS)
        async with setup.placement(settings=settings, user=setup.brokers.api.broker(user)) as told:
            yield PlacementSetup(setup, told)


def share(name: str, vcpu: int) -> Share:
    root = host_id(name)
    return Share(
        host=root,
        amounts=(
            ResourceAmount(provider=root, resource="VCPU", amount=vcpu),
            ResourceAmount(provider=root, resource="MEMORY_MB", amount=1024),
        ),
    )


def claim(number: int, where: Share, *, attempt: int = 1) -> ClaimResources:
    return ClaimResources(
        cell="c1",
        consumer=ConsumerId(UUID(int=number)),
        attempt=attempt,
        issued_at=datetime.now(UTC),
        share=where,
    )


@STAGES
async def test_a_host_is_reported_claimed_swapped_and_released(bus: str, books: str) -> None:
    async with placement_setup(bus, books) as setup:
        assert isinstance(await setup.report(a_host("h1", vcpu=4)), ReportAccepted)
        assert isinstance(await setup.report(a_host("h2", vcpu=4)), ReportAccepted)

        assert await setup.claim(claim(1, share("h1", 3)), claim(2, share("h1", 1))) == [Claimed(), Claimed()]
        (too_much,) = await setup.claim(claim(3, share("h1", 1)))
        assert [
            (each.resource, each.asked, each.free) for each in must_be(DoesNotFit, too_much).shortfalls
        ] == [("VCPU", 1, 0)]
        (again,) = await setup.claim(claim(1, share("h2", 3)))
        assert must_be(AlreadyClaimed, again).share.host == share("h1", 3).host

        moved = SwapClaim(
            cell="c1",
            consumer=ConsumerId(UUID(int=1)),
            held_attempt=1,
            attempt=2,
            issued_at=datetime.now(UTC),
            share=share("h2", 3),
        )
        assert await setup.claim(moved) == [Claimed()]
        over = ReleaseClaim(
            cell="c1", consumer=ConsumerId(UUID(int=1)), attempt=2, issued_at=datetime.now(UTC)
        )
        assert await setup.claim(over) == [Released(freed=True)]
        assert await setup.claim(claim(1, share("h1", 1))) == [Superseded(attempt=2, ended=True)]

        providers = await setup.providers()
        assert {name: each.inventories["VCPU"].used for name, each in providers.items()} == {"h1": 1, "h2": 0}


@STAGES
async def test_every_write_is_heard_without_gaps(bus: str, books: str) -> None:
    async with placement_setup(bus, books) as setup, setup.cloud.listening("providers.changed") as said:
        await setup.report(a_host("h1"))
        claims = [structs.replace(claim(n, share("h1", 1)), group=GROUP) for n in range(1, 10)]
        verdicts = await setup.claim(*claims)
        assert sum(isinstance(verdict, Claimed) for verdict in verdicts) == 8
        heard = await until(
            lambda: changes_in(said),
            "all are heard",
            lambda changes: sum(len(each.claimed) for each in changes) == 8,
        )

        positions = [each.at.position for each in heard]
        assert positions == list(range(positions[0], positions[0] + len(positions)))
        told = [
            (each.name, each.revision, each.inventories["VCPU"].used)
            for message in heard
            for each in message.providers
        ]
        # Claims that were reported together with the host.
        told += [("h1", each.revision, each.used["VCPU"]) for message in heard for each in message.usage]
        assert {name for name, _, _ in told} == {"h1"}
        assert [revision for _, revision, _ in told] == sorted(revision for _, revision, _ in told)
        assert told[-1][2] == 8

        # A member of a server group is listed on pages of any length, and its leaving is heard.
        pages = pages_of(setup.client, AskMembers(limit=1), MembersPage)
        members = [each.consumer async for page in pages for each in page.members]
        assert members == [each.consumer for message in heard for each in message.claimed]
        await setup.claim(a_release(members[0], issued_at=datetime.now(UTC)))
        await until(
            lambda: [each.consumer for message in changes_in(said) for each in message.left],
            "that it left is heard",
            lambda left: left == members[:1],
        )


def changes_in(said: Sequence[Message]) -> list[ProvidersChanged]:
    return [each for each in said if isinstance(each, ProvidersChanged)]


@STAGES
async def test_releases_of_unknown_consumers_leave_only_so_many_rows_of_each_cell(
    bus: str, books: str
) -> None:
    """Further ones are refused, whatever project they name. Those of another cell leave theirs."""
    now = datetime.now(UTC)
    settings = PlacementSettings(tombstones_max=5)
    async with placement_setup(bus, books, settings=settings) as setup:
        flood = [
            structs.replace(
                a_release(ConsumerId(UUID(int=10 + each)), cell="c2", issued_at=now), project=f"p{each}"
            )
            for each in range(12)
        ]
        verdicts = [each for at in range(0, 12, 4) for each in await setup.claim(*flood[at : at + 4])]
        ours = ConsumerId(UUID(int=99))
        assert await setup.claim(a_release(ours, cell="c1", issued_at=now)) == [Released(freed=False)]
        async with setup.store.transaction() as tx:
            counted = await tx.tombstones(("c1", "c2"), 100)

    assert counted == {"c1": 1, "c2": 5}
    assert verdicts.count(Released(freed=False)) == 5
    assert [each.field for each in verdicts if isinstance(each, NotAllowed)] == ["consumer"] * 7


@STAGES
async def test_no_release_is_done_without_what_keeps_a_late_claim_from_being_granted(
    bus: str, books: str
) -> None:
    """However many releases of a project came before their claims: each of these is refused when it comes."""
    now = datetime.now(UTC)
    async with placement_setup(bus, books, settings=PlacementSettings(tombstones_max=2)) as setup:
        await setup.report(a_host("h1"))
        claims = [
            structs.replace(claim(number, share("h1", 1)), project="shop", issued_at=now)
            for number in range(1, 8)
        ]
        releases = [
            structs.replace(a_release(each.consumer, cell="cell0", issued_at=now), project="shop")
            for each in claims
        ]
        for each in releases:
            assert await setup.claim(each) == [Released(freed=False)]

        assert {*await setup.claim(*claims)} == {Superseded(attempt=1, ended=True)}


@STAGES
async def test_the_feed_goes_on_in_a_new_term_when_its_leader_stops(bus: str, books: str) -> None:
    async with placement_setup(bus, books) as setup, setup.cloud.listening("providers.changed") as said:
        await setup.report(a_host("h1"))
        async with setup.cloud.placement("placement-2"):
            before = await setup.store.snapshot_page(0, 1)
            setup.placement_told.set()

            assert await setup.claim(*(claim(n, share("h1", 1)) for n in range(1, 5))) == [Claimed()] * 4

            await until(
                lambda: {holder.consumer.int for each in changes_in(said) for holder in each.claimed},
                "all claims are heard",
                lambda claimed: claimed == {1, 2, 3, 4},
            )

        assert (await setup.store.snapshot_page(0, 1)).published.term > before.published.term


@STAGES
async def test_what_a_worker_wrote_before_it_died_is_told_however_the_log_is_pruned_and_read(
    bus: str, books: str
) -> None:
    async with cloud(bus, books, scripted=()) as setup, setup.listening("providers.changed") as said:
        async with setup.placement():
            await setup.report(a_host("h1"))
        for name in ("h2", "h3", "h4"):
            await StoreClient(setup.books).report(a_host(name))
        await setup.books.prune(datetime(2000, 1, 1, tzinfo=UTC), datetime(2100, 1, 1, tzinfo=UTC))

        async with setup.placement("placement-2", pace=structs.replace(SETTLED, entries_max=1)):
            await until(
                lambda: {state.name for each in changes_in(said) for state in each.providers},
                "all are heard",
                lambda names: names == {"h1", "h2", "h3", "h4"},
            )


HOST, NUMA = host_id("h1"), host_id("n1")
GROUP = ServerGroup(id=GroupId(UUID(int=700)), policy="soft-affinity")
EIGHT = {"VCPU": ReportedInventory(total=9, reserved=1)}


def who(number: int) -> ConsumerId:
    return ConsumerId(UUID(int=number))


def holding(
    number: int, vcpu: int, of: ProviderId = HOST, generation: int | None = None
) -> ConsumerAllocations:
    return ConsumerAllocations(
        consumer=who(number),
        amounts=(ResourceAmount(provider=of, resource="VCPU", amount=vcpu),),
        project="shop",
        user="ann",
        type="INSTANCE",
        generation=generation,
    )


async def write(setup: PlacementSetup, *writes: Message) -> list[WriteVerdict]:
    answers = await setup.client.ask_all(writes)
    return [answer.verdict for answer in answers if isinstance(answer, WriteAnswered)]


@STAGES
async def test_a_tree_is_made_filled_held_reshaped_and_deleted(bus: str, books: str) -> None:
    async with placement_setup(bus, books) as setup:
        verdicts = await write(
            setup,
            CreateProvider(id=HOST, name="h1"),
            CreateProvider(id=NUMA, name="n1", parent=HOST),
            SetInventories(provider=HOST, generation=0, inventories=EIGHT),
            CreateTrait(name="CUSTOM_GOLD"),
            CreateTrait(name="CUSTOM_GOLD"),
            CreateClass(name="CUSTOM_IRON"),
        )
        assert [type(verdict) for verdict in verdicts] == [
            *[ProviderWritten] * 3,
            *(Done, AlreadyThere, Done),
        ]
        await write(
            setup,
            SetTraits(provider=HOST, generation=1, traits=("CUSTOM_GOLD",)),
            SetAggregates(provider=NUMA, generation=0, aggregates=()),
        )
        assert await write(setup, SetAllocations(consumers=(holding(1, 3), holding(2, 2)))) == [Done()]
        # Three are free, and one more is reserved.
        (four,) = await setup.claim(claim(3, Share(host=HOST, amounts=holding(3, 4).amounts)))
        assert isinstance(four, DoesNotFit)

        moved = Reshape(
            inventories=(
                ProviderInventories(provider=HOST, generation=3, inventories={}),
                ProviderInventories(provider=NUMA, generation=1, inventories=EIGHT),
            ),
            allocations=(holding(1, 3, NUMA, 1), holding(2, 2, NUMA, 1)),
        )
        in_use = InventoryInUse(provider=HOST, resource="VCPU", used=5)
        assert await write(setup, structs.replace(moved, allocations=())) == [in_use]
        assert await write(setup, moved) == [Done()]
        states = await setup.providers()
        assert states["n1"].inventories["VCPU"].used == 5
        assert (states["h1"].inventories, states["h1"].traits) == ({}, ("CUSTOM_GOLD",))

        assert await write(setup, DeleteProvider(id=HOST)) == [HasChildren(provider=HOST, child=NUMA)]
        assert (
            await write(setup, *[DeleteAllocations(consumer=who(number)) for number in (1, 2)])
            == [Done()] * 2
        )
        assert await write(setup, DeleteProvider(id=NUMA), DeleteProvider(id=HOST)) == [Done()] * 2
        assert await setup.providers() == {}

        # A name that is deleted is there again when a report uses it.
        assert await write(setup, DeleteTrait(name="CUSTOM_GOLD")) == [Done()]
        await setup.report(a_host("h2", traits=("CUSTOM_GOLD",)))
        assert await write(setup, CreateTrait(name="CUSTOM_GOLD")) == [AlreadyThere(name="CUSTOM_GOLD")]


@pytest.mark.parametrize(("bus", "books"), [("memory", "memory"), ("unix", "sqlite")])
async def test_only_api_level_senders_write_to_the_books_directly(bus: str, books: str) -> None:
    """A message without a sender may come from a cell: it is refused, and not answered."""
    async with placement_setup(bus, books, user=user_of("placement")) as setup:
        await setup.client.publisher.send(CreateProvider(id=HOST, name="h1"))

        (letter,) = await dead_letters(setup.broker, 1)

        assert letter.reason.startswith("sent without a user_id")
        assert (await setup.store.snapshot_page(0, 100)).providers == ()


@STAGES
async def test_a_refused_write_without_a_reply_address_is_dead_lettered(bus: str, books: str) -> None:
    async with placement_setup(bus, books) as setup:
        await setup.client.publisher.send(DeleteProvider(id=HOST))

        (letter,) = await dead_letters(setup.broker, 1)

        assert f"unknown_provider: provider {HOST}" in letter.reason


TWO_CPUS = AskCandidates(groups=(RequestGroup(resources={"VCPU": 2, "MEMORY_MB": 1024}),))
THREE_DEVICES = AskCandidates(
    groups=tuple(RequestGroup(suffix=f"_{number}", resources={"PGPU": 1}) for number in range(3)),
    group_policy="isolate",
    limit=1_000,
)


async def asked(setup: PlacementSetup, question: AskCandidates) -> object:
    answer = await setup.cloud.ask(question, CandidatesFound)
    return answer.verdict


async def first_of(setup: PlacementSetup, question: AskCandidates) -> Candidates:
    return must_be(Candidates, await asked(setup, question))


@STAGES
async def test_a_candidate_can_be_claimed_as_it_is_until_the_shape_moves(bus: str, books: str) -> None:
    async with placement_setup(bus, books) as setup:
        await setup.report(a_host("h1", vcpu=4))
        await setup.report(a_host("h2", vcpu=1))

        (only,) = (await first_of(setup, TWO_CPUS)).candidates

        assert only.share.host == host_id("h1")
        assert await setup.claim(claim(1, only.share)) == [Claimed()]
        # A committed write counts at once.
        assert [one.share.host for one in (await first_of(setup, TWO_CPUS)).candidates] == [only.share.host]
        assert await setup.claim(claim(2, only.share)) == [Claimed()]
        assert (await first_of(setup, TWO_CPUS)).candidates == ()
        await setup.report(a_host("h1", vcpu=8, traits=("CUSTOM_FAST",)))
        (refused,) = await setup.claim(claim(3, only.share))
        assert isinstance(refused, ShapeMoved)

        # Nor after the host was deleted and made again, as long as such a claim may come late.
        await write(setup, DeleteProvider(id=host_id("h2")))
        await setup.store.prune(*[datetime.now(UTC) - timedelta(hours=1)] * 2)
        await setup.report(a_host("h2", vcpu=4))
        late = structs.replace(share("h2", 1), shapes=(ShapeSeen(root=host_id("h2"), shape=1),))
        (refused,) = await setup.claim(claim(4, late))
        assert isinstance(refused, ShapeMoved)


@STAGES
async def test_traits_that_an_operator_has_set_outlive_reports(bus: str, books: str) -> None:
    async with placement_setup(bus, books) as setup:
        await setup.report(a_host("h1"))
        await write(setup, CreateTrait(name="CUSTOM_GOLD"))
        await write(setup, SetTraits(provider=HOST, generation=None, traits=("CUSTOM_GOLD",)))
        await setup.report(a_host("h1", traits=("CUSTOM_FAST",)))

        assert (await setup.providers())["h1"].traits == ("CUSTOM_FAST", "CUSTOM_GOLD")


@STAGES
async def test_an_invalid_question_is_refused_with_field_and_reason(bus: str, books: str) -> None:
    no_group = AskCandidates(groups=(RequestGroup(),))
    no_policy = AskCandidates(groups=THREE_DEVICES.groups)
    twice = AskCandidates(groups=(*THREE_DEVICES.groups[:1], *THREE_DEVICES.groups[:1]), group_policy="none")
    nobody = AskCandidates(groups=TWO_CPUS.groups, same_subtree=(("_X",),))
    both = AskCandidates(
        groups=(RequestGroup(resources={"VCPU": 1}, required=(("HW_GPU",),), forbidden=("HW_GPU",)),)
    )
    async with placement_setup(bus, books) as setup:
        for question, field in (
            (no_group, "groups[0].resources"),
            (no_policy, "group_policy"),
            (twice, "groups[1].suffix"),
            (nobody, "same_subtree[0]"),
            (both, "groups[0].forbidden"),
        ):
            refused = must_be(NotAllowed, await asked(setup, question))
            assert refused.field == field

        unheard = AskCandidates(groups=(RequestGroup(resources={"VCPU": 1}, required=(("CUSTOM_X",),)),))
        assert await asked(setup, unheard) == UnknownTrait(names=("CUSTOM_X",))


class HeldSearches:
    """Takes the place of asyncio in placement's searches: one that lets other tasks run goes on when it may."""

    Semaphore = asyncio.Semaphore

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.may_go_on = asyncio.Event()

    async def sleep(self, _seconds: float) -> None:
        self.begun.set()
        await self.may_go_on.wait()
        await asyncio.sleep(0)


@STAGES
async def test_a_search_over_its_budget_ends_with_its_numbers_and_claims_are_answered_first(
    bus: str, books: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = PlacementSettings(search_steps_max=1_000_000)
    async with placement_setup(bus, books, settings=settings) as setup:
        await setup.report(a_host("h1", vcpu=4))
        (only,) = (await first_of(setup, TWO_CPUS)).candidates
        for world in hard_worlds():
            assert isinstance(await setup.report(world), ReportAccepted)

        searches = HeldSearches()
        monkeypatch.setattr(candidates, "asyncio", searches)
        hard = asyncio.ensure_future(asked(setup, hard_messages()["a tight packing"]))
        await until(lambda: searches.begun.is_set() or hard.done(), "the search lets others run")
        assert await setup.claim(claim(1, only.share)) == [Claimed()]
        assert not hard.done(), "the claim waited for the search"
        searches.may_go_on.set()
        cut = must_be(TooCostly, await hard)
        assert (cut.what, cut.budget) == ("steps", 1_000_000)
        assert 1_000_000 < cut.spent < 1_010_000
