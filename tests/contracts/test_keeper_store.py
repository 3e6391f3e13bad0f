"""The keeper's rows, on both databases."""

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs
from sqlalchemy.exc import IntegrityError

from bus.messages.keeping import (
    AskMovements,
    BudgetState,
    CampaignHost,
    CampaignId,
    CampaignState,
    CampaignWork,
    MoveBudget,
    Movement,
    MovementId,
)
from bus.messages.questions import AskQuestions, Question, QuestionId
from engine.flavors import InstanceId
from engine.inventories import ConsumerId, ProviderId
from keeper import store_sql as rows
from keeper.core.campaigns import GOING, OPEN, WAITING
from keeper.store_sql import KeeperStore, Unsaid
from tests.contracts.stores import STORES, open_keeper_store

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)
LATER = NOON + timedelta(seconds=30)
ONE, TWO = UUID(int=1), UUID(int=2)


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[KeeperStore]:
    async with open_keeper_store(request.param) as opened:
        yield opened


def campaign(number: int = 1, **fields: Any) -> CampaignState:
    known: dict[str, Any] = {
        "name": f"spring-{number}",
        "work": CampaignWork(hosts=("h1",)),
        "asked_at": NOON,
    } | fields
    return CampaignState(id=CampaignId(UUID(int=number)), **known)


def host(number: int, **fields: Any) -> CampaignHost:
    return CampaignHost(id=ProviderId(UUID(int=number)), host=f"h{number}", cell="c1", **fields)


def movement(number: int, of: int = 1, **fields: Any) -> Movement:
    known: dict[str, Any] = {
        "cell": "c1",
        "host": "h1",
        "cause": "campaign spring",
        "asked_at": NOON,
    } | fields
    instance = known.pop("instance", number)
    return Movement(
        id=MovementId(UUID(int=number)),
        instance=InstanceId(ConsumerId(UUID(int=instance))),
        campaign=CampaignId(UUID(int=of)),
        **known,
    )


def ended(made: CampaignState) -> CampaignState:
    return structs.replace(made, life="done", ended_at=NOON)


async def begin(store: KeeperStore, number: int = 1, *hosts: int) -> CampaignState:
    made = campaign(number)
    async with store.transaction() as transaction:
        await transaction.run(rows.add_campaign, made)
        await transaction.run(rows.add_hosts, made.id, [host(each) for each in hosts or (number,)])
    return made


async def test_a_campaign_is_held_by_one_keeper_until_its_lease_ends(store: KeeperStore) -> None:
    made = await begin(store)
    async with store.transaction() as transaction:
        assert await transaction.run(rows.take, ONE, NOON, LATER, 9) == [made]
    async with store.transaction() as transaction:
        assert await transaction.run(rows.held_by, ONE) == {made.id}
        assert await transaction.run(rows.take, TWO, NOON, LATER, 9) == []
        assert await transaction.run(rows.take, ONE, NOON, LATER, 9) == [made]
    async with store.transaction() as transaction:
        assert await transaction.run(rows.take, TWO, LATER, LATER + timedelta(1), 9) == [made]
        await transaction.run(rows.let_go, ONE)
        assert await transaction.run(rows.take, ONE, LATER, LATER + timedelta(1), 9) == []
        await transaction.run(rows.let_go, TWO)
        assert await transaction.run(rows.take, ONE, LATER, LATER + timedelta(1), 9) == [made]
        await transaction.run(rows.save_campaign, ended(made))
        assert await transaction.run(rows.take, ONE, LATER, LATER + timedelta(1), 9) == []


