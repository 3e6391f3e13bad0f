"""A bug at one message or one row ends no process: what two processes fail at is set aside, its client is told, and all else goes on."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from itertools import count
from typing import Any

import pytest
from msgspec import Struct, structs

from bus.messages.build import BuildAccepted, BuildInstance, InstanceFailed, InstanceState, RebuildInstance
from bus.messages.moves import MoveInstance
from bus.settings import BusSettings
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
from tests.contracts.stage import CELLS, SETTINGS
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


class Workers(Struct, frozen=True):
    """How many of each there are, and what a cell has: hosts of which a compute reports, else one host of a script, or without processors none."""

    placements: int = 1
    schedulers: int = 1
    conductors: int = 0
    hosts: Sequence[str] = ()
    vcpu: int = 8
    conducting: ConductorSettings = CONDUCTING
    bus: BusSettings = SETTINGS


TWO_SCHEDULERS = Workers(schedulers=2)
TWO_CONDUCTORS = Workers(conductors=2, hosts=("h0",))
SOON = structs.replace(TWO_CONDUCTORS, conducting=ConductorSettings(attempt_timeout_s=1))
# It compares all revisions now and then, and so finds what was passed over.
PACE = structs.replace(QUICK_PACE, verify_every_s=0.2)


@asynccontextmanager
async def stage(bus: str, books: str, workers: Workers) -> AsyncIterator[Cloud]:
    scripted = () if workers.conductors else CELLS
    async with cloud(bus, books, scripted) as setup, AsyncExitStack() as stack:
        for number in range(workers.placements):
            await stack.enter_async_context(setup.placement(f"p{number}"))
        for number in range(workers.schedulers):
            await stack.enter_async_context(setup.scheduler(f"s{number}", pace=PACE, bus=workers.bus))
        if workers.conductors:
            rows = await stack.enter_async_context(open_conductor_store(books, "c1"))
            for number in range(workers.conductors):
                conductor = setup.conductor(rows, name=f"k{number}", settings=workers.conducting)
                await stack.enter_async_context(conductor)
        if workers.hosts:
            simulated = [SimulatedHost(name=name, size=HostSize(vcpus=8)) for name in workers.hosts]
            script = failing() if len(workers.hosts) > 1 else None
            await stack.enter_async_context(setup.computes(simulated, script))
            await setup.until_reported(*workers.hosts)
        elif workers.vcpu:
            await setup.add_hosts("h1", vcpu=workers.vcpu)
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


def is_cursed_build(transition: Transition, *_: object) -> bool:
    order = transition.row.order
    return order is not None and order.flavor.vcpus == CURSED.vcpus


def is_first(about: Any, *_: object, **__: object) -> bool:
    return instance_of(a_build(1)) in (getattr(about, "instance", None), getattr(about, "id", None))


def is_cursed_claim(_: object, sent: Any, *__: object) -> bool:
    amounts = [each.amount for one in sent for each in getattr(one.order, "share", NOTHING).amounts]
    return CURSED.vcpus in amounts


class Case(Struct, frozen=True):
    """Where the bug is and when it is met, what the dead letter is of, why the build has failed, and what becomes of another one."""

    workers: Workers
    owner: Any
    name: str
    is_met: Callable[..., bool]
    letter: str = ""
    why: str = "gave it up"
    other: str = "active"
    used: Mapping[str, int] = {}


CASES = {
    # After the row is written, and the claim made, which is given back.
    "a request, two schedulers": Case(
        TWO_SCHEDULERS,
        claimer.Claimer,
        "_refill",
        lambda _, one: is_cursed(one.spec),
        letter="build.request",
        why="dead letters",
        used={"h1": 1},
    ),
    "a claim, two placement workers": Case(
        Workers(placements=2),
        placement_handlers,
        "decide_claims",
        is_cursed_claim,
        letter="claim",
        used={"h1": 1},
    ),
    "an order, two conductors": Case(
        TWO_CONDUCTORS, Transition, "spawn", is_cursed_build, letter="place", used={"h0": 1}
    ),
    "an order of which no conductor can even write the end": Case(
        TWO_CONDUCTORS, decide, "Transition", is_first, why="", used={"h0": 1}
    ),
    # No compute takes the orders, so each attempt ends by its time.
    "a row that is due, two conductors": Case(
        structs.replace(SOON, hosts=()),
        decide,
        "_on_due",
        is_cursed_build,
        letter="row.failed",
        other="no alternate is left",
    ),
    # Builds fail on both hosts, so each instance goes on to its alternate.
    "an answer of placement, two conductors": Case(
        structs.replace(TWO_CONDUCTORS, hosts=("h1", "h2")),
        swapping,
        "_flavor_on",
        is_cursed_build,
        other="no alternate is left",
        used={"h1": 0, "h2": 0},
    ),
    # All hosts of a cell have one compute: the attempt ends by its time.
    "an attempt that is due, one compute": Case(
        SOON, compute_handlers, "looked_at", is_first, letter="row.failed", why=""
    ),
    "an attempt that begins, one compute": Case(
        SOON, compute_handlers, "begun", is_first, letter="spawn", why=""
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=[*CASES])
@BOTH
async def test_a_build_at_which_its_workers_fail_ends_with_the_reason_and_others_go_on(
    bus: str, books: str, case: Case
) -> None:
    async with stage(bus, books, case.workers) as setup:
        with bug_in(case.owner, case.name, case.is_met):
            cursed = await boot(setup, 1, flavor=CURSED)
            other = await boot(setup, 2)
            if case.letter:
                letter = await one_letter(setup, case.letter)
                assert "AssertionError: planted" in letter.reason

        assert (cursed.state, case.why in cursed.reason) == ("error", True), cursed
        assert case.other in f"{other.state} {other.reason}"
        if case.used:
            await setup.until_used(**case.used)


@pytest.mark.hits(
    "a batch has met a bug: its rows are worked on one by one",
    "part %r has met a bug at row %s, and goes on with the others",
    "a row at which a process has met a bug is tried alone",
    "a row is given up: workers have met bugs at it",
)
@BOTH
async def test_an_instance_that_waits_and_at_which_two_schedulers_fail_ends_and_others_are_woken(
    bus: str, books: str
) -> None:
    async with stage(bus, books, structs.replace(TWO_SCHEDULERS, vcpu=4)) as setup:
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

    async with stage(bus, books, structs.replace(TWO_SCHEDULERS, vcpu=4)) as setup:
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
    async with stage(bus, books, structs.replace(TWO_SCHEDULERS, vcpu=1)) as setup:
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


@pytest.mark.hits("a row of a note rests: each row gets a note of its own")
@BOTH
async def test_messages_of_a_row_that_cannot_be_made_hold_up_no_others(bus: str, books: str) -> None:
    sweeping = structs.replace(TWO_SCHEDULERS, vcpu=0, bus=varied(SETTINGS, SWEEP_S=0.05))
    async with stage(bus, books, sweeping) as setup:
        ids = [(await boot(setup, number)).id for number in (1, 2)]
        numbers = count(3)

        async def is_known_as_said() -> bool:
            # A scheduler writes with its next batch that what it said before has arrived.
            await boot(setup, next(numbers))
            return not any(row.unsaid for row in (await setup.rows.rows_of(ids)).values())

        await until(is_known_as_said, "the boots are known as said")

        async with setup.listening("instance.error.*") as heard:
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
    async with stage(bus, books, TWO_CONDUCTORS) as setup:
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


@pytest.mark.hits(
    "a page of the change log has met a bug: its entries are published one by one",
    "an entry of the change log is passed over: %r",
)
@BOTH
async def test_a_change_that_cannot_be_published_is_passed_over_and_later_ones_are_published(
    bus: str, books: str
) -> None:
    async with stage(bus, books, Workers(placements=2)) as setup:
        with bug_in(
            placement_handlers,
            "messages_of",
            lambda changes, _: any(each.name == "cursed" for each in changes.providers),
        ) as met:
            await setup.report(a_host("cursed"))
            await setup.add_hosts("h2")

        # Once in a batch, and once alone.
        assert len(met) >= 2
        assert (await boot(setup, 1)).state == "active"


# On bare-metal nodes, of which each has one daemon


@pytest.mark.hits("the work on a node at which daemons met bugs is given up")
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
