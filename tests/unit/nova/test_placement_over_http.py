"""A placement over HTTP, OpenStack's and ours: the picture follows it, and claims are written there by generations."""

import asyncio
import random
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from uuid import UUID, uuid4

import httpx
import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.placement import ClaimAnswered, ClaimResources, ReleaseClaim, SwapClaim
from engine.inventories import (
    ConsumerId,
    GroupId,
    ProviderId,
    ProviderState,
    ResourceAmount,
    ServerGroup,
    Share,
)
from engine.picture.picture import Picture
from engine.refusals import AlreadyClaimed, Claimed, ClaimVerdict, DoesNotFit, Released
from kit.errors import Unavailable
from kit.keystone import OpenStackSettings
from kit.rest import RestLimits
from nova_bridge import placement_books
from nova_bridge.placement_api import CONCURRENT_UPDATE, PlacementApi
from nova_bridge.placement_books import HttpBooks, HttpClaims
from tests.unit.nova.upstream_placement import PlacementWriter, a_placement

HOST, CHILD, OTHER = (ProviderId(UUID(int=number)) for number in (1, 2, 3))
AMOUNTS = (ResourceAmount(provider=HOST, resource="VCPU", amount=2),)


class Failing(httpx.AsyncBaseTransport):
    """The way to placement, on which a connection is reset at the next question whose address has this part, and on which others
    write to the providers of the next so many claims at the same time.
    """

    def __init__(self, placement: httpx.AsyncBaseTransport) -> None:
        self._placement = placement
        self.at = ""
        self.conflicts = 0

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        # As noauth2 wants it.
        request.headers.setdefault("X-Auth-Token", "admin")
        if self.at and self.at in request.url.path:
            self.at = ""
            raise httpx.ReadError("reset")
        if self.conflicts and request.method == "PUT" and "/allocations/" in request.url.path:
            self.conflicts -= 1
            why = {"code": CONCURRENT_UPDATE, "detail": "another process changed the provider"}
            return httpx.Response(409, json={"errors": [why]}, request=request)
        return await self._placement.handle_async_request(request)


class HttpWorld(PlacementWriter):
    def __init__(self, transport: httpx.AsyncBaseTransport) -> None:
        self.failing = transport = Failing(transport)
        super().__init__(transport)
        self.api = PlacementApi(
            "http://placement", OpenStackSettings(), limits=RestLimits(tries_max=1), transport=transport
        )
        self.picture = Picture()
        self.books = HttpBooks(self.api, self.picture)
        self.claims = HttpClaims(self.api, self.books, chance=random.Random(7))

    async def ask(self, order: Message) -> ClaimVerdict:
        (answer,) = await self.claims.ask_all((order,))
        assert isinstance(answer, ClaimAnswered)
        return answer.verdict

    def state(self, id_: ProviderId) -> ProviderState:
        """The state of a provider in the picture."""
        index = self.picture.index
        row = index.row_of(id_)
        assert row is not None
        return index.state(row)

    def free(self, id_: ProviderId) -> int:
        """What the picture has free of a host's CPUs."""
        stock, row = self.picture.columns.stocks["VCPU"], self.picture.row_of(id_)
        return int(stock.free[row])


@asynccontextmanager
async def http_world(kind: str, *hosts: ProviderId) -> AsyncIterator[HttpWorld]:
    """Its picture has these hosts, of 8 processors each."""
    async with a_placement(kind) as transport:
        world = HttpWorld(transport)
        for host in hosts:
            await world.add_provider(host, f"host {host}")
        if hosts:
            await world.books.catch_up()
        yield world


EACH = pytest.mark.parametrize("kind", ["OpenStack's", "ours"])


def a_claim(
    consumer: UUID, amounts: tuple[ResourceAmount, ...] = AMOUNTS, attempt: int = 1
) -> ClaimResources:
    return ClaimResources(
        cell="c1",
        consumer=ConsumerId(consumer),
        attempt=attempt,
        issued_at=datetime.now(UTC),
        share=Share(host=amounts[0].provider, amounts=amounts),
        project="shop",
        user="ann",
    )


