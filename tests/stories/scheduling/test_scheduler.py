"""A scheduler worker as others use it: with real placement, over a real queue, and cells that follow a script."""

import pytest
from msgspec import structs

from bus.messages.build import (
    BuildAccepted,
    ClaimRefused,
    DeleteInstance,
    InstanceFailed,
    InstancesFound,
)
from engine.inventories import ReportedInventory, ReportedProvider
from engine.refusals import AlreadyClaimed, Claimed, DoesNotFit, ShapeMoved, Superseded
from tests.stories.cloud import QUICK_PACE, SMALL, a_build, a_host, cloud, funnel_of, instance_of
from tests.stories.layouts import STAGES
from tests.stories.scripted import DiesAfterItsClaim, Interfering, host_id
from tests.waiting import until


@STAGES
async def test_a_request_that_no_host_can_take_ends_in_error_with_the_funnel(bus: str, books: str) -> None:
    async with (
        cloud(bus, books) as setup,
        setup.placement(),
        setup.scheduler(),
        setup.listening("instance.error.*") as heard,
    ):
        await setup.add_hosts("h1", vcpu=2)
        await setup.add_hosts("h2", cell="c2", vcpu=2)
        state = await setup.boot(1, "error", flavor=structs.replace(SMALL, vcpus=3))

        assert state.cell == "cell0"
        assert funnel_of(state).hosts == 2
        assert sum(step.removed for step in funnel_of(state).steps) == 2
        await until(lambda: len(heard) >= 1, "the failure heard")
        assert heard[0] == InstanceFailed(cell="cell0", instance=state)


@pytest.mark.hits("the host to try again does not qualify any more: it is passed over")
@STAGES
async def test_a_host_that_stops_qualifying_between_choice_and_claim_gives_way_to_the_next(
    bus: str, books: str
) -> None:
    async with cloud(bus, books) as setup, setup.placement():
        await setup.add_host("h1", vcpu=100, traits=("CUSTOM_FAST",))
        await setup.add_host("h2", vcpu=8, traits=("CUSTOM_FAST",))
        losing = Interfering(lambda: setup.report(a_host("h1", vcpu=100)))
        async with setup.scheduler(station=losing.station):
            await setup.until_registered("h1", "h2")
            fast = structs.replace(SMALL, extra_specs={"trait:CUSTOM_FAST": "required"})

            assert (await setup.boot(1, flavor=fast)).host == "h2"
            assert losing.verdicts == [ShapeMoved, Claimed]


@pytest.mark.hits("a claim is refused: another way on the same host is tried")
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
        filling = Interfering(lambda: setup.fill("h1", 8, at="h1-n0"))
        async with setup.scheduler(station=filling.station):
            await setup.until_registered("h1", "h2")
            state = await setup.boot(1)

            assert state.host == "h1"
            assert filling.verdicts == [DoesNotFit, Claimed]
            assert state.refusals == (ClaimRefused(host="h1", reason="VCPU asked 1, free 0"),)


@STAGES
async def test_an_instance_deleted_before_it_is_placed_holds_nothing(bus: str, books: str) -> None:
    deleting, build = Interfering(), a_build(1)
    async with cloud(bus, books) as setup, setup.scheduling("h1", station=deleting.station):
        deleting.action = lambda: setup.client.ask(DeleteInstance(instance=instance_of(build)))

        (state,) = await setup.built(build, "deleted")

        assert state.cell == "cell0"
        await until(lambda: bool(deleting.verdicts), "placement's verdict")
        assert deleting.verdicts in ([Claimed], [Superseded])
        await setup.until_used(h1=0)
        assert setup.placed == []


@STAGES
async def test_a_delete_that_overtakes_its_request_leaves_nothing_to_build(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, setup.scheduling("h1"):
        build = a_build(1)

        assert await setup.client.ask(DeleteInstance(instance=instance_of(build))) == InstancesFound(
            instances=()
        )
        assert isinstance(await setup.client.ask(build), BuildAccepted)

        assert (await setup.until_state(instance_of(build), "deleted")).cell == "cell0"
        assert await setup.used() == {"h1": 0}


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
        adopting = Interfering()
        async with setup.scheduler("scheduler-2", station=adopting.station):
            assert (await setup.until_state(instance_of(build), "active")).host == held
            assert adopting.verdicts == [AlreadyClaimed]
            assert sum((await setup.used()).values()) == 1
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
    dying = DiesAfterItsClaim().station
    async with cloud(bus, books) as setup, setup.scheduling("h1", station=dying, drain_s_max=0):
        state = await setup.boot(1, "error", deadline_s=1)

        assert state.reason.startswith("not placed within 1 s of its acceptance")
        await setup.until_used(h1=0)
