"""Keepers begin campaigns for hosts that are lost, whatever other keepers do meanwhile: on both databases, with schedulers that answer as they are told."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from datetime import timedelta
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.build import AskInstances, InstanceDetails, InstancesFound, InstanceState, Size
from bus.messages.hosts import AskHosts, HostsFound
from bus.messages.keeping import CampaignHost, CampaignState, MovementLife
from bus.messages.policies import KeepingPolicy, PolicyState
from bus.messages.questions import AskQuestions
from engine.flavors import InstanceId, RequestId
from engine.hosts import HostSetting, HostState, cell_and_name
from engine.inventories import ConsumerId, ProviderId
from engine.places import is_within
from keeper import store_sql as rows
from keeper.asking import Schedulers
from keeper.core.campaigns import staged
from keeper.recovering import Recovery, Rules, kept_by_policy
from keeper.settings import KeeperPace
from keeper.store_sql import KeeperStore
from tests.contracts.stores import STORES, open_keeper_store
from tests.contracts.test_keeper_store import NOON, begin, movement

DOWN_S, PACE = 60.0, KeeperPace()
LATER = NOON + timedelta(seconds=DOWN_S + PACE.spread_s)


class Sky:
    """A cloud as schedulers tell of it. Each host has one guest, of the project that has the host's name."""

    def __init__(self, store: KeeperStore, *, silent: int, living: int = 3) -> None:
        self.store = store
        self.now = LATER
        self.woken = 0
        self.meanwhile: Callable[[], Awaitable[None]] | None = None
        self.hosts = {
            f"h{number}": HostState(
                id=ProviderId(UUID(int=number)),
                name=f"h{number}",
                cell="c1",
                up=number > silent,
                silent_since=NOON if number <= silent else None,
                silent_in_cell=number <= silent,
                place=f"dc/r{number}",
            )
            for number in range(1, silent + living + 1)
        }

    def change(self, *names: str, **fields: Any) -> None:
        self.hosts |= {name: structs.replace(self.hosts[name], **fields) for name in names}

    async def policy(self, **says: Any) -> None:
        known = {"scope": "cloud", "guests": "evacuate", "fence": "power-off", "lost_max": 3, **says}
        async with self.store.transaction() as transaction:
            await transaction.run(rows.save_policy, PolicyState(policy=KeepingPolicy(**known)))

    async def ask_all(self, questions: Sequence[Message]) -> Sequence[Message]:
        return [await self._answer(each) for each in questions]

    async def _answer(self, question: Message) -> Message:
        match question:
            case AskHosts():
                cell, name = cell_and_name(question.name)
                return HostsFound(
                    hosts=tuple(
                        [
                            each
                            for each in self.hosts.values()
                            if (not name or each.name == name)
                            and (cell or question.cell) in ("", each.cell)
                            and is_within(each.place, question.place)
                            and question.up in (None, each.up)
                        ]
                    )
                )
            case AskInstances():
                guest = guest_on(question.host.rpartition("/")[2])
                if (meanwhile := self.meanwhile) is not None:
                    self.meanwhile = None
                    await meanwhile()
                return InstancesFound(instances=(guest[0],), details=(guest[1],))
            case _:
                raise AssertionError(f"a keeper asked {question!r}")

    def _wake(self) -> None:
        self.woken += 1

    async def look(self) -> None:
        station: Any = SimpleNamespace(settings=SimpleNamespace(host_down_s=DOWN_S), chance=None)
        recovery = Recovery(
            *(station, Schedulers(self.ask_all), self.store, self._wake), clock=lambda: self.now, pace=PACE
        )
        await recovery._look()  # noqa: SLF001 - one round

    async def campaigns(self) -> list[CampaignState]:
        return await self.store.read(rows.campaign_page, None, 99, ended=True)

    async def lost(self) -> dict[str, CampaignHost]:
        found = [await self.store.read(rows.host_page, each.id, None, 99) for each in await self.campaigns()]
        return {each.host: each for some in found for each in some if each.lost_at is not None}

    async def stages(self) -> dict[str, str]:
        return {name: each.stage for name, each in sorted((await self.lost()).items())}

    async def questions(self) -> list[str]:
        return [each.text for each in await self.store.read(rows.question_page, AskQuestions(ended=True), 99)]


def guest_on(host: str) -> tuple[InstanceState, InstanceDetails]:
    id_ = InstanceId(ConsumerId(UUID(int=int(host[1:]))))
    state = InstanceState(
        id=id_,
        request_id=RequestId(UUID(int=99)),
        sequence=1,
        state="active",
        cell="c1",
        host=host,
        project=host,
    )
    return state, InstanceDetails(id=id_, size=Size(flavor="small"))