@EACH
async def test_the_picture_has_all_providers_and_what_is_in_use(kind: str) -> None:
    async with http_world(kind) as world:
        await world.add_provider(HOST, "host")
        await world.add_provider(CHILD, "child", {"VCPU": 4}, below=HOST)
        await world.add_provider(OTHER, "other", {"VCPU": 2})
        await world.ask(a_claim(uuid4()))
        await world.books.catch_up()

        assert world.books.whole.is_set()
        assert len(world.picture) == 2
        assert world.free(HOST) == 10
        assert world.free(OTHER) == 2

        await world.done("DELETE", f"/resource_providers/{CHILD}", None)
        await world.done("DELETE", f"/resource_providers/{OTHER}", None)
        await world.books.catch_up()
        assert len(world.picture) == 1
        assert world.free(HOST) == 6


@EACH
@pytest.mark.parametrize(
    ("freed", "limits"),
    [
        ("PCPU", {}),
        ("VGPU", {}),
        ("MEMORY_MB", {"min_unit": 3, "step_size": 2, "max_unit": 4}),
        ("DISK_GB", {"min_unit": 4}),
        ("VCPU", {}),
    ],
)
async def test_what_others_free_is_seen_of_each_class_also_of_a_host_without_processors_left(
    kind: str, freed: str, limits: Mapping[str, int]
) -> None:
    classes = {"VCPU": 4, "PCPU": 4, "MEMORY_MB": 4, "DISK_GB": 4, "VGPU": 4}
    stays, goes = uuid4(), uuid4()
    async with http_world(kind) as world:
        await world.add_provider(HOST, "host")
        await world.add_provider(OTHER, "other")
        inventories = {name: {"total": total} for name, total in classes.items()}
        inventories[freed] |= limits
        body = {"resource_provider_generation": 1, "inventories": inventories}
        await world.done("PUT", f"/resource_providers/{HOST}/inventories", body)
        await world.write({stays: {HOST: {name: 4 for name in classes if name != freed}}})
        await world.write({goes: {HOST: {freed: 4}}})
        await world.books.catch_up()
        assert world.state(HOST).inventories[freed].used == 4

        await world.done("DELETE", f"/allocations/{goes}", None)
        await world.books.catch_up()

        used = {name: each.used for name, each in world.state(HOST).inventories.items()}
        assert used == dict.fromkeys(classes, 4) | {freed: 0}


@EACH
@pytest.mark.parametrize("at", [f"{OTHER}/allocations", "/allocation_candidates"])
async def test_a_question_that_fails_leaves_all_others_as_they_were_answered(kind: str, at: str) -> None:
    async with http_world(kind, HOST) as world:
        await world.ask(a_claim(uuid4()))
        for number in range(3, 9):
            await world.add_provider(ProviderId(UUID(int=number)), f"other {number}")
        world.failing.at = at
        with pytest.raises(Unavailable):
            await world.books.catch_up()
        await world.books.catch_up()

        assert len(world.picture) == 7
        assert [world.free(ProviderId(UUID(int=number))) for number in range(3, 9)] == [8] * 6
        assert world.free(HOST) == 6


@EACH
async def test_a_claim_is_granted_once_and_refused_where_there_is_no_room(kind: str) -> None:
    async with http_world(kind, HOST) as world:
        consumer = uuid4()
        assert await world.ask(a_claim(consumer)) == Claimed()
        again = await world.ask(a_claim(consumer))
        other = await world.ask(a_claim(consumer, (structs.replace(AMOUNTS[0], amount=3),)))
        large = await world.ask(a_claim(uuid4(), (structs.replace(AMOUNTS[0], amount=7),)))

        assert again == AlreadyClaimed(attempt=1, share=Share(host=HOST, amounts=AMOUNTS))
        assert other == AlreadyClaimed(attempt=0, share=Share(host=HOST, amounts=AMOUNTS))
        assert isinstance(large, DoesNotFit)
        assert (large.shortfalls[0].provider, large.shortfalls[0].resource) == (HOST, "VCPU")
        assert await world.holds(consumer) == {str(HOST): {"VCPU": 2}}


@pytest.mark.hits("a write conflicts with those of others: it is tried again")
@pytest.mark.parametrize(("conflicts", "verdict"), [(3, Claimed), (4, DoesNotFit)])
async def test_a_claim_is_tried_four_times_while_others_write_to_the_same_provider(
    monkeypatch: pytest.MonkeyPatch, conflicts: int, verdict: type[ClaimVerdict]
) -> None:
    monkeypatch.setattr(placement_books, "CONFLICT_PAUSE_S_MAX", 0.0)
    async with http_world("ours", HOST) as world:
        world.failing.conflicts = conflicts

        assert isinstance(await world.ask(a_claim(uuid4())), verdict)
        await world.books.catch_up()
        assert (world.failing.conflicts, world.free(HOST)) == (0, 6 if verdict is Claimed else 8)


