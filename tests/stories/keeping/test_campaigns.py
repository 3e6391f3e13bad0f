"""Campaigns empty hosts: every worker is real, and simulated hosts take the guests."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

from msgspec import structs

from bus.messages.build import AskInstances, BuildRejected, InstancesFound
from bus.messages.hosts import AskHosts, HostsFound, SetHost
from bus.messages.keeping import (
    AskBudgets,
    AskCampaignPlan,
    AskCampaigns,
    AskMovements,
    BudgetsFound,
    CampaignChanged,
    CampaignId,
    CampaignPlanned,
    CampaignsFound,
    CampaignState,
    CampaignWork,
    DeleteBudget,
    MoveBudget,
    Movement,
    MovementChanged,
    MovementsFound,
    SetBudget,
    SetCampaign,
    StartCampaign,
)
from bus.messages.moves import EndMove
from bus.messages.projects import CreateGroup
from engine.flavors import Flavor, InstanceId, JoinedGroup, RequestId
from engine.inventories import GroupId
from keeper.settings import KeeperSettings
from keeper.store_sql import KeeperStore, going
from laboratory.computes.faults import FailsToReceive, FaultScript
from tests.contracts.stores import open_keeper_store
from tests.stories.cloud import KEEPER_PACE
from tests.stories.layouts import BOTH, EMBEDDED, STAGES
from tests.stories.moves.test_moves import Movers, down, movers
from tests.waiting import until

# Of the processors of a host.
WHOLE = Flavor(name="whole", vcpus=32, ram_mb=64, root_gb=1)
HALF, THIRD = structs.replace(WHOLE, name="half", vcpus=16), structs.replace(WHOLE, name="third", vcpus=11)


class Keeping:
    """A cloud with a keeper."""

    def __init__(self, here: Movers, rows: KeeperStore) -> None:
        self.here = here
        self.cloud = here.setup
        self.rows = rows

    async def start(
        self, *hosts: str, name: str = "spring", join: bool = False, **work: Any
    ) -> CampaignState:
        order = StartCampaign(
            id=CampaignId(uuid4()), name=name, join=join, work=CampaignWork(hosts=hosts, **work)
        )
        return (await self.cloud.ask(order, CampaignsFound)).campaigns[0]

    async def refused(self, *hosts: str, name: str = "other", **work: Any) -> BuildRejected:
        order = StartCampaign(id=CampaignId(uuid4()), name=name, work=CampaignWork(hosts=hosts, **work))
        return await self.cloud.ask(order, BuildRejected)

    async def told(self, name: str = "spring") -> CampaignsFound:
        return await self.cloud.ask(AskCampaigns(campaign=name), CampaignsFound)

    async def until(self, life: str = "done", name: str = "spring") -> CampaignsFound:
        """The campaign with this life, when nothing of it goes on."""
        return await until(
            lambda: self.told(name),
            f"{name} is {life}",
            lambda found: found.campaigns[0].life == life and found.campaigns[0].ended_at is not None,
        )

    async def movements(self, **asked: Any) -> list[Movement]:
        return [*(await self.cloud.ask(AskMovements(ended=True, **asked), MovementsFound)).movements]

    async def hosts_of(self, ids: list[InstanceId]) -> set[str]:
        found = await self.cloud.ask(AskInstances(instances=tuple(ids), limit=200), InstancesFound)
        return {each.host for each in found.instances}

    async def going(self) -> list[Movement]:
        return await self.rows.read(going)

    async def mode_of(self, host: str) -> str:
        return (await self.cloud.ask(AskHosts(name=host), HostsFound)).hosts[0].setting.mode


@asynccontextmanager
async def keeping(
    bus: str, books: str, *names: str, settings: KeeperSettings | None = None, **options: Any
) -> AsyncIterator[Keeping]:
    async with (
        movers(bus, books, *names, **options) as here,
        open_keeper_store("memory" if books == "memory" else books) as rows,
        here.setup.keeper(rows, settings=settings or KeeperSettings()),
    ):
        yield Keeping(here, rows)


@STAGES
async def test_a_campaign_empties_hosts_one_after_the_other_and_is_told(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2", "h3", "h4") as here:
        guests = [await here.here.booted(number, "h1" if number < 3 else "h2") for number in range(1, 6)]
        async with here.cloud.listening("campaign.changed", "movement.changed") as heard:
            began = await here.start("h1", "h2", reason="new memory")
            ended = await here.until()

        assert (began.life, began.by) == ("running", ended.campaigns[0].by)
        assert ended.campaigns[0].hosts == {"done": 2}
        assert ended.campaigns[0].movements == {"done": 5}
        assert [(each.host, each.stage, each.moved) for each in ended.hosts] == [
            ("h1", "done", 2),
            ("h2", "done", 3),
        ]
        assert not await here.hosts_of(guests) & {"h1", "h2"}
        assert await here.mode_of("h1") == "draining"
        # One host was out at a time: the first was empty before the second began.
        assert ended.hosts[0].ended_at <= ended.hosts[1].began_at  # type: ignore[operator]
        done = await here.movements()
        assert {each.kind for each in done} == {"live-migrate"}
        assert {each.to for each in done} <= {"h3", "h4"}
        stages = [each.host.stage for each in heard if isinstance(each, CampaignChanged) and each.host]
        assert stages.count("done") == 2
        lives = [each.movement.life for each in heard if isinstance(each, MovementChanged)]
        assert lives.count("done") == 5
        history = await here.cloud.instance(guests[0])
        assert history is not None
        assert history.move is not None


@EMBEDDED
async def test_a_budget_holds_and_a_change_counts_from_the_next_grant_on(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2", "h3", script=FaultScript(spawn_ms=150)) as here:
        for number in range(1, 7):
            await here.here.booted(number)
        await here.cloud.ask(
            SetBudget(budget=MoveBudget(name="slow", scope="cloud", at_once=1)), BudgetsFound
        )
        await here.start("h1")
        for _ in range(20):
            assert len(await here.going()) <= 1
            await asyncio.sleep(0.02)
        (told,) = (await here.cloud.ask(AskBudgets(), BudgetsFound)).budgets
        assert told.use.at_once <= 1
        await until(
            lambda: here.movements(life="planned"),
            "who waits knows why",
            lambda found: any("budget slow" in each.reason for each in found),
        )
        await here.cloud.ask(
            SetBudget(budget=MoveBudget(name="slow", scope="cloud", at_once=3)), BudgetsFound
        )
        await here.until()
        assert (await here.cloud.ask(DeleteBudget(name="slow"), BudgetsFound)).budgets[0].budget.at_once == 3
        assert (await here.cloud.ask(AskBudgets(), BudgetsFound)).budgets == ()


@EMBEDDED
async def test_what_fails_three_times_is_left_alone_and_told_and_the_campaign_stops(
    bus: str, books: str
) -> None:
    script = FaultScript(spawn_ms=5, faults=(FailsToReceive(hosts=("h2",)),))
    async with keeping(bus, books, "h1", "h2", script=script) as here:
        await here.here.booted(1)
        await here.start("h1")
        ended = await here.until()

        assert ended.campaigns[0].hosts == {"failed": 1}
        assert "1 guests stay" in ended.hosts[0].reason
        (left,) = await here.movements()
        assert (left.life, left.failures) == ("given_up", 3)
        assert left.reason
        assert await here.mode_of("h1") == "draining"


@EMBEDDED
async def test_a_guest_without_room_is_told_why_and_one_that_may_wait_waits(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2") as here:
        await here.here.booted(1, flavor=WHOLE)
        full = await here.here.booted(2, "h2", WHOLE)
        await here.start("h1", wait_s=600)
        told = await until(
            here.movements, "it waits for room", lambda found: found and found[0].life == "moving"
        )
        assert told[0].to == ""
        await here.start("h2", name="other")
        failed = await here.until(name="other")
        assert "no host" in failed.hosts[0].reason
        await here.cloud.client.ask(SetHost(host="h2", mode="up"))
        await here.cloud.delete(full)
        ended = await here.until()
        assert ended.campaigns[0].movements == {"done": 1}
        assert (await here.movements(campaign="spring"))[0].to == "h2"


@EMBEDDED
async def test_pause_resume_and_cancel(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2", "h3", script=FaultScript(spawn_ms=300)) as here:
        for number in range(1, 7):
            await here.here.booted(number)
        await here.start("h1", guests_at_once=2)
        await until(here.going, "two move", lambda found: len(found) == 2)
        await here.cloud.ask(SetCampaign(campaign="spring", to="pause"), CampaignsFound)
        await until(here.going, "what moves has ended", lambda found: not found)
        paused = (await here.told()).campaigns[0]
        await asyncio.sleep(0.3)
        assert (await here.told()).campaigns[0] == paused
        assert paused.life == "paused"
        assert paused.movements["done"] in (2, 3)
        await here.cloud.ask(SetCampaign(campaign="spring", to="resume"), CampaignsFound)
        await until(here.going, "some move again", bool)
        await here.cloud.ask(SetCampaign(campaign="spring", to="cancel"), CampaignsFound)
        ended = await here.until("cancelled")
        assert ended.campaigns[0].hosts == {"skipped": 1}
        assert ended.campaigns[0].movements["withdrawn"] >= 1
        assert await here.mode_of("h1") == "draining"
        again = await here.cloud.ask(SetCampaign(campaign="spring", to="resume"), BuildRejected)
        assert "cancelled" in again.reason


@EMBEDDED
async def test_a_paused_campaign_begins_with_no_other_host(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2", "h3", script=FaultScript(spawn_ms=300)) as here:
        await here.here.booted(1)
        await here.here.booted(2, "h3")
        await here.start("h1", "h3")
        await until(here.going, "one moves", bool)
        await here.cloud.ask(SetCampaign(campaign="spring", to="pause"), CampaignsFound)
        half = {"done": 1, "waiting": 1}
        await until(here.told, "h1 is empty", lambda found: found.campaigns[0].hosts == half)
        # A keeper works some rounds meanwhile.
        await asyncio.sleep(0.5)
        assert (await here.told()).campaigns[0].hosts == half
        assert await here.mode_of("h3") == "up"
        await here.cloud.ask(SetCampaign(campaign="spring", to="resume"), CampaignsFound)
        await here.until()
        assert await here.mode_of("h3") == "draining"


@EMBEDDED
async def test_hosts_are_restarted_by_a_hook_and_taken_back(bus: str, books: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    hook(tmp_path, "reboot", f'echo "$1 $2 $MOOR_CAMPAIGN" >> {ran}')
    hook(tmp_path, "breaks", "echo no power; exit 3")
    hook(tmp_path, "hangs", "sleep 600 & sleep 600")
    async with keeping(
        bus, books, "h1", "h2", "h3", settings=KeeperSettings(hooks_folder=str(tmp_path))
    ) as here:
        guests = [await here.here.booted(number, host) for number, host in enumerate(("h1", "h2"), start=1)]
        assert (
            "there are breaks, hangs, reboot"
            in (await here.refused("h1", kind="restart", hook="nothing")).reason
        )
        assert (await here.refused("h1", kind="restart", hook="../x")).field == "work.hook"
        await here.start("h1", "h2", kind="restart", hook="reboot")
        ended = await here.until()
        assert ended.campaigns[0].hosts == {"done": 2}
        assert sorted(ran.read_text().splitlines()) == ["h1 c1 spring", "h2 c1 spring"]
        assert {await here.mode_of("h1"), await here.mode_of("h2")} == {"up"}
        assert len(await here.movements()) >= len(guests)

        for name, why in (("breaks", "ended with code 3: no power"), ("hangs", "was killed")):
            await here.start("h3", name=name, kind="restart", hook=name, hook_s=1)
            failed = await here.until(name=name)
            assert why in failed.hosts[0].reason
            assert await here.mode_of("h3") == "draining"
            await here.cloud.client.ask(SetHost(host="h3", mode="up"))


@EMBEDDED
async def test_a_hook_waits_for_guests_that_a_person_has_on_their_way_there_or_may_send_back(
    bus: str, books: str, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    hook(tmp_path, "reboot", f'echo "$1" >> {ran}')
    settings = KeeperSettings(hooks_folder=str(tmp_path))
    slow = FaultScript(receive_ms=1000)
    async with keeping(bus, books, "h1", "h2", "h3", script=slow, settings=settings) as here:

        async def waits(name: str) -> None:
            await until(
                lambda: here.told(name),
                "its claims are waited for",
                lambda found: found.hosts[0].reason.startswith("no guest is there, but of it are claimed"),
            )
            assert not ran.exists()

        comes = await here.here.booted(1)
        await here.here.move(comes, hosts=("h2",), confirm_s=0)
        await until(
            lambda: here.cloud.ask(AskHosts(name="h2"), HostsFound),
            "its share is claimed there",
            lambda found: found.uses[0].classes["VCPU"].used,
        )
        await here.start("h2", kind="restart", hook="reboot")
        await waits("spring")
        assert (await here.until()).campaigns[0].hosts == {"done": 1}
        assert ran.read_text() == "h2\n"
        assert [(each.instance, each.host) for each in await here.movements()] == [(comes, "h2")]
        assert not await here.hosts_of([comes]) & {"h2"}

        # Its way back is open until its move is confirmed.
        ran.unlink()
        await until(lambda: here.mode_of("h2"), "h2 is taken back", lambda mode: mode == "up")
        (at,) = await here.hosts_of([comes])
        await here.here.move(comes, hosts=("h2",), confirm_s=600, request_id=RequestId(UUID(int=1001)))
        await here.here.until(comes, "moved")
        await here.start(at, name="autumn", kind="restart", hook="reboot")
        await waits("autumn")
        await here.cloud.ask(
            EndMove(request_id=RequestId(UUID(int=1001)), instance=comes, how="confirm"), InstancesFound
        )
        assert (await here.until(name="autumn")).campaigns[0].hosts == {"done": 1}
        assert (ran.read_text(), await here.hosts_of([comes])) == (f"{at}\n", {"h2"})


def hook(folder: Path, name: str, text: str) -> None:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)


@EMBEDDED
async def test_an_affinity_group_moves_whole(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2", "h3") as here:
        group = GroupId(UUID(int=77))
        await here.cloud.client.ask(CreateGroup(id=group, policy="affinity", name="pair"))
        members = [await here.here.booted(number, group=JoinedGroup(id=group)) for number in (1, 2, 3)]
        await here.cloud.ask(SetBudget(budget=MoveBudget(name="few", scope="cloud", at_once=2)), BudgetsFound)
        await here.start("h1")
        await until(
            here.movements,
            "the budget is too small for all",
            lambda found: found and all("budget few" in each.reason for each in found),
        )
        await here.cloud.ask(SetBudget(budget=MoveBudget(name="few", scope="cloud", at_once=3)), BudgetsFound)
        await here.until()
        assert len(await here.hosts_of(members)) == 1
        assert len({each.request_id for each in await here.movements()}) == 1


@EMBEDDED
async def test_a_lost_host_is_evacuated(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2") as here:
        guests = [await here.here.booted(number) for number in (1, 2)]
        assert "is up" in (await here.refused("h1", kind="evacuate")).reason
        await down(here.here, "h1")
        await here.start("h1", kind="evacuate", wait_s=600)
        await here.until()
        assert await here.hosts_of(guests) == {"h2"}


@EMBEDDED
async def test_a_persons_own_move_wins(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2", "h3", script=FaultScript(spawn_ms=200)) as here:
        guest = await here.here.booted(1)
        await here.here.move(guest, hosts=("h3",), confirm_s=0)
        await here.start("h1")
        ended = await here.until()
        assert ended.campaigns[0].hosts == {"done": 1}
        assert await here.hosts_of([guest]) == {"h3"}
        moves = [each for each in await here.movements() if each.life == "done"]
        assert moves == []


@EMBEDDED
async def test_what_is_wrong_with_a_campaign_is_told_and_nothing_begins(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2", "h3") as here:
        for number in (1, 2):
            await here.here.booted(number, f"h{number}")
        await here.cloud.ask(
            SetBudget(budget=MoveBudget(name="none", scope="cloud", quiet=("00:00-23:59", "23:59-00:00"))),
            BudgetsFound,
        )
        await here.start("h1", "h2")
        taken = await here.refused("h2", "h3")
        assert (taken.field, taken.value) == ("work.hosts", "c1/h2")
        assert "campaign spring has it" in taken.reason
        assert (await here.refused("h3", "h9")).value == "h9"
        assert (await here.refused(place="dc1/hall2")).reason.startswith("no host has this")
        assert (await here.refused("h3", at_once=0)).field == "work.at_once"
        assert (await here.refused("h3", hook="x")).field == "work.hook"
        assert (await here.refused("h3", name="spring")).field == "name"
        assert (
            await here.cloud.ask(
                SetBudget(budget=MoveBudget(name="b", scope="cloud", at_once=0)), BuildRejected
            )
        ).field == "budget.at_once"
        joined = await here.start("h2", "h3", name="autumn", join=True)
        assert joined.hosts == {"waiting": 1}
        assert (await here.told("nothing")).campaigns == ()
        assert (
            await here.cloud.ask(SetCampaign(campaign="nothing", to="pause"), CampaignsFound)
        ).campaigns == ()


@EMBEDDED
async def test_a_plan_tells_where_guests_would_go_and_what_cannot_move(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2") as here:
        guests = [await here.here.booted(number, flavor=THIRD) for number in (1, 2)]
        await here.here.booted(3, "h2", HALF)
        planned = await here.cloud.ask(AskCampaignPlan(work=CampaignWork(hosts=("h1",))), CampaignPlanned)
        assert (planned.guests, planned.fit, planned.limit) == (2, 1, "guests_at_once")
        assert {each.instance for each in planned.movements} == {*guests}
        assert sorted(each.to for each in planned.movements) == ["", "h2"]
        assert all(bool(each.to) is not bool(each.reason) for each in planned.movements)
        assert [(each.host, each.left, each.stay) for each in planned.hosts] == [("h1", 1, 1)]
        assert await here.movements() == []
        assert await here.mode_of("h1") == "up"


@BOTH
async def test_a_keeper_that_dies_is_followed_by_another_that_goes_on(bus: str, books: str) -> None:
    async with (
        movers(bus, books, "h1", "h2", "h3", script=FaultScript(spawn_ms=100)) as moving,
        open_keeper_store("memory" if books == "memory" else books) as rows,
    ):
        here = Keeping(moving, rows)
        guests = [await moving.booted(number) for number in range(1, 9)]
        pace = structs.replace(KEEPER_PACE, lease_s=0.5)
        async with moving.setup.keeper(rows, "first", pace=pace, killed=True):
            await here.start("h1", guests_at_once=2)
            await until(
                here.movements,
                "two have moved",
                lambda found: sum(each.life == "done" for each in found) >= 2,
            )
        async with moving.setup.keeper(rows, "second", pace=pace):
            ended = await here.until()
            assert ended.campaigns[0].movements == {"done": 8}
        assert "h1" not in await here.hosts_of(guests)


@EMBEDDED
async def test_two_keepers_at_one_campaign_move_each_guest_once(bus: str, books: str) -> None:
    async with (
        movers(bus, books, "h1", "h2", "h3", script=FaultScript(spawn_ms=30)) as moving,
        open_keeper_store(books) as rows,
    ):
        here = Keeping(moving, rows)
        guests = [await moving.booted(number) for number in range(1, 13)]
        # A lease that ends at once: both work on it, all the time.
        pace = structs.replace(KEEPER_PACE, lease_s=0.0)
        async with (
            moving.setup.keeper(rows, "one", pace=pace),
            moving.setup.keeper(rows, "two", pace=pace),
        ):
            await here.start("h1", guests_at_once=3)
            ended = await here.until()
            made = await here.movements()
        assert ended.campaigns[0].movements == {"done": 12}
        found = await here.cloud.ask(AskInstances(instances=tuple(guests), limit=200), InstancesFound)
        assert {each.failures for each in made} == {0}
        orders = {each.instance: each.request_id for each in made}
        assert {each.id: each.move and each.move.request_id for each in found.instances} == orders
        assert "h1" not in {each.host for each in found.instances}


@EMBEDDED
async def test_a_person_who_sets_a_host_up_again_ends_that_it_is_emptied(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2", script=FaultScript(spawn_ms=100)) as here:
        guests = [await here.here.booted(number) for number in range(1, 5)]
        await here.start("h1", guests_at_once=1)
        await until(here.movements, "one has moved", lambda found: any(each.life == "done" for each in found))
        await here.cloud.client.ask(SetHost(host="h1", mode="up"))
        ended = await here.until()
        assert ended.campaigns[0].hosts == {"failed": 1}
        assert ended.hosts[0].reason.startswith("it was set up")
        assert "h1" in await here.hosts_of(guests)
