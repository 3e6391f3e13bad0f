"""A bug at one message or one row ends no process: what two processes fail at is set aside, its client is told, and all else goes on."""

from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import pytest
from msgspec import structs

from bus.messages.build import BuildAccepted, BuildInstance, InstanceFailed, InstanceState, RebuildInstance
from bus.messages.moves import MoveInstance
from bus.workers.dead_letters import DeadLetter, open_dead_letters
from cell_conductor.core import decide, moving, rebuilding, swapping
from cell_conductor.core.transition import Transition
from cell_conductor.settings import ConductorSettings
from compute_sim import handlers as compute_handlers
from engine.flavors import Image, InstanceId, RequestId, Wait
from engine.inventories import Share
from ironic_sync import applying, deploying, events, reporting
from kit import parts
from laboratory.computes.hosts import HostSize, SimulatedHost
from laboratory.ironic import available_nodes
from placement_worker import handlers as placement_handlers
from scheduler_worker import forgetting, outbox
from scheduler_worker import waiting as scheduler_waiting
from scheduler_worker.claiming import claimer
from tests.contracts.placement_orders import an_id
from tests.contracts.stage import SETTINGS
from tests.contracts.stores import open_conductor_store
from tests.planted.replacing import replaced
from tests.running import closing
from tests.stories.cloud import (
    CONDUCTING,
    QUICK_PACE,
    SMALL,
    Cloud,
    a_build,
    a_host,
    cloud,
    failing,
    filler_of,
    instance_of,
)
from tests.stories.layouts import BOTH
from tests.stories.metal.test_deploys import deploy_setup
from tests.stories.scripted import host_id
from tests.varied import varied
from tests.waiting import until

pytestmark = pytest.mark.asyncio

# What has so many processors meets the planted bug.
CURSED = structs.replace(SMALL, vcpus=3)
LONG = Wait(for_s=3600)
NOTHING = Share(host=host_id("none"), amounts=())


def is_cursed(spec: Any) -> bool:
    amounts: dict[str, int] = dict(spec.amounts)
    return amounts["VCPU"] == CURSED.vcpus


@contextmanager
def bug_in(owner: Any, name: str, is_met: Callable[..., bool]) -> Iterator[list[object]]:
    """This function of a module raises when its arguments are such. The list has each time that it did."""
    met: list[object] = []

    def by(real: Any) -> Any:
        def planted(*values: Any, **named: Any) -> Any:
            if is_met(*values, **named):
                met.append(values)
                raise AssertionError("planted")
            return real(*values, **named)

        return planted

    with replaced(owner, name, by):
        yield met


@asynccontextmanager
async def two_schedulers(bus: str, books: str, vcpu: int = 8) -> AsyncIterator[Cloud]:
    async with cloud(bus, books) as setup, AsyncExitStack() as stack:
        await stack.enter_async_context(setup.placement())
        for name in ("s1", "s2"):
            await stack.enter_async_context(setup.scheduler(name))
        await setup.add_hosts("h1", vcpu=vcpu)
        yield setup


async def letters_of(setup: Cloud) -> Sequence[DeadLetter]:
    async with (
        closing(await setup.brokers.at_api("operator").connect()) as (connection,),
        open_dead_letters(connection, letters_max=100) as opened,
    ):
        return [*opened.letters.values()]


async def one_letter(setup: Cloud, type_: str) -> DeadLetter:
    letters = await until(
        lambda: letters_of(setup),
        f"a dead letter {type_}",
        lambda found: any(each.type == type_ for each in found),
    )
    return next(each for each in letters if each.type == type_)


async def boot(setup: Cloud, number: int, **fields: object) -> InstanceState:
    return await setup.boot(number, "active", "error", **fields)


async def waiting(setup: Cloud, build: BuildInstance) -> InstanceId:
    assert isinstance(await setup.client.ask(build), BuildAccepted)
    await setup.until_state(instance_of(build), "waiting")
    return instance_of(build)


@BOTH
async def test_a_request_at_which_two_schedulers_fail_is_answered_and_ends_in_error(
    bus: str, books: str
) -> None:
    async with two_schedulers(bus, books) as setup:
        # After the row is written, and the claim made.
        with bug_in(claimer.Claimer, "_refill", lambda _, one: is_cursed(one.spec)):
            cursed = await boot(setup, 1, flavor=CURSED)
            other = await boot(setup, 2)

        assert (cursed.state, other.state) == ("error", "active")
        assert "dead letters" in cursed.reason
        # The claim of the first try was given back.
        await setup.until_used(h1=1)
        letter = await one_letter(setup, "build.request")
        assert letter.reason.splitlines()[0] == "AssertionError: planted; two processes failed at it"
        assert "_refill" in letter.reason


