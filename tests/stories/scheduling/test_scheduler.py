"""A scheduler worker as others use it: with real placement, over a real queue, and cells that follow a script."""

import asyncio
from uuid import UUID

import pytest
from msgspec import structs

from bus.messages.build import (
    BuildAccepted,
    BuildRejected,
    ClaimRefused,
    DeleteInstance,
    InstanceFailed,
    InstancesFound,
)
from engine.flavors import RequestId
from engine.inventories import ReportedInventory, ReportedProvider
from engine.refusals import AlreadyClaimed, Claimed, DoesNotFit, ShapeMoved, Superseded
from tests.contracts.stage import until
from tests.stories.cloud import (
    QUICK_PACE,
    SMALL,
    DiesAfterItsClaim,
    InterferingOnce,
    a_build,
    a_host,
    cloud,
    host_id,
    instance_of,
)
from tests.stories.layouts import ONE_BROKER, STAGES

pytestmark = pytest.mark.asyncio


async def nothing() -> None:
    """An action without effect."""


@STAGES
async def test_200_boots_over_20_hosts_in_two_cells_are_placed_without_over_commit(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        names = [f"host-{number}" for number in range(20)]
        for number, name in enumerate(names):
            await setup.add_host(name, f"c{1 + number % 2}", vcpu=10)
        await setup.until_registered(*names)

        builds = [a_build(number) for number in range(1, 201)]
        answers = await setup.client.ask_all(builds)

        assert [answer.instances for answer in answers if isinstance(answer, BuildAccepted)] == [
            (instance_of(build),) for build in builds
        ]
        for build in builds:
            await setup.until_state(instance_of(build), "active")
        assert await setup.used() == dict.fromkeys(names, 10)
        assert len(setup.placed) == 200
        assert {order.cell for order in setup.placed} == {"c1", "c2"}


@STAGES
async def test_a_request_that_comes_twice_is_answered_twice_and_built_once(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await setup.add_host("h1")
        await setup.until_registered("h1")
        build = a_build(1, count=2)

        first = await setup.client.ask(build)
        again = await setup.client.ask_all([build, build])
        await setup.until_state(instance_of(build, 1), "active")

        assert first == BuildAccepted(
            request_id=RequestId(UUID(int=1)), instances=(instance_of(build, 0), instance_of(build, 1))
        )
        assert again == [first, first]
        assert await setup.used() == {"h1": 2}
        assert len(setup.placed) == 2


@STAGES
async def test_other_content_under_the_same_id_is_rejected(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await setup.add_host("h1")
        await setup.until_registered("h1")
        await setup.client.ask(a_build(1))

        rejected = await setup.client.ask(a_build(1, name="another"))

        assert isinstance(rejected, BuildRejected)
        assert (rejected.field, rejected.value) == ("request_id", str(UUID(int=1)))
        assert rejected.reason.startswith("duplicate id")
        assert await setup.used() == {"h1": 1}


@STAGES
async def test_an_invalid_request_is_rejected_with_its_field_in_the_answer_and_in_an_event(
    bus: str, books: str
) -> None:
    async with (
        cloud(bus, books) as setup,
        setup.placement(),
        setup.scheduler(),
        setup.listening("build.#") as heard,
    ):
        await setup.add_host("h1")
        wrong_notification = [
            a_build(1, request_id=None),
            a_build(2, flavor=None),
            a_build(3, flavor=structs.replace(SMALL, vcpus=-1)),
            a_build(4, flavor=structs.replace(SMALL, extra_specs={"resources:NO_SUCH_CLASS": "1"})),
            a_build(5, count=0),
        ]

        answers = await setup.client.ask_all(wrong_notification)

        assert [type(answer) for answer in answers] == [BuildRejected] * 5
        fields = [answer.field for answer in answers if isinstance(answer, BuildRejected)]
        assert [field.split(".")[0].split("[")[0] for field in fields] == [
            "request_id",
            "flavor",
            "flavor",
            "flavor",
            "count",
        ]
        # Perhaps more than once: a worker that waits long for an answer asks again.
        await until(lambda: set(heard) == set(answers), "all rejections heard")
        assert await setup.used() == {"h1": 0}


@STAGES
async def test_a_request_that_no_host_can_take_ends_in_error_with_the_funnel(bus: str, books: str) -> None:
    async with (
        cloud(bus, books) as setup,
        setup.placement(),
        setup.scheduler(),
        setup.listening("instance.error.*") as heard,
    ):
        await setup.add_host("h1", vcpu=2)
        await setup.add_host("h2", "c2", vcpu=2)
        await setup.until_registered("h1", "h2")
        build = a_build(1, flavor=structs.replace(SMALL, vcpus=3))

        await setup.send(build)
        state = await setup.until_state(instance_of(build), "error")

        assert state.cell == "cell0"
        assert state.no_valid_host is not None
        assert state.no_valid_host.hosts == 2
        assert sum(step.removed for step in state.no_valid_host.steps) == 2
        await until(lambda: len(heard) >= 1, "the failure heard")
        assert heard[0] == InstanceFailed(cell="cell0", instance=state)


@ONE_BROKER
async def test_a_request_waits_for_a_host_of_which_placement_heard_first(bus: str, books: str) -> None:
    """As when a whole cloud starts, and requests are queued already."""
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await setup.report(a_host("h1"))
        build = a_build(1)
        await setup.send(build)
        await setup.until_state(instance_of(build), "accepted")
        await asyncio.sleep(0.3)
        await setup.add_host("h1")

        await setup.until_state(instance_of(build), "active")


@STAGES
async def test_a_host_that_was_added_a_moment_ago_is_found(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        for number in range(1, 11):
            await setup.add_host(f"h{number}", vcpu=1)
            await setup.client.ask(a_build(number))

        for number in range(1, 11):
            state = await setup.until_state(instance_of(a_build(number)), "active", "error")
            assert (state.state, state.host) == ("active", f"h{number}")


@STAGES
async def test_a_shape_that_moves_between_choice_and_claim_costs_a_retry_and_the_same_host_wins(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1")
        moving = InterferingOnce(lambda: setup.report(a_host("h1", traits=("CUSTOM_NEW",))))
        async with setup.scheduler(station=moving.station):
            await setup.until_registered("h1")
            build = a_build(1)

            await setup.send(build)
            state = await setup.until_state(instance_of(build), "active")

            assert state.host == "h1"
            assert moving.verdicts == [ShapeMoved, Claimed]
            assert state.refusals == (ClaimRefused(host="h1", reason="its shape moved"),)


@STAGES
async def test_a_host_that_stops_qualifying_between_choice_and_claim_gives_way_to_the_next(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1", vcpu=100, traits=("CUSTOM_FAST",))
        await setup.add_host("h2", vcpu=8, traits=("CUSTOM_FAST",))
        losing = InterferingOnce(lambda: setup.report(a_host("h1", vcpu=100)))
        async with setup.scheduler(station=losing.station):
            await setup.until_registered("h1", "h2")
            fast = structs.replace(SMALL, extra_specs={"trait:CUSTOM_FAST": "required"})
            build = a_build(1, flavor=fast)

            await setup.send(build)
            state = await setup.until_state(instance_of(build), "active")

            assert state.host == "h2"
            assert losing.verdicts == [ShapeMoved, Claimed]


@STAGES
async def test_a_host_that_fills_up_between_choice_and_claim_gives_way_to_the_next(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1", vcpu=16)
        await setup.add_host("h2", vcpu=8)
        filling = InterferingOnce(lambda: setup.fill("h1", 16))
        async with setup.scheduler(station=filling.station):
            await setup.until_registered("h1", "h2")
            build = a_build(1)

            await setup.send(build)
            state = await setup.until_state(instance_of(build), "active")

            assert state.host == "h2"
            assert filling.verdicts[0] is DoesNotFit
            assert state.refusals == (ClaimRefused(host="h1", reason="VCPU asked 1, free 0"),)


@STAGES
async def test_a_cell_of_a_host_that_fills_up_between_choice_and_claim_gives_way_to_another_cell_of_that_host(
    bus: str, books: str
) -> None:
    host = a_host("h1", vcpu=16)
    cells = tuple(
        ReportedProvider(
            id=host_id(name),
            name=name,
            parent=host_id("h1"),
            inventories={"VCPU": ReportedInventory(total=8)},
        )
        for name in ("h1-n0", "h1-n1")
    )
    (root,) = host.providers
    without = {key: value for key, value in (root.inventories or {}).items() if key != "VCPU"}
    nested = structs.replace(host, providers=(structs.replace(root, inventories=without), *cells))
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1", vcpu=16)
        await setup.report(nested)
        await setup.add_host("h2", vcpu=4)
        filling = InterferingOnce(lambda: setup.fill("h1", 8, at="h1-n0"))
        async with setup.scheduler(station=filling.station):
            await setup.until_registered("h1", "h2")
            build = a_build(1)

            await setup.send(build)
            state = await setup.until_state(instance_of(build), "active")

            assert state.host == "h1"
            assert filling.verdicts == [DoesNotFit, Claimed]
            assert state.refusals == (ClaimRefused(host="h1", reason="VCPU asked 1, free 0"),)


@STAGES
async def test_an_instance_deleted_before_it_is_placed_holds_nothing(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1")
        build = a_build(1)
        deleting = InterferingOnce(lambda: setup.client.ask(DeleteInstance(instance=instance_of(build))))
        async with setup.scheduler(station=deleting.station):
            await setup.until_registered("h1")

            await setup.send(build)
            state = await setup.until_state(instance_of(build), "deleted")

            assert state.cell == "cell0"
            await until(lambda: bool(deleting.verdicts), "placement's verdict")
            assert deleting.verdicts in ([Claimed], [Superseded])
            await setup.until_used(h1=0)
            assert setup.placed == []


@STAGES
async def test_an_instance_deleted_after_it_was_placed_is_deleted_when_its_cell_reports_it(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await setup.add_host("h1")
        await setup.until_registered("h1")
        build = a_build(1)
        await setup.send(build)
        await setup.until_state(instance_of(build), "active")

        answer = await setup.client.ask(DeleteInstance(instance=instance_of(build)))
        assert isinstance(answer, InstancesFound)
        assert [state.state for state in answer.instances] == ["deleting"]
        state = await setup.until_state(instance_of(build), "deleted")
        again = await setup.client.ask(DeleteInstance(instance=instance_of(build)))

        assert (state.cell, state.host) == ("c1", "h1")
        assert again == InstancesFound(instances=(state,))
        await setup.until_used(h1=0)


@STAGES
async def test_a_delete_that_overtakes_its_request_leaves_nothing_to_build(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.placement(), setup.scheduler():
        await setup.add_host("h1")
        await setup.until_registered("h1")
        build = a_build(1)

        assert await setup.client.ask(DeleteInstance(instance=instance_of(build))) == InstancesFound(
            instances=()
        )
        assert isinstance(await setup.client.ask(build), BuildAccepted)

        assert (await setup.until_state(instance_of(build), "deleted")).cell == "cell0"
        assert await setup.used() == {"h1": 0}


@STAGES
async def test_two_workers_on_one_queue_place_nothing_twice(bus: str, books: str) -> None:
    async with (
        cloud(bus, books) as setup,
        setup.placement(),
        setup.scheduler("scheduler-1"),
        setup.scheduler("scheduler-2"),
    ):
        names = [f"h{number}" for number in range(10)]
        for name in names:
            await setup.add_host(name, vcpu=12)
        await setup.until_registered(*names)
        builds = [a_build(number) for number in range(1, 101)]

        # Each request four times, so that both workers handle it at the same time.
        await asyncio.gather(*[setup.client.ask_all(builds) for _ in range(4)])
        for build in builds:
            await setup.until_state(instance_of(build), "active")

        assert sum((await setup.used()).values()) == 100
        assert len(setup.placed) == 100


@STAGES
async def test_a_worker_killed_between_claim_and_publish_leaves_a_claim_that_the_next_one_adopts(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1", vcpu=1)
        await setup.add_host("h2", vcpu=4)
        dying, build = DiesAfterItsClaim(), a_build(1)
        async with setup.scheduler("scheduler-1", station=dying.station, drain_s_max=0):
            await setup.until_registered("h1", "h2")
            await setup.client.publisher.send(build)
            await dying.claimed.wait()
        (held,) = [name for name, used in (await setup.used()).items() if used]
        # The second worker would choose another host; the granted claim decides.
        await setup.disable(held)
        adopting = InterferingOnce(nothing)
        async with setup.scheduler("scheduler-2", station=adopting.station):
            state = await setup.until_state(instance_of(build), "active")

            assert state.host == held
            assert adopting.verdicts == [AlreadyClaimed]
            assert sum((await setup.used()).values()) == 1
            assert len(setup.placed) == 1


@STAGES
async def test_a_claim_on_a_host_whose_row_is_still_to_be_written_waits_for_that_row(
    bus: str, books: str
) -> None:
    """Workers hear of a new host before one of them writes its row; the worker that chose it may be the only one so
    far.
    """
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1", vcpu=1)
        dying, build = DiesAfterItsClaim(), a_build(1)
        async with setup.scheduler("scheduler-1", station=dying.station, drain_s_max=0):
            await setup.until_registered("h1")
            await setup.client.publisher.send(build)
            await dying.claimed.wait()
        async with setup.rows.transaction() as transaction:
            await transaction.forget_hosts([host_id("h1")])
        await setup.add_host("h2", vcpu=4)
        adopting = InterferingOnce(nothing)
        async with setup.scheduler("scheduler-2", station=adopting.station):
            await until(lambda: AlreadyClaimed in adopting.verdicts)
            await setup.add_host("h1", vcpu=1)

            state = await setup.until_state(instance_of(build), "active")

            assert state.host == "h1"
            assert await setup.used() == {"h1": 1, "h2": 0}
            assert len(setup.placed) == 1


@STAGES
async def test_a_claim_on_a_host_whose_row_is_never_written_ends_the_request_and_is_released(
    bus: str, books: str
) -> None:
    """The only worker that had heard of the host died, and the host never reports again."""
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1", vcpu=1)
        dying, build = DiesAfterItsClaim(), a_build(1)
        async with setup.scheduler("scheduler-1", station=dying.station, drain_s_max=0):
            await setup.until_registered("h1")
            await setup.client.publisher.send(build)
            await dying.claimed.wait()
        async with setup.rows.transaction() as transaction:
            await transaction.forget_hosts([host_id("h1")])
        await setup.add_host("h2", vcpu=4)
        impatient = structs.replace(QUICK_PACE, host_row_wait_s=0.5)
        async with setup.scheduler("scheduler-2", pace=impatient):
            state = await setup.until_state(instance_of(build), "error")

            assert state.reason == (
                f"it holds a share of provider {host_id('h1')}, which is no host that any scheduler knows, for 0.5 s"
            )
            await setup.until_used(h1=0, h2=0)


@STAGES
async def test_a_request_whose_claim_is_never_answered_ends_by_its_deadline_and_holds_nothing(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1")
        dying, build = DiesAfterItsClaim(), a_build(1, deadline_s=1)
        async with setup.scheduler(station=dying.station, drain_s_max=0):
            await setup.until_registered("h1")
            await setup.send(build)

            state = await setup.until_state(instance_of(build), "error")

            assert state.reason.startswith("not placed within 1 s of its acceptance")
            await setup.until_used(h1=0)
