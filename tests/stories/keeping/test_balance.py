"""Guests move so that hosts are used as an operator wants: by a plan that people see first, and again and again by policy."""

from uuid import uuid4

from msgspec import structs

from bus.messages.build import BuildRejected
from bus.messages.hosts import HostPlace, HostSet, HostsPlaced, PlaceHosts, SetHost
from bus.messages.keeping import (
    AskCampaignPlan,
    BudgetsFound,
    CampaignPlanned,
    CampaignWork,
    DeleteBudget,
    MoveBudget,
    SetBudget,
)
from bus.messages.planning import AskExplanation, ExplanationsFound
from bus.messages.policies import KeepingPolicy, PoliciesFound, SetPolicy
from bus.messages.projects import CreateGroup
from engine.flavors import InstanceId, JoinedGroup
from engine.goals import BalanceGoal
from engine.inventories import GroupId, PlaceRule
from tests.stories.keeping.test_campaigns import THIRD, Keeping, keeping
from tests.stories.layouts import EMBEDDED, STAGES
from tests.waiting import until

# Of the 32 processors of a host.
QUARTER = structs.replace(THIRD, name="quarter", vcpus=8)
BALANCE = CampaignWork(kind="balance", goal="even")


async def plan(here: Keeping, goal: BalanceGoal = "even", **work: object) -> CampaignPlanned:
    asked = structs.replace(BALANCE, goal=goal, **work)
    return await here.cloud.ask(AskCampaignPlan(work=asked), CampaignPlanned)


async def planned_from(here: Keeping, host: str, steps: int) -> CampaignPlanned:
    """The plan, when schedulers know so much that it has these steps: they hear of claims a little later."""
    return await until(
        lambda: plan(here),
        f"{steps} steps from {host}",
        lambda found: sum(each.host == f"c1/{host}" and bool(each.to) for each in found.movements) == steps,
    )


async def uneven(here: Keeping, on: str = "h1", count: int = 3, first: int = 1) -> list[InstanceId]:
    return [await here.here.booted(first + number, on, QUARTER) for number in range(count)]


async def hold(here: Keeping) -> None:
    """No movement begins, until `go_on`."""
    budget = MoveBudget(name="night", scope="cloud", quiet=("00:00-23:59", "23:59-00:00"))
    await here.cloud.ask(SetBudget(budget=budget), BudgetsFound)


async def go_on(here: Keeping) -> None:
    await here.cloud.ask(DeleteBudget(name="night"), BudgetsFound)


