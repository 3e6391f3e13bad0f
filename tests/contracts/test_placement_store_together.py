"""Contract of all stores: claims for many consumers at once. All of them are granted in one transaction, or none."""

from collections.abc import AsyncIterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING
from uuid import UUID

import pytest
import pytest_asyncio
from msgspec import structs

from bus.messages.administration import AllClaimed, ClaimsAnswered, ClaimTogether, NoneClaimed, RefusedPlace
from bus.messages.placement import ClaimResources
from bus.messages.together import claims_of, taken_together
from bus.workers.handling import Answer, Received, Weighed
from engine.inventories import ConsumerId, ProviderId, ServerGroup, ShapeSeen
from engine.refusals import (
    AlreadyClaimed,
    DoesNotFit,
    GroupRefused,
    NotAllowed,
    ShapeMoved,
    Shortfall,
    Superseded,
    TooOld,
)
from placement_worker.handlers import together_handlers
from tests.contracts.placement_orders import (
    GROUP,
    HORIZON,
    HOST,
    LONG_AGO,
    NOON,
    OTHER_HOST,
    WEB,
    a_claim,
    a_host,
    a_release,
    a_share,
    amounts,
    an_id,
    consumer,
    provider,
)
from tests.contracts.store_client import StoreClient
from tests.contracts.stores import STORES, open_store

if TYPE_CHECKING:
    from bus.message import Message

pytestmark = pytest.mark.asyncio

THIRD_HOST = provider("host-3")


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[StoreClient]:
    """Three hosts with four VCPU each. At the end of each test the audit must find nothing."""
    async with open_store(request.param) as store:
        client = StoreClient(store)
        await client.report(a_host("host-1"), a_host("host-2"), a_host("host-3"))
        yield client
        assert await store.audit() == ()


def named(*names: str) -> list[ConsumerId]:
    return [consumer(name) for name in names]


def claims(
    hosts: Sequence[ProviderId],
    whos: Sequence[ConsumerId],
    vcpus: int = 1,
    *,
    group: ServerGroup | None = None,
    issued_at: datetime = NOON,
) -> list[ClaimResources]:
    return [
        a_claim(a_share(host, amounts(host, VCPU=vcpus)), who, group=group, issued_at=issued_at)
        for host, who in zip(hosts, whos, strict=True)
    ]


def together(singles: Sequence[ClaimResources], claim: str = "claim") -> ClaimTogether:
    first = singles[0]
    templates, places = taken_together(singles)
    return ClaimTogether(
        claim=an_id(claim),
        attempt=first.attempt,
        issued_at=first.issued_at,
        templates=templates,
        places=places,
        project=first.project,
        user=first.user,
        group=first.group,
    )


async def asked(client: StoreClient, *messages: ClaimTogether, now: datetime = NOON) -> Sequence[object]:
    """The verdicts on these claims, which come in one batch."""
    handler = together_handlers(lambda: now, HORIZON)[ClaimTogether]
    assert isinstance(handler, Weighed)
    batch: list[Received[Message]] = [
        Received(message=each, id="1", trace="", sender="", reply_to="me", attempts=0) for each in messages
    ]
    async with client.store.transaction() as tx:
        said = await handler.handle(batch, tx)
    verdicts = []
    for each in said:
        assert isinstance(each, Answer)
        assert isinstance(each.message, ClaimsAnswered)
        verdicts.append(each.message.verdict)
    return verdicts


async def asked_whole(client: StoreClient, singles: Sequence[ClaimResources], claim: str = "claim") -> object:
    (verdict,) = await asked(client, together(singles, claim))
    return verdict


async def vcpus(client: StoreClient, host: ProviderId) -> int:
    return (await client.used(host))["VCPU"]


async def test_all_are_claimed_and_a_repetition_is_told_so(client: StoreClient) -> None:
    whos = named("a", "b", "c")
    singles = claims([HOST, OTHER_HOST, HOST], whos, 2)

    assert await asked_whole(client, singles) == AllClaimed(is_new=True)
    assert await asked_whole(client, singles) == AllClaimed(is_new=False)

    assert [await client.held(who) for who in whos] == [frozenset(each.share.amounts) for each in singles]
    assert await vcpus(client, HOST) == 4


async def test_one_too_many_and_nothing_is_claimed(client: StoreClient) -> None:
    whos = named("a", "b", "c")

    verdict = await asked_whole(client, claims([HOST, OTHER_HOST, HOST], whos, 3))

    short = DoesNotFit(shortfalls=(Shortfall(provider=HOST, resource="VCPU", asked=3, free=1),))
    assert verdict == NoneClaimed(refused=(RefusedPlace(consumer=whos[2], verdict=short),), count=1)
    assert [await client.held(who) for who in whos] == [frozenset()] * 3
    assert (await client.row(whos[0])).attempt == 0
    assert await vcpus(client, HOST) == await vcpus(client, OTHER_HOST) == 0
    assert (await client.provider(HOST)).generation == 1
    # Each of the others may be claimed by itself.
    assert await asked_whole(client, claims([HOST, OTHER_HOST], whos[:2], 3)) == AllClaimed(is_new=True)