async def test_a_host_is_in_one_campaign_that_goes_on(store: KeeperStore) -> None:
    first = await begin(store, 1, 1, 2)
    async with store.transaction() as transaction:
        ids = [ProviderId(UUID(int=number)) for number in (1, 3)]
        others = await transaction.run(rows.others_with, ids)
        assert {id_: each.name for id_, each in others.items()} == {ids[0]: "spring-1"}
        await transaction.run(rows.add_campaign, campaign(2))
        await transaction.run(rows.add_hosts, CampaignId(TWO), [host(3)])
    with pytest.raises(IntegrityError):
        async with store.transaction() as transaction:
            await transaction.run(rows.add_hosts, CampaignId(TWO), [host(1)])
    async with store.transaction() as transaction:
        # When it has ended there, another campaign may have it.
        await transaction.run(rows.save_hosts, first.id, [host(1, stage="done")])
        await transaction.run(rows.add_hosts, CampaignId(TWO), [host(1)])
    assert await store.read(rows.host_page, first.id, None, 1) == [host(1, stage="done")]
    assert await store.read(rows.host_page, first.id, ProviderId(ONE), 5) == [host(2)]
    assert await store.read(rows.count_stages, [first.id]) == {first.id: {"done": 1, "waiting": 1}}
    async with store.transaction() as transaction:
        assert await transaction.run(rows.hosts_at, first.id, WAITING, 5) == [host(2)]


async def test_an_instance_has_one_movement_and_one_that_ended_well_is_planned_again(
    store: KeeperStore,
) -> None:
    await begin(store)
    async with store.transaction() as transaction:
        await transaction.run(rows.add_movements, [movement(1), movement(2)])
        # They are planned once more; and one is of an instance that another campaign moves.
        await transaction.run(
            rows.add_movements, [movement(1, reason="again"), movement(3, of=2, instance=2)]
        )
    assert await store.read(rows.movements_of, CampaignId(ONE), OPEN) == [movement(1), movement(2)]
    assert await store.read(rows.movements_of, CampaignId(TWO), OPEN) == []

    ended = [movement(1, life="done", ended_at=LATER), movement(2, life="given_up", ended_at=LATER)]
    async with store.transaction() as transaction:
        await transaction.run(rows.save_movements, ended)
    assert await store.read(rows.ended_since, NOON) == (1, LATER)
    async with store.transaction() as transaction:
        await transaction.run(rows.add_movements, [movement(1), movement(2)])
        lives = await transaction.run(rows.count_lives, [CampaignId(ONE)])
    assert lives == {CampaignId(ONE): {"planned": 1, "given_up": 1}}


async def test_what_goes_on_is_found_and_what_was_granted_within_an_hour(store: KeeperStore) -> None:
    granted = movement(1, life="granted", granted_at=LATER)
    done = movement(2, life="done", granted_at=NOON, ended_at=LATER)
    async with store.transaction() as transaction:
        await transaction.run(rows.lock_ledger)
        await transaction.run(rows.add_movements, [movement(1), movement(2), movement(4)])
        await transaction.run(rows.save_movements, [granted, done])
        assert await transaction.run(rows.lock_movements, [granted.id]) == [granted]
    assert await store.read(rows.going) == [granted]
    assert await store.read(rows.movements_of, CampaignId(ONE), GOING, ["h1"]) == [granted]
    assert await store.read(rows.granted_since, NOON) == [granted]
    assert {each.id.int for each in await store.read(rows.granted_since, NOON - timedelta(1))} == {1, 2}


@pytest.mark.parametrize(
    ("question", "numbers"),
    [
        (AskMovements(), [1, 3]),
        (AskMovements(ended=True), [1, 2, 3]),
        (AskMovements(life="done"), [2]),
        (AskMovements(host="c1/h2"), [3]),
        (AskMovements(instance=InstanceId(ConsumerId(UUID(int=3)))), [3]),
        (AskMovements(after=MovementId(ONE)), [3]),
    ],
)
async def test_movements_are_found(store: KeeperStore, question: AskMovements, numbers: list[int]) -> None:
    async with store.transaction() as transaction:
        await transaction.run(rows.add_movements, [movement(1), movement(2), movement(3, host="h2")])
        await transaction.run(rows.save_movements, [movement(2, life="done")])
    found = await store.read(rows.movement_page, question, None, 9)
    assert [each.id.int for each in found] == numbers
    assert await store.read(rows.movement_page, question, CampaignId(TWO), 9) == []