@BOTH
async def test_an_instance_that_waits_and_at_which_two_schedulers_fail_ends_and_others_are_woken(
    bus: str, books: str
) -> None:
    async with two_schedulers(bus, books, vcpu=4) as setup:
        await setup.fill("h1", vcpu=4)
        cursed = await waiting(setup, a_build(1, flavor=CURSED, wait=structs.replace(LONG, priority=9)))
        other = await waiting(setup, a_build(2, wait=LONG))

        with bug_in(claimer.Claimer, "_refill", lambda _, one: is_cursed(one.spec)) as met:
            await setup.give_back(filler_of("h1"))
            state = await setup.until_state(cursed, "error")
            await setup.until_state(other, "active")

        assert len(met) >= 2
        assert "gave it up" in state.reason
        await setup.until_used(h1=1)
        letter = await one_letter(setup, "row.failed")
        assert "two processes failed at it" in letter.reason
        assert str(cursed).encode() in letter.parcel.body
        # The schedulers live.
        assert (await boot(setup, 3)).state == "active"


@pytest.mark.parametrize("question", ["room_for", "hosts_with_room"])
@BOTH
async def test_a_spec_whose_room_cannot_be_judged_is_tried_and_holds_up_no_others(
    bus: str, books: str, question: str
) -> None:
    def is_asked(_: object, specs: Any, *__: object) -> bool:
        return any(map(is_cursed, specs if isinstance(specs, Sequence) else (specs,)))

    async with two_schedulers(bus, books, vcpu=4) as setup:
        await setup.fill("h1", vcpu=4)
        cursed = await waiting(setup, a_build(1, flavor=CURSED, wait=LONG))
        other = await waiting(setup, a_build(2, wait=LONG))

        with bug_in(scheduler_waiting, question, is_asked) as met:
            await setup.give_back(filler_of("h1"))
            await setup.until_state(cursed, "active")
            await setup.until_state(other, "active")

        assert met


@BOTH
async def test_a_row_that_is_overdue_and_at_which_two_schedulers_fail_ends_and_others_end_too(
    bus: str, books: str
) -> None:
    async with two_schedulers(bus, books, vcpu=1) as setup:
        await setup.fill("h1", vcpu=1)
        short = Wait(for_s=2)
        cursed = a_build(1, wait=short)
        with bug_in(forgetting, "overdue", lambda row, _: row.id == instance_of(cursed)):
            await setup.send(cursed, a_build(2, wait=short))
            ended = await setup.until_state(instance_of(a_build(2)), "error")
            given_up = await setup.until_state(instance_of(cursed), "error")

        assert "no valid host: it waited" in ended.reason
        assert "gave it up" in given_up.reason
        await one_letter(setup, "row.failed")


@BOTH
async def test_messages_of_a_row_that_cannot_be_made_hold_up_no_others(bus: str, books: str) -> None:
    async with cloud(bus, books) as setup, AsyncExitStack() as stack:
        await stack.enter_async_context(setup.placement())
        sweeping = varied(SETTINGS, SWEEP_S=0.05)
        for name in ("s1", "s2"):
            await stack.enter_async_context(setup.scheduler(name, bus=sweeping))
        ids = [(await boot(setup, number)).id for number in (1, 2)]
        numbers = count(3)

        async def is_known_as_said() -> bool:
            # A scheduler writes with its next batch that what it said before has arrived.
            await boot(setup, next(numbers))
            return not any(row.unsaid for row in (await setup.rows.rows_of(ids)).values())

        await until(is_known_as_said, "the boots are known as said")
        heard = await stack.enter_async_context(setup.listening("instance.error.*"))

        with bug_in(outbox, "messages_of", lambda row: row.id == ids[0]):
            # A worker has died before it sent the messages of these two.
            async with setup.rows.transaction() as transaction:
                rows = [
                    structs.replace(row, unsaid=True)
                    for row in (await transaction.lock(sorted(ids))).values()
                ]
                await transaction.save(rows)
                await transaction.note([rows])
            letter = await one_letter(setup, "row.failed")
            await until(
                lambda: {each.instance.id for each in heard if isinstance(each, InstanceFailed)},
                "the other message is sent",
                lambda failed: failed & {*ids} == {ids[1]},
            )

        assert "AssertionError: planted" in letter.reason
        assert "two processes failed at it" in letter.reason
        assert (await boot(setup, next(numbers))).state == "error"


# In a cell with two conductors