@STAGES
async def test_a_plan_says_what_it_gains_and_its_campaign_gains_that(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2", "h3") as here:
        guests = await uneven(here)
        planned = await planned_from(here, "h1", 2)
        assert planned.before is not None
        assert planned.after is not None
        assert (planned.before.peak, planned.before.empty) == (0.75, 2)
        assert (planned.after.peak, planned.after.spread, planned.after.empty) == (0.25, 0.0, 0)
        assert {(each.host, each.to, each.live) for each in planned.movements} == {
            ("c1/h1", "c1/h2", True),
            ("c1/h1", "c1/h3", True),
        }
        assert all(each.gain > 0 and each.memory_mb == QUARTER.ram_mb for each in planned.movements)

        await here.start(kind="balance", goal="even")
        ended = await here.until()
        assert [(each.host, each.stage, each.moved) for each in ended.hosts] == [("h1", "done", 2)]
        assert await here.hosts_of(guests) == {"h1", "h2", "h3"}
        assert {each.kind for each in await here.movements()} == {"live-migrate"}
        moved = planned.movements[0].instance
        why = await here.cloud.ask(AskExplanation(instance=moved), ExplanationsFound)
        assert why.explanations[0].by.endswith("campaign spring")
        after = await until(lambda: plan(here), "it is seen", lambda found: found.before == planned.after)
        assert after.movements == ()
        assert "nothing is to be gained" in (await here.refused(kind="balance", goal="even")).reason

        # Those that have moved rest: nothing is moved back, whatever else is wanted.
        assert {each.instance for each in (await plan(here, "fill")).movements} <= {*guests} - {
            each.instance for each in planned.movements
        }
        filled = await until(lambda: plan(here, "fill", rest_s=0), "it is seen", lambda found: found.fit == 2)
        assert filled.after is not None
        assert (filled.after.empty, filled.after.peak) == (2, 0.75)


@EMBEDDED
async def test_a_step_that_gains_nothing_any_more_is_left_out(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2") as here:
        guests = await uneven(here, count=4)
        await hold(here)
        await planned_from(here, "h1", 2)
        await here.start(kind="balance", goal="even")
        steps = {each.instance for each in await here.movements()}
        assert len(steps) == 2
        # Those that were to stay are gone: now those that were to move may as well stay.
        stay = tuple(sorted({*guests} - steps))
        for each in stay:
            await here.cloud.delete(each)
        await uneven(here, "h2", 2, first=11)
        await until(lambda: plan(here, rest_s=0), "all is seen", lambda found: found.fit == 0)
        await go_on(here)
        ended = await here.until()
        assert [(each.stage, each.moved) for each in ended.hosts] == [("skipped", 0)]
        assert {(each.life, each.reason) for each in await here.movements()} == {
            ("withdrawn", "it would gain nothing now")
        }
        assert await here.hosts_of([*steps]) == {"h1"}


@EMBEDDED
async def test_steps_that_go_together_are_judged_one_after_the_other(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2") as here:
        await uneven(here, count=4)
        await hold(here)
        await planned_from(here, "h1", 2)
        await here.start(kind="balance", goal="even")
        # Each of the two steps would still gain something by itself.
        await uneven(here, "h2", 1, first=11)
        await until(
            lambda: plan(here, "fill"),
            "it is seen",
            lambda found: found.before is not None and found.before.empty == 0,
        )
        await go_on(here)
        ended = await here.until()
        assert [(each.stage, each.moved) for each in ended.hosts] == [("done", 1)]
        assert sorted(each.life for each in await here.movements()) == ["done", "withdrawn"]


@EMBEDDED
async def test_whoever_orders_something_for_a_host_wins_over_a_balance(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2", "h3") as here:
        guests = await uneven(here)
        await hold(here)
        await planned_from(here, "h1", 2)
        await here.start(kind="balance", goal="even", name="even")
        # Nothing else is planned with its host.
        assert (await plan(here)).fit == 0
        await here.start("h1", name="spring")
        told = await here.told("even")
        assert [(each.stage, each.reason) for each in told.hosts] == [
            ("failed", "campaign spring has it now")
        ]
        await go_on(here)
        await here.until("done", "spring")
        assert "h1" not in await here.hosts_of(guests)
        lives = {(each.cause, each.life) for each in await here.movements()}
        assert lives == {("campaign spring", "done"), ("campaign even", "withdrawn")}

        await here.cloud.ask(SetHost(host="h1", mode="up"), HostSet)
        await hold(here)
        more = await uneven(here, "h1", 3, first=21)
        await until(
            lambda: plan(here, rest_s=0),
            "h1 is the fullest",
            lambda found: bool(found.hosts) and found.hosts[0].host == "h1",
        )
        await here.start(kind="balance", goal="even", name="again", rest_s=0)
        await here.cloud.ask(SetHost(host="h1", mode="draining"), HostSet)
        await go_on(here)
        ended = await here.until("done", "again")
        assert {each.reason for each in ended.hosts if each.host == "h1"} == {"its host was set draining"}
        assert await here.hosts_of(more) == {"h1"}


@EMBEDDED
async def test_members_of_a_group_that_are_where_its_rules_do_not_let_them_be_move(
    bus: str, books: str
) -> None:
    async with keeping(bus, books, "h1", "h2", "h3") as here:
        for host, rack in (("h1", "r1"), ("h2", "r2"), ("h3", "r3")):
            await here.cloud.ask(PlaceHosts(hosts=(HostPlace(host=host, place=rack),)), HostsPlaced)
        group = GroupId(uuid4())
        rule = PlaceRule(level=1, policy="anti-affinity", max_members=1)
        await here.cloud.client.ask(CreateGroup(id=group, policy="soft-anti-affinity", rules=(rule,)))
        first, second = [
            await here.here.booted(number, f"h{number}", group=JoinedGroup(id=group)) for number in (1, 2)
        ]
        assert (await plan(here, "rules")).fit == 0
        # An operator says that both racks are one.
        await here.cloud.ask(PlaceHosts(hosts=(HostPlace(host="h2", place="r1"),)), HostsPlaced)
        planned = await until(lambda: plan(here, "rules"), "it is seen", lambda found: found.fit == 1)
        assert planned.before is not None
        assert planned.after is not None
        assert (planned.before.broken, planned.after.broken) == (1, 0)
        await here.start(kind="balance", goal="rules")
        await here.until()
        assert "h3" in await here.hosts_of([first, second])
        await until(lambda: plan(here, "rules"), "it is seen", lambda found: found.before == planned.after)


@EMBEDDED
async def test_a_policy_has_hosts_evened_again_and_again(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1", "h2") as here:
        policy = KeepingPolicy(scope="cloud", balance="even", every_s=1, gain_min=50, rest_s=0)
        await here.cloud.ask(SetPolicy(policy=policy), PoliciesFound)
        first = await uneven(here, count=2)
        await until(lambda: here.hosts_of(first), "they are even", lambda hosts: hosts == {"h1", "h2"})
        await until(here.going, "nothing moves", lambda going: not going)
        await uneven(here, "h1", 2, first=11)
        await until(
            lambda: plan(here, rest_s=0),
            "they are even again",
            lambda found: found.before is not None and found.before.spread == 0,
        )
        assert {each.cause for each in await here.movements()} == {"campaign balance-cloud"}


@EMBEDDED
async def test_what_is_wrong_with_a_balance_is_named(bus: str, books: str) -> None:
    async with keeping(bus, books, "h1") as here:
        refused = {
            "work.goal": await here.refused(kind="balance"),
            "work.hosts": await here.refused("h1", kind="balance", goal="even"),
            "work.moves_max": await here.refused(kind="balance", goal="even", moves_max=0),
            "work.rest_s": await here.refused(kind="balance", goal="even", rest_s=-1),
            "work.place": await here.refused(kind="balance", goal="even", place="dc7"),
        }
        assert {field: each.field for field, each in refused.items()} == {each: each for each in refused}
        assert (await here.refused("h1", goal="even")).field == "work.goal"
        wrong = (
            ("balance", KeepingPolicy(scope="project", of="p1", balance="even")),
            ("every_s", KeepingPolicy(scope="cloud", every_s=5)),
            ("gain_min", KeepingPolicy(scope="cloud", balance="even", gain_min=101)),
        )
        for field, policy in wrong:
            told = await here.cloud.ask(SetPolicy(policy=policy), BuildRejected)
            assert told.field == f"policy.{field}"