async def test_campaigns_are_found_by_name_and_id_and_the_newest_first(store: KeeperStore) -> None:
    old, new = campaign(1), campaign(2, asked_at=LATER)
    same = ended(campaign(3, name="spring-1", asked_at=LATER))
    async with store.transaction() as transaction:
        for each in (old, new, same):
            await transaction.run(rows.add_campaign, each)
        await transaction.run(rows.save_campaign, same)
    assert await store.read(rows.campaigns_called, "spring-1") == [old]
    assert await store.read(rows.campaigns_called, str(UUID(int=3))) == [same]
    assert await store.read(rows.campaigns_called, "nobody") == []
    assert await store.read(rows.campaign_page, None, 9, ended=False) == [new, old]
    assert await store.read(rows.campaign_page, None, 2, ended=True) == [same, new]
    assert await store.read(rows.campaign_page, new.id, 9, ended=True) == [old]


async def test_what_was_said_is_noted_unless_it_has_changed_since(store: KeeperStore) -> None:
    made = await begin(store, 1, 1, 2)
    async with store.transaction() as transaction:
        await transaction.run(rows.add_movements, [movement(1)])
        # Nobody listens for plans.
        assert (await store.read(rows.unsaid, 9)).movements == []
        await transaction.run(rows.save_movements, [movement(1, life="granted")])
    unsaid = await store.read(rows.unsaid, 9)
    assert unsaid == Unsaid(
        [made], [(made.id, host(1)), (made.id, host(2))], [movement(1, life="granted")], []
    )

    async with store.transaction() as transaction:
        await transaction.run(rows.save_movements, [movement(1, life="moving")])
        await transaction.run(rows.save_hosts, made.id, [host(2, left=5)])
        await transaction.run(rows.note_said, unsaid)

    left = await store.read(rows.unsaid, 9)
    assert left == Unsaid([], [(made.id, host(2, left=5))], [movement(1, life="moving")], [])
    async with store.transaction() as transaction:
        await transaction.run(rows.note_said, left)
        await transaction.run(rows.save_hosts, made.id, [host(2, left=4)])
    assert await store.read(rows.unsaid, 9) == Unsaid([], [], [], [])


def question(number: int, about: int = 1, of: int = 1, **fields: Any) -> Question:
    known: dict[str, Any] = {"asked_at": NOON + timedelta(seconds=number), "choices": ()} | fields
    return Question(
        id=QuestionId(UUID(int=number)),
        campaign=CampaignId(UUID(int=of)),
        host_id=ProviderId(UUID(int=about)),
        cell="c1",
        host=f"h{about}",
        text="is it off?",
        **known,
    )


async def test_a_host_of_a_campaign_is_asked_about_once_at_a_time(store: KeeperStore) -> None:
    await begin(store)
    first, other = question(1), question(2, about=2)
    async with store.transaction() as transaction:
        await transaction.run(rows.ask, [first, other])
        await transaction.run(rows.ask, [first, question(3)])
    assert await store.read(rows.question_page, AskQuestions(), 9) == [other, first]
    assert await store.read(rows.question_page, AskQuestions(after=other.id), 9) == [first]
    assert await store.read(rows.count_open) == 2

    answered = structs.replace(first, life="answered", answer="off")
    assert first.host_id is not None
    assert first.campaign is not None
    async with store.transaction() as transaction:
        assert await transaction.run(rows.open_about, first.campaign, [first.host_id]) == [first]
        assert await transaction.run(rows.lock_question, first.id) == first
        await transaction.run(rows.save_question, answered)
        assert await transaction.run(rows.open_about, first.campaign, [first.host_id]) == []
        await transaction.run(rows.ask, [question(3)])
    assert await store.read(rows.question_page, AskQuestions(), 9) == [question(3), other]
    assert await store.read(rows.question_page, AskQuestions(ended=True), 9) == [question(3), other, answered]
    assert await store.read(rows.question_page, AskQuestions(id=first.id), 9) == [answered]
    assert await store.read(rows.count_open) == 2