@pytest.mark.hits("several claims are refused together: each is made alone")
@EACH
async def test_of_claims_that_come_together_only_those_without_room_are_refused(kind: str) -> None:
    async with http_world(kind, HOST, OTHER) as world:
        there = a_claim(uuid4())
        assert await world.ask(there) == Claimed()
        large = (structs.replace(AMOUNTS[0], provider=OTHER, amount=9),)
        claims = [a_claim(uuid4()), there, a_claim(uuid4(), large), a_claim(uuid4())]
        answers = await world.claims.ask_all([*claims, claims[0]])
        verdicts = [each.verdict for each in answers if isinstance(each, ClaimAnswered)]
        await world.books.catch_up()

        assert verdicts[1] == AlreadyClaimed(attempt=1, share=Share(host=HOST, amounts=AMOUNTS))
        assert isinstance(verdicts[2], DoesNotFit)
        assert verdicts[3] == Claimed()
        # An order that is in the batch twice claims once: the later answer may say that the claim is there already.
        assert Claimed() in (verdicts[0], verdicts[4])
        assert (world.free(HOST), world.free(OTHER)) == (2, 8)

        # Nor is what a consumer holds overwritten by a claim that came together with others.
        smaller = a_claim(there.consumer, (structs.replace(AMOUNTS[0], amount=1),))
        _, kept = await world.claims.ask_all([a_claim(uuid4()), smaller])
        assert isinstance(kept, ClaimAnswered)
        assert kept.verdict == AlreadyClaimed(attempt=0, share=Share(host=HOST, amounts=AMOUNTS))


@EACH
async def test_a_release_frees_what_was_claimed_but_nothing_that_somebody_wrote_since(kind: str) -> None:
    async with http_world(kind, HOST) as world:
        ours, theirs = uuid4(), uuid4()
        for consumer in (ours, theirs):
            assert await world.ask(a_claim(consumer)) == Claimed()
        await world.done(
            "PUT",
            f"/allocations/{theirs}",
            {
                "allocations": {str(HOST): {"resources": {"VCPU": 1}}},
                "project_id": "shop",
                "user_id": "ann",
                "consumer_generation": 1,
            },
        )
        released = [
            await world.ask(
                ReleaseClaim(cell="c1", consumer=ConsumerId(one), attempt=1, issued_at=datetime.now(UTC))
            )
            for one in (ours, theirs)
        ]

        assert released == [Released(freed=True), Released(freed=False)]
        assert await world.holds(ours) == {}
        assert await world.holds(theirs) == {str(HOST): {"VCPU": 1}}


@EACH
async def test_a_share_is_taken_beside_another_and_given_back(kind: str) -> None:
    async with http_world(kind, HOST, OTHER) as world:
        consumer = uuid4()
        await world.ask(a_claim(consumer))
        both = (*AMOUNTS, structs.replace(AMOUNTS[0], provider=OTHER))
        for host, amounts in ((OTHER, both), (HOST, AMOUNTS)):
            verdict = await world.ask(
                SwapClaim(
                    cell="c1",
                    consumer=ConsumerId(consumer),
                    attempt=1,
                    held_attempt=0,
                    issued_at=datetime.now(UTC),
                    share=Share(host=host, amounts=amounts),
                )
            )
            assert verdict == Claimed()
            assert len(await world.holds(consumer)) == len(amounts)


@EACH
async def test_a_member_of_a_group_leaves_it_with_what_it_holds_of_its_host(kind: str) -> None:
    async with http_world(kind, HOST) as world:
        group = ServerGroup(id=GroupId(UUID(int=5)), policy="anti-affinity")
        claim = structs.replace(a_claim(uuid4()), group=group)
        assert await world.ask(claim) == Claimed()
        assert world.picture.groups.attempts() == {claim.consumer: 1}

        await world.done("DELETE", f"/allocations/{claim.consumer}", None)
        await world.books.catch_up()
        assert world.picture.groups.attempts() == {}


@EACH
async def test_many_claims_at_once_on_one_provider_never_take_more_than_it_has(kind: str) -> None:
    async with http_world(kind) as world:
        await world.add_provider(HOST, "host", {"VCPU": 10})
        await world.books.catch_up()
        verdicts = await asyncio.gather(*[world.ask(a_claim(uuid4())) for _ in range(8)])
        await world.books.catch_up()

        granted = sum(verdict == Claimed() for verdict in verdicts)
        assert granted == 5
        assert world.free(HOST) == 0