async def test_a_refused_claim_of_a_batch_leaves_the_others_as_they_are(client: StoreClient) -> None:
    first = together(claims([HOST], named("a"), 3), "first")
    second = together(claims([OTHER_HOST, HOST], named("b", "c"), 2), "second")
    third = together(claims([HOST, OTHER_HOST], named("d", "e"), 1), "third")

    verdicts = await asked(client, first, second, third, first)

    assert [type(verdict) for verdict in verdicts] == [AllClaimed, NoneClaimed, AllClaimed, AllClaimed]
    assert verdicts[-1] == AllClaimed(is_new=False)
    assert await vcpus(client, HOST) == 4
    assert await vcpus(client, OTHER_HOST) == 1
    assert [await client.held(who) for who in named("b", "c")] == [frozenset()] * 2
    assert (await client.provider(HOST)).consumers == 2


async def test_members_of_one_claim_count_for_each_other(client: StoreClient) -> None:
    hosts = [HOST, OTHER_HOST, HOST]
    whos = named("a", "b", "c")

    verdict = await asked_whole(client, claims(hosts, whos, group=GROUP))

    refused = GroupRefused(group=GROUP.id, policy=GROUP.policy, host=HOST, members=(whos[0],), count=1)
    assert verdict == NoneClaimed(refused=(RefusedPlace(consumer=whos[2], verdict=refused),), count=1)
    hosts[2] = THIRD_HOST
    # The group was not defined by the claim that was refused.
    other = structs.replace(GROUP, policy="affinity")
    assert await asked_whole(client, claims(hosts[:1], named("d"), group=other)) == AllClaimed(is_new=True)
    assert await client.ask_one(a_release(consumer("d"))) is not None


async def test_members_of_a_refused_claim_do_not_count_for_the_next_one(client: StoreClient) -> None:
    refused = together(claims([HOST, HOST], named("a", "b"), group=GROUP), "refused")
    granted = together(claims([HOST, OTHER_HOST], named("c", "d"), group=GROUP), "granted")

    verdicts = await asked(client, refused, granted)

    assert [type(verdict) for verdict in verdicts] == [NoneClaimed, AllClaimed]


async def test_whoever_was_seen_before_is_named(client: StoreClient) -> None:
    held, ended, new = named("held", "ended", "new")
    await client.ask(a_claim(a_share(HOST, amounts(HOST, VCPU=1)), held), a_release(ended))

    verdict = await asked_whole(client, claims([OTHER_HOST] * 3, [held, ended, new]))

    share = structs.replace(a_share(HOST, amounts(HOST, VCPU=1)), shapes=())
    assert verdict == NoneClaimed(
        refused=(
            RefusedPlace(consumer=held, verdict=AlreadyClaimed(attempt=1, share=share)),
            RefusedPlace(consumer=ended, verdict=Superseded(attempt=1, ended=True)),
        ),
        count=2,
    )
    assert await client.held(new) == frozenset()


async def test_a_tree_that_moved_is_named_without_its_state(client: StoreClient) -> None:
    moved = a_claim(a_share(HOST, amounts(HOST, VCPU=1), {HOST: 7}), WEB)

    verdict = await asked_whole(client, [moved])

    assert verdict == NoneClaimed(
        refused=(RefusedPlace(consumer=WEB, verdict=ShapeMoved(roots=(HOST,))),), count=1
    )


async def test_a_claim_that_is_too_old_claims_nothing(client: StoreClient) -> None:
    verdict = await asked_whole(client, claims([HOST], named("a"), issued_at=LONG_AGO))

    assert isinstance(verdict, NoneClaimed)
    assert [type(each.verdict) for each in verdict.refused] == [TooOld]


async def test_a_place_that_its_template_does_not_describe_is_not_allowed(client: StoreClient) -> None:
    whole = together(claims([HOST], named("a")))
    (place,) = whole.places
    wrong = [
        structs.replace(place, template=1),
        structs.replace(place, shapes=()),
        structs.replace(place, shapes=(1, 1)),
    ]

    for each in wrong:
        (verdict,) = await asked(client, structs.replace(whole, places=(each,)))
        assert isinstance(verdict, NotAllowed)
        assert verdict.field == "places"


async def test_shares_of_several_providers_and_trees_are_taken_apart_and_put_together(
    client: StoreClient,
) -> None:
    del client
    numa, pool = provider("numa"), provider("pool")
    compound = structs.replace(
        a_share(HOST, (*amounts(numa, VCPU=2, MEMORY_MB=10), *amounts(pool, DISK_GB=5)), instances_max=3),
        shapes=(ShapeSeen(root=HOST, shape=4), ShapeSeen(root=pool, shape=9)),
    )
    singles = [
        a_claim(compound, consumer("a")),
        a_claim(a_share(OTHER_HOST, amounts(OTHER_HOST, VCPU=1)), consumer("b")),
        a_claim(structs.replace(compound, instances_max=0), consumer("c"), cell="c2"),
        a_claim(compound, consumer("d")),
    ]

    whole = together(singles)
    assert claims_of(whole) == singles
    assert len(whole.templates) == 3
    assert isinstance(whole.claim, UUID)