@pytest.fixture(params=STORES)
async def store(request: pytest.FixtureRequest) -> AsyncIterator[KeeperStore]:
    async with open_keeper_store(request.param) as opened:
        yield opened


async def test_each_lost_host_is_recovered_once_however_often_keepers_look(store: KeeperStore) -> None:
    sky = Sky(store, silent=2)
    await sky.policy()
    for _ in range(3):
        await sky.look()
    assert await sky.stages() == {"h1": "waiting", "h2": "waiting"}
    assert sorted(each.name for each in await sky.campaigns()) == ["lost-c1-h1", "lost-c1-h2"]
    assert (sky.woken, await sky.questions()) == (2, [])
    host = (await sky.lost())["h1"]
    assert (host.fence, host.lost_at) == ("power-off", NOON)

    # It was heard meanwhile, and is lost again.
    async with store.transaction() as transaction:
        for each in await sky.campaigns():
            ended = [
                staged(one, "done", LATER) for one in await transaction.run(rows.host_page, each.id, None, 9)
            ]
            await transaction.run(rows.save_hosts, each.id, ended)
            await transaction.run(rows.save_campaign, structs.replace(each, life="done", ended_at=LATER))
    await sky.look()
    assert len(await sky.campaigns()) == 2
    sky.change("h1", silent_since=LATER)
    sky.now = LATER + timedelta(seconds=90)
    await sky.look()
    assert len(await sky.campaigns()) == 3


@pytest.mark.parametrize(
    "fields",
    [
        {"silent_in_cell": False},
        {"silent_since": None},
        {"up": True},
        {"setting": HostSetting(mode="down")},
        {"silent_since": NOON + timedelta(seconds=1)},
    ],
)
async def test_one_that_may_live_or_was_set_down_is_left_alone(
    store: KeeperStore, fields: dict[str, Any]
) -> None:
    sky = Sky(store, silent=1)
    await sky.policy()
    sky.change("h1", **fields)
    await sky.look()
    assert await sky.campaigns() == []


async def test_a_policy_says_after_how_long_a_host_is_lost(store: KeeperStore) -> None:
    sky = Sky(store, silent=1)
    await sky.policy(after_s=300)
    await sky.look()
    assert await sky.campaigns() == []
    sky.now = NOON + timedelta(seconds=300)
    await sky.look()
    assert await sky.stages() == {"h1": "waiting"}


async def test_what_another_keeper_has_begun_meanwhile_is_not_begun_again(store: KeeperStore) -> None:
    sky, other = Sky(store, silent=1), Sky(store, silent=1)
    await sky.policy()
    sky.meanwhile = other.look
    await sky.look()
    assert [each.name for each in await sky.campaigns()] == ["lost-c1-h1"]
    assert (sky.woken, other.woken) == (0, 1)


async def test_what_another_keeper_has_noted_meanwhile_is_not_noted_again(store: KeeperStore) -> None:
    """Its campaign has ended by then."""
    sky, other = Sky(store, silent=1), Sky(store, silent=1)
    await sky.policy(rehearse=True)
    sky.meanwhile = other.look
    await sky.look()
    assert [each.life for each in await sky.campaigns()] == ["rehearsed"]


async def test_of_too_many_all_are_held_and_one_question_is_asked_about_them(store: KeeperStore) -> None:
    sky = Sky(store, silent=4)
    await sky.policy()
    # One that is not due yet is silent all the same.
    sky.change("h4", silent_since=NOON + timedelta(seconds=5))
    for _ in range(2):
        await sky.look()
    assert await sky.stages() == dict.fromkeys(("h1", "h2", "h3", "h4"), "held")
    (text,) = await sky.questions()
    assert "4 hosts of cell c1 were lost within an hour, and lost_max is 3: h1, h2, h3, h4" in text

    # A fifth joins them.
    sky.change("h5", up=False, silent_since=NOON + timedelta(seconds=9), silent_in_cell=True)
    sky.now = LATER + timedelta(seconds=30)
    await sky.look()
    assert (await sky.stages())["h5"] == "held"
    assert (len(await sky.questions()), len(await sky.campaigns())) == (1, 1)


async def test_losses_of_the_last_hour_count(store: KeeperStore) -> None:
    sky = Sky(store, silent=3)
    await sky.policy()
    await sky.look()
    assert await sky.questions() == []
    sky.change("h4", up=False, silent_since=LATER, silent_in_cell=True)
    sky.now = LATER + timedelta(minutes=5)
    await sky.look()
    assert (await sky.stages())["h4"] == "held"

    sky.change("h5", up=False, silent_since=LATER + timedelta(hours=2), silent_in_cell=True)
    sky.now = LATER + timedelta(hours=3)
    await sky.look()
    assert (await sky.stages())["h5"] == "waiting"