async def test_what_is_asked_is_said_and_forgotten_with_its_campaign(store: KeeperStore) -> None:
    made = await begin(store)
    async with store.transaction() as transaction:
        await transaction.run(rows.ask, [question(1)])
    unsaid = await store.read(rows.unsaid, 9)
    assert unsaid.questions == [question(1)]
    answered = question(1, life="answered", answer="off")
    async with store.transaction() as transaction:
        await transaction.run(rows.save_question, answered)
        await transaction.run(rows.note_said, unsaid)
    unsaid = await store.read(rows.unsaid, 9)
    assert unsaid.questions == [answered]
    async with store.transaction() as transaction:
        await transaction.run(rows.note_said, unsaid)
        await transaction.run(rows.save_campaign, ended(made))
    assert (await store.read(rows.unsaid, 9)).questions == []
    async with store.transaction() as transaction:
        assert await transaction.run(rows.forget, NOON + timedelta(seconds=1), 9) == 1
    assert await store.read(rows.question_page, AskQuestions(ended=True), 9) == []


async def test_a_question_of_no_campaign_is_forgotten_after_its_end(store: KeeperStore) -> None:
    made, of_none = await begin(store), question(1, about=1)
    ended_one, open_one = (structs.replace(question(each, about=9), campaign=None) for each in (7, 8))
    async with store.transaction() as transaction:
        await transaction.run(rows.ask, [of_none, ended_one, open_one])
        await transaction.run(rows.ask, [structs.replace(ended_one, text="asked again")])
        assert await transaction.run(rows.open_about, made.id, [UUID(int=9)]) == []
        assert await transaction.run(rows.asked_about_all, ended_one.host) == []
        assert await transaction.run(rows.lock_question, ended_one.id) == ended_one
        await transaction.run(rows.save_question, structs.replace(ended_one, life="void"))
    for before, left in ((NOON, 3), (NOON + timedelta(hours=1), 2)):
        async with store.transaction() as transaction:
            assert await transaction.run(rows.forget, before, 9) == 0
        assert len(await store.read(rows.question_page, AskQuestions(ended=True), 9)) == left
    assert await store.read(rows.question_page, AskQuestions(), 9) == [open_one, of_none]


async def test_budgets_are_kept_by_their_names(store: KeeperStore) -> None:
    budget = BudgetState(budget=MoveBudget(name="b", scope="cloud", at_once=3), by="ann", set_at=NOON)
    more = structs.replace(budget, budget=MoveBudget(name="b", scope="cloud", at_once=4))
    other = BudgetState(budget=MoveBudget(name="a", scope="cell", at_once=1))
    async with store.transaction() as transaction:
        for each in (budget, other, more):
            await transaction.run(rows.save_budget, each)
        assert await transaction.run(rows.all_budgets) == [other, more]
        assert await transaction.run(rows.delete_budget, "b") == more
        assert await transaction.run(rows.delete_budget, "b") is None
    assert await store.read(rows.all_budgets) == [other]


async def test_old_campaigns_are_forgotten_with_all_that_they_had(store: KeeperStore) -> None:
    made = await begin(store)
    kept = await begin(store, 2)
    async with store.transaction() as transaction:
        await transaction.run(rows.add_movements, [movement(1, life="done")])
        assert await transaction.run(rows.forget, LATER, 9) == 0
        await transaction.run(rows.save_campaign, structs.replace(ended(made), ended_at=LATER))
        # What counts is when it ended, not how long ago it began.
        assert await transaction.run(rows.forget, LATER, 9) == 0
        assert await transaction.run(rows.forget, LATER + timedelta(1), 9) == 1
    assert await store.read(rows.campaign_page, None, 9, ended=True) == [kept]
    assert await store.read(rows.movement_page, AskMovements(ended=True), None, 9) == []
    assert await store.read(rows.host_page, made.id, None, 9) == []


async def test_of_many_campaigns_each_has_its_turn(store: KeeperStore) -> None:
    for number in (1, 2, 3):
        await begin(store, number)
    turns = []
    for second in (1, 2, 3):
        async with store.transaction() as transaction:
            until = LATER + timedelta(seconds=second)
            turns += [each.id.int for each in await transaction.run(rows.take, ONE, NOON, until, 2)]
    assert {*turns[:4]} == {1, 2, 3}, "in two turns each has had one"
    assert 2 in turns[4:]
