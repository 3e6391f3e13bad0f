"""Contract of all stores: a provider that gives one class at a time, such as a network card and its virtual functions."""

import asyncio
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from bus.message import ConsumerId
from bus.messages.administration import ConsumerAllocations, Done, ProviderWritten, SetTraits
from bus.messages.books import MendConsumer, MendedClaim
from bus.messages.placement import (
    ONE_CLASS_AT_A_TIME,
    Claimed,
    DoesNotFit,
    Released,
    ResourceAmount,
    Share,
    Shortfall,
)
from placement_worker.core.claims_together import decide_together
from placement_worker.core.ledger import SentOrder
from placement_worker.core.mending import decide_mends, keys_of_mends
from tests.contracts.admin_client import AdminClient, allocations, an_admin_client, holding
from tests.contracts.placement_orders import (
    CLEANUP,
    DB,
    HORIZON,
    HOST,
    MIGRATION,
    NOON,
    VOCABULARY,
    WEB,
    a_claim,
    a_provider,
    a_release,
    a_report,
    a_share,
    a_swap,
    amounts,
    consumer,
    inventories,
    provider,
)
from tests.contracts.stores import STORES

pytestmark = pytest.mark.asyncio

CARD = provider("card")
WHOLE, PART = "CUSTOM_PCI_8086_1572", "CUSTOM_VIRTUAL_FUNCTION"


@pytest_asyncio.fixture(params=STORES)
async def client(request: pytest.FixtureRequest) -> AsyncIterator[AdminClient]:
    """A host with a network card of eight virtual functions. At the end of each test the audit must find nothing."""
    async with an_admin_client(request.param) as one:
        card = a_provider("card", HOST, inventories(**{WHOLE: 1, PART: 8}), (ONE_CLASS_AT_A_TIME,))
        await one.report(a_report(a_provider("host-1", holds=inventories(VCPU=64)), card))
        yield one
        assert await one.store.audit() == ()


def on_card(**of_card: int) -> Share:
    return a_share(HOST, (*amounts(HOST, VCPU=1), *amounts(CARD, **of_card)))


VIRTUAL, PASSED_THROUGH = on_card(**{PART: 1}), on_card(**{WHOLE: 1})


def mixed(resource: str, *beside: str, asked: int = 1) -> Shortfall:
    return Shortfall(provider=CARD, resource=resource, asked=asked, free=0, rule="one_class", beside=beside)


async def test_a_class_is_refused_while_another_one_is_in_use(client: AdminClient) -> None:
    assert await client.ask_one(a_claim(VIRTUAL)) == Claimed()

    assert await client.ask_one(a_claim(PASSED_THROUGH, DB)) == DoesNotFit((mixed(WHOLE, PART),))
    assert await client.ask_one(a_claim(VIRTUAL, DB)) == Claimed()

    assert await client.used(CARD) == {WHOLE: 0, PART: 2}
    await client.ask(a_release(WEB), a_release(DB))
    assert await client.ask_one(a_claim(PASSED_THROUGH, MIGRATION)) == Claimed()
    assert await client.ask_one(a_claim(VIRTUAL, CLEANUP)) == DoesNotFit((mixed(PART, WHOLE),))


async def test_a_batch_is_judged_claim_by_claim(client: AdminClient) -> None:
    verdicts = await client.ask(
        a_claim(PASSED_THROUGH), a_claim(VIRTUAL, DB), a_release(WEB), a_claim(VIRTUAL, CLEANUP)
    )

    assert verdicts == (Claimed(), DoesNotFit((mixed(PART, WHOLE),)), Released(freed=True), Claimed())


async def test_one_claim_never_gets_two_classes(client: AdminClient) -> None:
    verdict = await client.ask_one(a_claim(on_card(**{WHOLE: 1, PART: 2})))

    assert verdict == DoesNotFit((mixed(WHOLE, PART), mixed(PART, WHOLE, asked=2)))
    assert (await client.row(WEB)).attempt == 0


async def test_a_swap_that_gives_the_other_class_back_is_granted(client: AdminClient) -> None:
    await client.ask(a_claim(VIRTUAL))

    assert await client.ask_one(a_swap(PASSED_THROUGH)) == Claimed()
    assert await client.used(CARD) == {WHOLE: 1, PART: 0}


@pytest.mark.parametrize("heir", ["cleanup", "migration"])
async def test_a_swap_counts_what_its_heir_keeps(client: AdminClient, heir: str) -> None:
    await client.ask(a_claim(VIRTUAL))
    keeps = {"cleanup": CLEANUP} if heir == "cleanup" else {"migration": MIGRATION}

    assert await client.ask_one(a_swap(PASSED_THROUGH, **keeps)) == DoesNotFit((mixed(WHOLE, PART),))  # type: ignore[arg-type]

    assert await client.held(WEB) == frozenset(VIRTUAL.amounts)
    assert await client.ask_one(a_swap(on_card(**{PART: 3}), **keeps)) == Claimed()  # type: ignore[arg-type]