@asynccontextmanager
async def two_conductors(
    bus: str, books: str, *hosts: str, settings: ConductorSettings = CONDUCTING
) -> AsyncIterator[Cloud]:
    async with cloud(bus, books, scripted=()) as setup, AsyncExitStack() as stack:
        rows = await stack.enter_async_context(open_conductor_store(books, "c1"))
        await stack.enter_async_context(setup.placement())
        await stack.enter_async_context(setup.scheduler())
        for name in ("k1", "k2"):
            await stack.enter_async_context(setup.conductor(rows, name=name, settings=settings))
        if hosts:
            simulated = [SimulatedHost(name=name, size=HostSize(vcpus=8)) for name in hosts]
            await stack.enter_async_context(setup.computes(simulated, failing() if len(hosts) > 1 else None))
            await setup.until_reported(*hosts)
        else:
            await setup.add_hosts("h1")
        yield setup


def is_cursed_build(transition: Transition, *_: object) -> bool:
    order = transition.row.order
    return order is not None and order.flavor.vcpus == CURSED.vcpus


@BOTH
async def test_an_order_at_which_two_conductors_fail_ends_its_build(bus: str, books: str) -> None:
    async with two_conductors(bus, books, "h0") as setup:
        with bug_in(Transition, "spawn", is_cursed_build):
            cursed = await boot(setup, 1, flavor=CURSED)
            other = await boot(setup, 2)

        assert (cursed.state, other.state) == ("error", "active")
        assert "gave it up" in cursed.reason
        await setup.until_used(h0=1)
        await one_letter(setup, "place")


@BOTH
async def test_an_order_of_which_no_conductor_can_even_write_the_end_ends_its_build(
    bus: str, books: str
) -> None:
    async with two_conductors(bus, books, "h0") as setup:
        with bug_in(decide, "Transition", lambda row, *_, **__: row.id == instance_of(a_build(1))):
            cursed = await boot(setup, 1)
            other = await boot(setup, 2)

        assert (cursed.state, other.state) == ("error", "active")
        await setup.until_used(h0=1)


def failure_of(told: InstanceState | None) -> str:
    """Why its last move or rebuild has failed; empty if none has."""
    if told is None or told.state != "active":
        return ""
    return told.rebuild.failure if told.rebuild else told.move.failure if told.move else ""


@BOTH
@pytest.mark.parametrize("kind", ["stop", "rebuild"])
async def test_an_order_for_an_instance_at_which_two_conductors_fail_ends_and_the_instance_stays(
    bus: str, books: str, kind: str
) -> None:
    async with two_conductors(bus, books, "h0") as setup:
        instance, request = (await boot(setup, 1)).id, RequestId(an_id("order"))
        if kind == "stop":
            order: MoveInstance | RebuildInstance = MoveInstance(
                request_id=request, instance=instance, kind="stop"
            )
        else:
            order = RebuildInstance(request_id=request, instance=instance, image=Image(source="http://new"))

        with bug_in(moving, "stop", lambda _: True), bug_in(rebuilding, "_send_order", lambda _: True):
            await setup.client.ask(order)
            await until(
                lambda: setup.instance(instance),
                f"the {kind} has ended",
                lambda found: "gave it up" in failure_of(found),
            )
        await one_letter(setup, "move" if kind == "stop" else "rebuild")


@BOTH
async def test_a_row_that_is_due_and_at_which_two_conductors_fail_ends_its_build(
    bus: str, books: str
) -> None:
    # No compute takes the orders, so each attempt ends by its time.
    soon = ConductorSettings(attempt_timeout_s=1)
    async with two_conductors(bus, books, settings=soon) as setup:
        with bug_in(decide, "_on_due", is_cursed_build):
            cursed = await boot(setup, 1, flavor=CURSED)
            other = await boot(setup, 2)

        assert "gave it up" in cursed.reason
        assert "no alternate is left" in other.reason
        await one_letter(setup, "row.failed")


@BOTH
async def test_an_answer_of_placement_at_which_two_conductors_fail_ends_its_build(
    bus: str, books: str
) -> None:
    # Builds fail on both hosts, so each instance goes on to its alternate.
    async with two_conductors(bus, books, "h1", "h2") as setup:
        with bug_in(swapping, "_flavor_on", is_cursed_build):
            cursed = await boot(setup, 1, flavor=CURSED)
            other = await boot(setup, 2)

        assert "gave it up" in cursed.reason
        assert "no alternate is left" in other.reason
        await setup.until_used(h1=0, h2=0)


# In placement


@asynccontextmanager
async def two_placements(bus: str, books: str) -> AsyncIterator[Cloud]:
    async with cloud(bus, books) as setup, AsyncExitStack() as stack:
        for name in ("p1", "p2"):
            await stack.enter_async_context(setup.placement(name))
        # It compares all revisions now and then, and so finds what was passed over.
        pace = structs.replace(QUICK_PACE, verify_every_s=0.2)
        await stack.enter_async_context(setup.scheduler(pace=pace))
        await setup.add_hosts("h1")
        yield setup