async def test_a_domain_that_is_silent_as_a_whole_is_asked_about(store: KeeperStore) -> None:
    sky = Sky(store, silent=2)
    await sky.policy()
    sky.change("h1", "h2", place="dc/r9")
    await sky.look()
    assert await sky.stages() == {"h1": "held", "h2": "held"}
    assert "all hosts of domain dc/r9 are silent: h1, h2" in (await sky.questions())[0]


async def test_a_host_that_was_set_down_does_not_make_its_rack_live(store: KeeperStore) -> None:
    sky = Sky(store, silent=2)
    await sky.policy()
    sky.change("h1", "h2", "h3", place="dc/r9")
    sky.change("h3", up=False, setting=HostSetting(mode="down"))
    await sky.look()
    assert "all hosts of domain dc/r9 are silent: h1, h2" in (await sky.questions())[0]


async def test_a_whole_cell_that_is_silent_is_asked_about_though_its_racks_have_one_host_each(
    store: KeeperStore,
) -> None:
    sky = Sky(store, silent=2, living=0)
    await sky.policy(lost_max=9)
    sky.change("h1", "h2", place="")
    await sky.look()
    assert "all hosts of cell c1 are silent: h1, h2" in (await sky.questions())[0]


async def test_a_rehearsal_is_noted_once_and_nothing_is_done_or_asked(store: KeeperStore) -> None:
    sky = Sky(store, silent=4)
    await sky.policy(rehearse=True)
    for _ in range(2):
        await sky.look()
    (campaign,) = await sky.campaigns()
    assert (campaign.life, campaign.ended_at, await sky.questions()) == ("rehearsed", sky.now, [])
    assert await sky.stages() == dict.fromkeys(("h1", "h2", "h3", "h4"), "skipped")
    assert (await sky.lost())["h1"].reason.startswith(
        "rehearsal: a person would be asked: 4 hosts of cell c1"
    )


async def test_a_host_without_a_guest_that_may_leave_is_not_switched_off(store: KeeperStore) -> None:
    sky = Sky(store, silent=2)
    await sky.policy()
    await sky.policy(scope="project", of="h1", guests="leave", fence=None, lost_max=None)
    await sky.look()
    assert await sky.stages() == {"h1": "skipped", "h2": "waiting"}
    assert (await sky.lost())["h1"].reason == "its policies let no guest leave"
    assert {each.name: each.life for each in await sky.campaigns()} == {
        "lost-c1-h1": "done",
        "lost-c1-h2": "running",
    }


async def test_a_host_is_taken_from_a_drain_with_what_goes_on_and_not_from_an_evacuation(
    store: KeeperStore,
) -> None:
    sky = Sky(store, silent=2)
    await sky.policy()
    drain = await begin(store)
    evacuation = await begin(store, 2)
    async with store.transaction() as transaction:
        work = structs.replace(evacuation.work, kind="evacuate")
        await transaction.run(rows.save_campaign, structs.replace(evacuation, work=work))
        some = [movement(1), movement(2, life="moving"), movement(3, life="granted")]
        await transaction.run(rows.add_movements, some)
    await sky.look()
    assert await sky.stages() == {"h1": "waiting"}
    (taken,) = await store.read(rows.host_page, drain.id, None, 9)
    assert (taken.stage, taken.reason) == ("failed", "it is lost: campaign lost-c1-h1 has it now")
    (lost,) = [each for each in await sky.campaigns() if each.name == "lost-c1-h1"]
    lives: Sequence[MovementLife] = ("moving", "granted", "withdrawn")
    assert {each.id.int: each.life for each in await store.read(rows.movements_of, lost.id, lives)} == {
        2: "moving",
        3: "granted",
    }
    assert [each.id.int for each in await store.read(rows.movements_of, drain.id, lives)] == [1]


def test_guests_stay_by_their_policies_and_it_is_said_which() -> None:
    policies = [
        KeepingPolicy(scope="cloud", guests="evacuate"),
        KeepingPolicy(scope="project", of="h2", guests="leave"),
        KeepingPolicy(scope="project", of="h3", guests="restart"),
    ]
    host = HostState(id=ProviderId(UUID(int=1)), name="h1", cell="c1", up=False)
    leave, why = kept_by_policy(Rules(policies), host, [guest_on(each) for each in ("h1", "h2", "h3", "h2")])
    assert [each.project for each, _ in leave] == ["h1"]
    assert (
        why
        == "2 guests stay: leave by the policy of project h2; 1 guests stay: restart by the policy of project h3"
    )
    assert kept_by_policy(Rules(()), host, [guest_on("h1")]) == ([], "1 guests stay: leave by no policy")
