"""Lost hosts are recovered by policy: switched off, emptied, told; and where too much is lost at once, a person is asked."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from msgspec import structs

from bus.messages.build import DIED, BuildRejected
from bus.messages.hosts import HostPlace, HostsPlaced, PlaceHosts, SetHost
from bus.messages.keeping import AskCampaigns, CampaignHost, CampaignsFound, CampaignState
from bus.messages.moves import AskHistory, HistoryFound
from bus.messages.policies import (
    AskPolicies,
    DeletePolicy,
    KeepingPolicy,
    PoliciesFound,
    PolicyScope,
    SetPolicy,
)
from compute_sim.core.attempts import AttemptRecord
from compute_sim.drivers import GuestStopped
from engine.flavors import InstanceId
from engine.inventories import ProviderId
from keeper.settings import KeeperSettings
from keeper.store_sql import KeeperStore, restarts_of
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.faults import FallsSilent, FaultScript
from laboratory.computes.hosts import SimulatedHost
from tests.contracts.stage import SETTINGS
from tests.contracts.stores import open_conductor_store, open_keeper_store
from tests.stories.cells.held_driver import HeldDriver
from tests.stories.cloud import cloud
from tests.stories.keeping.test_campaigns import hook
from tests.stories.keeping.test_fencing import DOWN_S, Fencing
from tests.stories.layouts import EMBEDDED, STAGES
from tests.stories.moves.test_moves import SILENT, Movers
from tests.waiting import Clock, until


class Recovering(Fencing):
    """A cloud with a keeper, some of whose hosts fall silent when their time passes, and stay so."""

    def __init__(self, here: Movers, rows: KeeperStore, held: Clock[float], silent: Sequence[str]) -> None:
        super().__init__(here, rows, held)
        self.silent = silent

    async def policy(self, scope: PolicyScope = "cloud", of: str = "", **says: Any) -> None:
        order = SetPolicy(policy=KeepingPolicy(scope=scope, of=of, **says))
        await self.cloud.ask(order, PoliciesFound)

    async def not_set(self, scope: PolicyScope = "cloud", of: str = "", **says: Any) -> BuildRejected:
        order = SetPolicy(policy=KeepingPolicy(scope=scope, of=of, **says))
        return await self.cloud.ask(order, BuildRejected)

    async def campaigns(self) -> list[CampaignState]:
        found = await self.cloud.ask(AskCampaigns(ended=True), CampaignsFound)
        return [*found.campaigns]

    async def ended(self, name: str, stage: str = "done") -> CampaignHost:
        """The first host of this campaign, when it is at this stage."""
        found = await until(
            lambda: self.told(name),
            f"{name} is {stage}",
            lambda told: bool(told.hosts) and told.hosts[0].stage == stage,
        )
        return found.hosts[0]

    async def lose(self) -> None:
        self.held.pass_s(SILENT.after_s)


@asynccontextmanager
async def recovering(
    bus: str, books: str, hooks: Path, *silent: str, living: Sequence[str] = ("h8", "h9")
) -> AsyncIterator[Recovering]:
    held = Clock(0.0)
    quick = structs.replace(SETTINGS, host_down_s=DOWN_S)
    lost = FallsSilent(hosts=silent, after_s=SILENT.after_s)
    script = FaultScript(spawn_ms=0, receive_ms=0, faults=(lost,) if silent else ())
    hosts = [SimulatedHost(name=name) for name in (*silent, *living)]
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(bus=quick),
        open_conductor_store(books, "c1") as cells,
        setup.conductor(cells, bus=quick),
        setup.computes(
            drivers=[HeldDriver(SimulatedDriver(host, script), held) for host in hosts], bus=quick
        ),
        open_keeper_store(books) as rows,
        setup.keeper(rows, bus=quick, settings=KeeperSettings(hooks_folder=str(hooks))),
    ):
        await setup.until_reported(*silent, *living)
        yield Recovering(Movers(setup), rows, held, silent)


@STAGES
async def test_a_lost_host_is_switched_off_and_its_guests_are_built_anew_by_their_policies(
    bus: str, books: str, tmp_path: Path
) -> None:
    ran = tmp_path / "ran"
    hook(tmp_path, "power-off", f'echo "$1 $2 $MOOR_CAMPAIGN" >> {ran}')
    async with recovering(bus, books, tmp_path, "h1") as here:
        first, second = [await here.here.booted(number, "h1") for number in (1, 2)]
        kept = await here.here.booted(3, "h1", project="lab")
        await here.policy(fence="power-off")
        await here.policy("project", "lab", guests="leave")
        await here.policy("cell", "c1", guests="evacuate")
        await here.lose()
        host = await here.ended("lost-c1-h1")

        assert ran.read_text() == "h1 c1 lost-c1-h1\n"
        assert (host.fenced_by, host.moved, host.stay) == ("power-off", 2, 0)
        assert host.reason == "1 guests stay: leave by the policy of project lab"
        assert await here.hosts_of([kept]) == {"h1"}
        assert host.lost_at is not None
        assert await here.mode_of("h1") == "dead"
        assert await here.hosts_of([first, second]) <= {"h8", "h9"}
        assert {each.epoch for each in await here.movements()} == {host.epoch}
        assert [each.name for each in await here.campaigns()] == ["lost-c1-h1"]
        assert await here.questions() == []


@EMBEDDED
async def test_without_a_policy_nothing_is_done_and_without_a_fence_a_person_is_asked(
    bus: str, books: str, tmp_path: Path
) -> None:
    async with recovering(bus, books, tmp_path, "h1") as here:
        guest = await here.here.booted(1, "h1")
        await here.fall_silent()
        assert await here.campaigns() == []
        await here.policy(guests="evacuate")
        question = await here.asked()
        assert "no policy names a fence for it" in question.text
        assert [each.answer for each in question.choices] == ["off", "leave"]
        await here.answer(question, "off")
        host = await here.ended("lost-c1-h1")
        assert (host.moved, await here.mode_of("h1")) == (1, "dead")
        assert not await here.hosts_of([guest]) & {"h1"}


@EMBEDDED
async def test_a_lost_rack_is_one_question_and_the_answer_is_for_all_of_it(
    bus: str, books: str, tmp_path: Path
) -> None:
    hook(tmp_path, "power-off", "exit 0")
    async with recovering(bus, books, tmp_path, "h1", "h2") as here:
        guests = [await here.here.booted(number, host) for number, host in ((1, "h1"), (2, "h2"))]
        racks = {"h1": "dc/r1", "h2": "dc/r1", "h8": "dc/r2", "h9": "dc/r2"}
        await here.cloud.ask(
            PlaceHosts(hosts=tuple([HostPlace(host=host, place=place) for host, place in racks.items()])),
            HostsPlaced,
        )
        await here.policy(guests="evacuate", fence="power-off", lost_max=3)
        await here.lose()
        question = await here.asked()
        assert question.text == "Are these hosts lost? all hosts of domain dc/r1 are silent: h1, h2."
        assert (question.host_id, question.host) == (None, "domain dc/r1")
        assert await here.movements() == []
        assert (await here.not_taken(question, "off")).reason == "answer evacuate or leave"
        await here.answer(question, "evacuate")
        found = await here.until(name="lost-dc-r1")
        assert {(each.host, each.stage, each.moved) for each in found.hosts} == {
            ("h1", "done", 1),
            ("h2", "done", 1),
        }
        assert await here.hosts_of(guests) <= {"h8", "h9"}
        assert [each.life for each in await here.questions()] == ["answered"]


@EMBEDDED
async def test_too_many_at_once_are_one_question_and_may_be_left(
    bus: str, books: str, tmp_path: Path
) -> None:
    hook(tmp_path, "power-off", "exit 0")
    async with recovering(bus, books, tmp_path, "h1", "h2") as here:
        guests = [await here.here.booted(number, host) for number, host in ((1, "h1"), (2, "h2"))]
        await here.policy(guests="evacuate", fence="power-off", lost_max=1)
        await here.lose()
        question = await here.asked()
        assert "2 hosts of cell c1 were lost within an hour, and lost_max is 1" in question.text
        await here.answer(question, "leave")
        found = await here.until(name="lost-c1")
        assert [each.stage for each in found.hosts] == ["failed", "failed"]
        assert await here.hosts_of(guests) == {"h1", "h2"}
        assert (await here.mode_of("h1"), len(await here.campaigns())) == ("up", 1)


@EMBEDDED
async def test_a_rehearsal_only_notes_what_would_be_done(bus: str, books: str, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    hook(tmp_path, "power-off", f"echo ran >> {ran}")
    async with recovering(bus, books, tmp_path, "h1") as here:
        guest = await here.here.booted(1, "h1")
        await here.policy(guests="evacuate", fence="power-off", rehearse=True)
        await here.lose()
        host = await here.ended("lost-c1-h1", "skipped")
        assert (
            host.reason
            == "rehearsal: it would be fenced by power-off, and 1 guests would be built anew elsewhere"
        )
        (campaign,) = await here.campaigns()
        assert campaign.life == "rehearsed"
        assert (ran.exists(), await here.mode_of("h1")) == (False, "up")
        assert await here.hosts_of([guest]) == {"h1"}


@EMBEDDED
async def test_a_lost_host_is_taken_from_the_campaign_that_drains_it(
    bus: str, books: str, tmp_path: Path
) -> None:
    hook(tmp_path, "power-off", "exit 0")
    async with recovering(bus, books, tmp_path, "h1", living=("h9",)) as here:
        guest = await here.here.booted(1, "h1")
        await here.cloud.client.ask(SetHost(host="h9", mode="draining"))
        await here.start("h1", wait_s=600)
        await here.policy(guests="evacuate", fence="power-off")
        await here.lose()
        host = await here.ended("spring", "failed")
        assert host.reason == "it is lost: campaign lost-c1-h1 has it now"
        await here.cloud.client.ask(SetHost(host="h9", mode="up"))
        assert (await here.ended("lost-c1-h1")).moved == 1
        assert await here.hosts_of([guest]) == {"h9"}


@EMBEDDED
async def test_of_two_policies_the_narrower_counts_and_wrong_ones_are_refused(
    bus: str, books: str, tmp_path: Path
) -> None:
    hook(tmp_path, "power-off", "exit 0")
    async with recovering(bus, books, tmp_path) as here:
        guest = await here.here.booted(1, "h8")
        await here.policy(guests="evacuate", fence="power-off", lost_max=1)
        await here.policy("cell", "c1", guests="restart", unfenced="its storage has leases")
        told = await here.cloud.ask(AskPolicies(instance=guest), PoliciesFound)
        counts = {each.field: (each.value, each.scope, each.of) for each in told.counts}
        assert counts["guests"] == ("restart", "cell", "c1")
        assert counts["fence"] == ("", "", "")
        assert counts["unfenced"] == ("its storage has leases", "cell", "c1")
        assert counts["lost_max"] == ("1", "cloud", "")
        assert counts["restarts"] == ("0", "", "")

        wrong = {
            "policy.of": [
                await here.not_set("cell", "c7", guests="leave"),
                await here.not_set("domain", "dc", guests="leave"),
                await here.not_set("aggregate", "gold", guests="leave"),
                await here.not_set("flavor", "gold", guests="leave"),
                await here.not_set("project", "", guests="leave"),
                await here.not_set("cloud", "c1", guests="leave"),
            ],
            "policy.guests": [await here.not_set()],
            "policy.fence": [
                await here.not_set(fence="nothing"),
                await here.not_set("project", "p1", fence="power-off"),
            ],
            "policy.unfenced": [await here.not_set(fence="power-off", unfenced="leases")],
            "policy.lost_max": [await here.not_set(lost_max=3)],
            "policy.level": [await here.not_set(level=3)],
        }
        for field, refusals in wrong.items():
            assert [each.field for each in refusals] == [field] * len(refusals)
        assert "at most 2 hosts are counted together" in wrong["policy.lost_max"][0].reason
        assert "power-off" in wrong["policy.fence"][0].reason
        gone = await here.cloud.ask(DeletePolicy(scope="cell", of="c1"), PoliciesFound)
        assert [each.policy.guests for each in gone.policies] == ["restart"]


HOST = SimulatedHost(name="h1")


class Dying(HeldDriver):
    """Its guests die again and again, for the reason `why`, until it is empty."""

    def __init__(self, driver: SimulatedDriver, clock: Clock[float]) -> None:
        super().__init__(driver, clock)
        self.why = ""

    def wake_with(self, wake: Callable[[ProviderId], None]) -> None:
        self._wake_later = partial(asyncio.get_running_loop().call_later, 0.02, wake, self.root)

    def stopped(self, running: Iterable[AttemptRecord]) -> Sequence[GuestStopped]:
        # It is asked again and again.
        self._wake_later()
        return [GuestStopped(each, self.why) for each in running] if self.why else []


@asynccontextmanager
async def dying(bus: str, books: str, **says: Any) -> AsyncIterator[tuple[Recovering, Dying, InstanceId]]:
    driver = Dying(SimulatedDriver(HOST, FaultScript(spawn_ms=0, start_ms=0)), Clock(0.0))
    async with (
        cloud(bus, books, scripted=("c2",)) as setup,
        setup.placement(),
        setup.scheduler(),
        open_conductor_store(books, "c1") as cells,
        setup.conductor(cells),
        setup.computes(drivers=[driver]),
        open_keeper_store(books) as rows,
        setup.keeper(rows),
    ):
        await setup.until_reported("h1")
        here = Recovering(Movers(setup), rows, Clock(0.0), ())
        await here.policy(**says)
        guest = await here.here.booted(1, "h1")
        driver.stopped(())
        yield here, driver, guest


async def what_became_of(here: Recovering, guest: InstanceId) -> list[str]:
    """The users who had it started, and "stopped" where it stopped by itself, in order."""
    history = (await here.cloud.ask(AskHistory(instance=guest), HistoryFound)).changes
    return ["stopped" if each.what == "stopped" else each.by for each in history]


@STAGES
async def test_a_guest_that_dies_is_started_again_so_many_times_and_then_stays_stopped(
    bus: str, books: str
) -> None:
    async with dying(bus, books, restarts=3) as (here, driver, guest):
        driver.why = f"{DIED}its hypervisor process has ended"
        told = await until(
            lambda: here.cloud.ask(AskPolicies(instance=guest), PoliciesFound),
            "it was started three times",
            lambda told: told.counts[-1].value.startswith("3, "),
        )
        assert told.counts[-1].field == "started_again"
        history = await until(
            partial(what_became_of, here, guest),
            "it has died once more",
            lambda told: told.count("stopped") == 4,
        )
        state = await here.here.until(guest, "stopped", "done")
        starts = [each for each in history if "restart" in each]
        assert ["restart 1 of 3" in starts[0], len(starts)] == [True, 3]
        assert await here.cloud.instance(guest) == state

        # A person may start it all the same.
        driver.why = ""
        await here.here.move(guest, "start")
        await here.here.until(guest, "active", "done")


@EMBEDDED
async def test_a_guest_that_has_shut_down_is_left_alone(bus: str, books: str) -> None:
    async with dying(bus, books, restarts=3) as (here, driver, guest):
        driver.why = "its guest has shut down"
        await until(
            lambda: here.cloud.instance(guest),
            "it is stopped",
            lambda state: state.state == "stopped",
        )
        other = await here.rows.read(restarts_of, (guest,))
        assert (other, await what_became_of(here, guest)) == ({}, ["", "stopped"])