def is_cursed_share(order: Any) -> bool:
    return any(each.amount == CURSED.vcpus for each in getattr(order, "share", NOTHING).amounts)


@BOTH
async def test_a_claim_at_which_two_placement_workers_fail_is_refused(bus: str, books: str) -> None:
    async with two_placements(bus, books) as setup:
        with bug_in(
            placement_handlers,
            "decide_claims",
            lambda _, sent, *__: any(is_cursed_share(each.order) for each in sent),
        ):
            cursed = await boot(setup, 1, flavor=CURSED)
            other = await boot(setup, 2)

        assert (cursed.state, other.state) == ("error", "active")
        assert "gave it up" in cursed.reason
        await one_letter(setup, "claim")
        await setup.until_used(h1=1)


@BOTH
async def test_a_change_that_cannot_be_published_is_passed_over_and_later_ones_are_published(
    bus: str, books: str
) -> None:
    async with two_placements(bus, books) as setup:

        def has_cursed(unpublished: Any, _: object) -> bool:
            return any(each.name == "cursed" for each in unpublished.providers)

        with bug_in(placement_handlers, "messages_of", has_cursed) as met:
            await setup.report(a_host("cursed"))
            await setup.add_hosts("h2")

        # Once in a batch, and once alone.
        assert len(met) >= 2
        assert (await boot(setup, 1)).state == "active"


# On bare-metal nodes, of which each has one daemon


@BOTH
async def test_a_deploy_at_which_its_daemon_fails_ends_and_other_nodes_are_deployed(
    bus: str, books: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Its owner is the only one that can work on it, and goes on with it after a rest.
    monkeypatch.setattr(parts, "ROW_RESTS_S_FIRST", 0.2)
    nodes = available_nodes(2)
    async with deploy_setup(bus, books, *nodes) as metal, metal.daemon("d1"):
        await metal.until_offered(*nodes)
        with bug_in(deploying, "next_step", lambda deploy, _: deploy.instance == instance_of(a_build(1))):
            cursed = await metal.boot(1)
            other = await metal.boot(2)
            await metal.until_active(other)
            letter = await one_letter(metal.cloud, "row.failed")
        state = await metal.cloud.until_state(cursed, "error")

        assert "gave it up" in str(state.failures)
        assert "AssertionError: planted" in letter.reason
        # Its node is cleaned, and offered again.
        await metal.until_free(*[node for node in metal.nodes if metal.with_instance(other) != [node]])


@pytest.mark.parametrize(
    ("module", "function"),
    [(applying, "after_change"), (reporting, "report_of"), (events, "read")],
    ids=["changed", "reported", "heard"],
)
@BOTH
async def test_a_node_at_which_daemons_fail_holds_up_no_others(
    bus: str, books: str, module: Any, function: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parts, "ROW_RESTS_S_FIRST", 0.2)
    nodes = available_nodes(2)
    cursed, other = nodes

    def is_of_cursed(about: Any, *_: object, **__: object) -> bool:
        return cursed.uuid.encode() in about if isinstance(about, bytes) else str(about.id) == cursed.uuid

    async with deploy_setup(bus, books, *nodes) as metal, metal.daemon("d1"), metal.daemon("d2"):
        with bug_in(module, function, is_of_cursed) as met:
            await metal.until_offered(other)
            if function == "read":
                await metal.until_offered(cursed)
            await metal.until_active(await metal.boot(1))
            if function == "read":
                await metal.until_active(await metal.boot(2))
            await until(lambda: bool(met), "a daemon has met the bug")
        if function == "read":
            (letter, *_) = await letters_of(metal.cloud)
            assert "AssertionError: planted" in letter.reason
        else:
            # When the bug is gone, the node is offered, too.
            await metal.until_offered(cursed)


# On hosts, of which all of a cell have one compute


def is_of_first(about: Any, *_: object, **__: object) -> bool:
    return bool(about.instance == instance_of(a_build(1)))


@pytest.mark.parametrize("where", ["due", "begun"])
@BOTH
async def test_an_attempt_at_which_the_compute_fails_ends_by_its_time_and_others_are_built(
    bus: str, books: str, where: str
) -> None:
    soon = ConductorSettings(attempt_timeout_s=1)
    async with two_conductors(bus, books, "h0", settings=soon) as setup:
        with bug_in(compute_handlers, where, is_of_first):
            cursed = await boot(setup, 1)
            other = await boot(setup, 2)
            letter = await one_letter(setup, {"due": "row.failed", "begun": "spawn"}[where])

        assert (cursed.state, other.state) == ("error", "active")
        assert "AssertionError: planted" in letter.reason
