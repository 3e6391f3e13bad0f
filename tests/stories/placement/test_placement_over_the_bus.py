"""A placement worker as others use it: over the bus, on each kind of broker with each kind of store."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID, uuid5

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.placement import (
    ClaimAnswered,
    ClaimResources,
    ProvidersChanged,
    ReleaseClaim,
    ReportAccepted,
    ReportAnswered,
    ReportInventory,
    ReportVerdict,
    SwapClaim,
)
from engine.inventories import (
    ConsumerId,
    ProviderId,
    ProviderState,
    ReportedInventory,
    ReportedProvider,
    ResourceAmount,
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
    Superseded,
)
from placement_worker.settings import PlacementSettings
from tests.contracts.placement_orders import a_release
from tests.contracts.stage import CELLS
from tests.stories.cloud import PLACING, Cloud, cloud
from tests.waiting import until

pytestmark = pytest.mark.asyncio

NAMES = UUID("6c0b1f9c-58a5-4f4c-9f62-8c1d2d1f5a01")
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
        answer = await self.client.ask(report)
        assert isinstance(answer, ReportAnswered)
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
            await setup.brokers.api.add_user(user, CELLS)
        async with setup.placement(settings=settings, user=setup.brokers.api.broker(user)) as told:
            yield PlacementSetup(setup, told)


def host(name: str, vcpu: int = 8, *, cell: str = "c1", traits: tuple[str, ...] = ()) -> ReportInventory:
    root = ProviderId(uuid5(NAMES, name))
    inventories = {"VCPU": ReportedInventory(total=vcpu), "MEMORY_MB": ReportedInventory(total=65536)}
    provider = ReportedProvider(id=root, name=name, inventories=inventories, traits=traits)
    return ReportInventory(cell=cell, root=root, providers=(provider,))


def share(name: str, vcpu: int, shape: int | None = None) -> Share:
    root = ProviderId(uuid5(NAMES, name))
    return Share(
        host=root,
        amounts=(
            ResourceAmount(provider=root, resource="VCPU", amount=vcpu),
            ResourceAmount(provider=root, resource="MEMORY_MB", amount=1024),
        ),
        shapes=() if shape is None else (ShapeSeen(root=root, shape=shape),),
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
        assert isinstance(await setup.report(host("h1", 4)), ReportAccepted)
        assert isinstance(await setup.report(host("h2", 4)), ReportAccepted)

        assert await setup.claim(claim(1, share("h1", 3)), claim(2, share("h1", 1))) == [Claimed(), Claimed()]
        (too_much,) = await setup.claim(claim(3, share("h1", 1)))
        assert isinstance(too_much, DoesNotFit)
        assert [(each.resource, each.asked, each.free) for each in too_much.shortfalls] == [("VCPU", 1, 0)]
        (again,) = await setup.claim(claim(1, share("h2", 3)))
        assert isinstance(again, AlreadyClaimed)
        assert again.share.host == share("h1", 3).host

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
        await setup.report(host("h1"))
        verdicts = await setup.claim(*(claim(n, share("h1", 1)) for n in range(1, 10)))
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
        await setup.report(host("h1"))
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
        await setup.report(host("h1"))
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