async def test_all_claims_of_one_request_are_refused_for_one_that_mixes(client: AdminClient) -> None:
    together = [SentOrder(a_claim(VIRTUAL)), SentOrder(a_claim(PASSED_THROUGH, DB))]
    async with client.store.transaction() as tx:
        ledger = await tx.lock_claims([each.order for each in together])
        decision = decide_together(ledger, [together], NOON, HORIZON)
        await tx.write_claims(decision.changes)

    assert decision.verdicts == (((DB, DoesNotFit((mixed(WHOLE, PART),))),),)
    assert await client.used(CARD) == {WHOLE: 0, PART: 0}


async def test_allocations_by_name_are_judged_by_what_all_consumers_of_the_write_hold_after_it(
    client: AdminClient,
) -> None:
    def take(who: ConsumerId, resource: str, generation: int | None = None) -> ConsumerAllocations:
        taken: tuple[ResourceAmount, ...] = amounts(CARD, **{resource: 1})
        return holding(who, *taken, generation=generation)

    both = await client.write(allocations(take(WEB, PART), take(DB, WHOLE)))
    assert both == DoesNotFit((mixed(PART, WHOLE), mixed(WHOLE, PART)))
    assert isinstance(await client.write(allocations(take(WEB, PART))), Done)
    assert await client.write(allocations(take(DB, WHOLE))) == DoesNotFit((mixed(WHOLE, PART),))
    # What one consumer of the write gives back does not count.
    assert isinstance(
        await client.write(allocations(holding(WEB, *amounts(HOST, VCPU=1), generation=1), take(DB, WHOLE))),
        Done,
    )


async def test_the_trait_may_come_while_two_classes_are_in_use(client: AdminClient) -> None:
    async def traits(*names: str) -> None:
        written = await client.write(
            SetTraits(provider=CARD, generation=await client.generation(CARD), traits=names)
        )
        assert isinstance(written, ProviderWritten)

    await traits()
    assert await client.ask(a_claim(VIRTUAL), a_claim(PASSED_THROUGH, DB)) == (Claimed(), Claimed())
    await traits(ONE_CLASS_AT_A_TIME)

    (fault,) = await client.store.audit()
    assert str(CARD) in fault
    assert "one class at a time" in fault
    shapes = {HOST: await client.shape(HOST)}
    more = a_share(HOST, (*amounts(HOST, VCPU=1), *amounts(CARD, **{PART: 1})), shapes)
    assert await client.ask_one(a_claim(more, CLEANUP)) == DoesNotFit((mixed(PART, WHOLE),))
    # Nobody loses anything, and a share that does not grow stays possible.
    less_cpu = a_share(HOST, (*amounts(HOST, VCPU=2), *amounts(CARD, **{PART: 1})), shapes)
    assert await client.ask_one(a_swap(less_cpu)) == Claimed()
    assert await client.ask_one(a_release(DB)) == Released(freed=True)
    assert await client.ask_one(a_claim(more, CLEANUP)) == Claimed()


async def test_a_correction_of_an_audit_mixes_no_classes(client: AdminClient) -> None:
    await client.ask(a_claim(VIRTUAL))
    mend = MendConsumer(
        consumer=DB, claim=MendedClaim(cell="c1", attempt=1, share=PASSED_THROUGH, project="p", user="u")
    )

    async with client.store.transaction() as tx:
        ledger = await tx.lock_allocations(keys_of_mends([mend]))
        decision = decide_mends(ledger, [mend], VOCABULARY, NOON)
        await tx.write_claims(decision.changes)

    assert decision.verdicts == (DoesNotFit((mixed(WHOLE, PART),)),)


async def test_writers_that_race_for_a_card_never_get_it_whole_and_in_part(client: AdminClient) -> None:
    """Two writers claim at the same time, one always the whole card, one always a part, and release what they got."""

    async def race(share: Share, name: str) -> tuple[int, int]:
        got = refused = 0
        for number in range(30):
            who = consumer(f"{name} {number}")
            verdict = await client.ask_one(a_claim(share, who))
            if verdict == Claimed():
                got += 1
                used = await client.used(CARD)
                assert not (used[WHOLE] and used[PART]), used
                await client.ask_one(a_release(who))
            else:
                assert isinstance(verdict, DoesNotFit), verdict
                refused += 1
        return got, refused

    whole, part = await asyncio.gather(race(PASSED_THROUGH, "whole"), race(VIRTUAL, "part"))

    assert whole[0] + whole[1] == part[0] + part[1] == 30
    assert await client.used(CARD) == {WHOLE: 0, PART: 0}
