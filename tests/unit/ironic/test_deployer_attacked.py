"""Clocks that jump, strangers on the node, orders in any order, and brokers that are away: what a deploying daemon makes of it."""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from msgspec import structs

from bus.messages.cell import DeployProgressed, InstanceDestroyed, InstanceSpawned, SpawnFailed
from ironic_sync.core.deploying import NO_EFFECT_MAX, REFUSALS_MAX
from ironic_sync.core.rows import NodeRow
from ironic_sync.core.settling import Order  # noqa: TC001 - like every other import
from kit.parts import Pauses
from laboratory.ironic import IronicSimSettings, SimulatedNode, available_nodes
from tests.ironic_clock import LONG_S
from tests.unit.ironic.deployer_stand import DELAYS, QUICK, Event, Stand
from tests.unit.ironic.deploys import OURS, THEIRS, an_order, an_undeploy

pytestmark = pytest.mark.asyncio

HOUR_US = 3_600_000_000
JUMPS_US = [-6 * HOUR_US, -600_000_000, 600_000_000, 6 * HOUR_US]
PORTS = ("port-1", "port-2")
Go = Callable[[], Awaitable[httpx.Response]]


def slow(**delays: float) -> IronicSimSettings:
    return IronicSimSettings(delays=structs.replace(DELAYS, **delays))


async def a_moment() -> None:
    for _ in range(20):
        await asyncio.sleep(0.005)


# Clocks


@pytest.mark.parametrize("jump_us", JUMPS_US)
async def test_a_wall_clock_that_jumps_in_the_middle_of_a_deploy_delays_neither_it_nor_its_progress(
    jump_us: int,
) -> None:
    stand = Stand(hears=False, settings=slow(deploy_s=LONG_S, tear_down_s=LONG_S))
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id))
        await stand.until(lambda: bool(stand.said), "the first progress is said")
        stand.ahead_us += jump_us
        await stand.until(lambda: len(stand.said) >= 3, "progress is said again")
        assert all(isinstance(each, DeployProgressed) for each in stand.said)
        stand.end_work()
        await stand.until_said(InstanceSpawned)

        await stand.order(an_undeploy(host=stand.id))
        await stand.until(lambda: stand.node.provision_state == "deleting", "it is being undeployed")
        stand.ahead_us -= jump_us
        stand.end_work()
        await stand.until_said(InstanceDestroyed)
        await stand.until_available()


async def test_what_a_daemon_with_a_clock_that_was_ahead_left_is_done_and_said_by_the_next_one() -> None:
    stand = Stand(hears=False)
    stand.takes = lambda message: isinstance(message, DeployProgressed)
    stand.ahead_us = 6 * HOUR_US
    async with stand.running():
        async with stand.daemon("d1"):
            await stand.order(an_order(host=stand.id))
            await stand.until(lambda: bool(stand.row.answers), "the answer is on the row")
        stand.ahead_us = 0
        stand.takes = lambda _: True
        async with stand.daemon("d2", touches=False):
            await stand.until_said(InstanceSpawned)

    async with stand.running():
        stand.ahead_us = 6 * HOUR_US
        await stand.order(an_undeploy(host=stand.id))
        await stand.writer.change({stand.id: due_in_six_hours})
        stand.ahead_us = 0
        async with stand.daemon("d3", touches=False):
            await stand.until_said(InstanceDestroyed)


def due_in_six_hours(row: NodeRow) -> NodeRow:
    assert row.deploy is not None
    due_at = datetime.now(UTC) + timedelta(hours=6)
    return structs.replace(row, deploy=structs.replace(row.deploy, due_at=due_at))


async def test_an_order_is_due_for_its_owner_though_another_clock_wrote_it() -> None:
    stand = Stand(hears=False)
    async with stand.running():
        await stand.give_to("d1")
        # Of another daemon, whose clock is half a minute ahead.
        stand.ahead_us = 30_000_000
        await stand.order(an_order(host=stand.id))
        stand.ahead_us = 0
        # As long as a pause may be.
        patient = structs.replace(QUICK, deploy_pauses=Pauses(0.005, 60.0))
        async with stand.daemon("d1", touches=False, settings=patient):
            await stand.until_said(InstanceSpawned)


async def test_the_pauses_between_tries_double_up_to_a_limit() -> None:
    stand = Stand(hears=False)
    at_us = [time.time_ns() // 1000]
    stand.clock_us = lambda: at_us[0]
    settings = structs.replace(QUICK, deploy_pauses=Pauses(8.0, 100.0))
    pauses: dict[int, float] = {}

    def note(rows: Sequence[NodeRow]) -> None:
        for row in rows:
            if row.deploy is not None and row.deploy.tries and row.deploy.due_at is not None:
                pauses[row.deploy.tries] = row.deploy.due_at.timestamp() - at_us[0] / 1e6

    async with stand.running(), stand.daemon(settings=settings):
        stand.writer.listen(note)
        stand.ironic.go_away(60, refuses=True)
        await stand.order(an_order(host=stand.id))
        for tries in range(1, 8):
            await stand.until(lambda tries=tries: tries in pauses, f"{tries} tries")  # type: ignore[misc]
            # Not before its time.
            at_us[0] += round(pauses[tries] * 1e6) - 1000
            await a_moment()
            assert max(pauses) == tries
            at_us[0] += 2000

    longest = [8.0, 16.0, 32.0, 64.0, 100.0, 100.0, 100.0]
    assert all(limit / 2 - 0.01 <= pauses[n] <= limit + 0.01 for n, limit in enumerate(longest, 1)), pauses
    assert len({pause / limit for pause, limit in zip(pauses.values(), longest, strict=False)}) > 1, (
        "no jitter"
    )


# Ironic takes an order and is slow to begin


async def test_an_order_that_ironic_took_and_has_not_begun_is_not_given_again_in_the_same_look() -> None:
    stand = Stand()
    begun: list[asyncio.Task[httpx.Response]] = []

    async def begin_later(go: Go) -> httpx.Response:
        async def later() -> httpx.Response:
            await a_moment()
            return await go()

        begun.append(asyncio.create_task(later()))
        return httpx.Response(202)

    # Read, patch, validate, and then the order.
    stand.wire.events[4] = begin_later
    async with stand.running(), stand.daemon(settings=structs.replace(QUICK, deploy_read_s=3600.0)):
        await stand.order(an_order(host=stand.id))
        await stand.until_said(InstanceSpawned)

    assert stand.wire.requests.count("PUT /states/provision") == 1
    assert len(begun) == 1


# Ironic takes an order, and nothing follows


def a_node_without_network() -> SimulatedNode:
    (node,) = available_nodes(1, network_interface="noop")
    return node


async def test_a_port_that_ironic_takes_and_never_attaches_ends_the_deploy_with_the_reason() -> None:
    """The network interface `noop` takes every port and attaches none."""
    stand = Stand(hears=False, node=a_node_without_network())
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=PORTS))
        await stand.until(
            lambda: stand.row.deploy is not None and stand.row.deploy.tries == 2, "the tries are counted"
        )
        assert stand.row.deploy is not None
        assert "attach port port-1, and nothing changes" in stand.row.deploy.progress
        await stand.until_said(SpawnFailed)
        await stand.until_available()

    (failed,) = stand.answers
    assert isinstance(failed, SpawnFailed)
    assert failed.reason == (
        "Ironic accepts the order to attach port port-1, and nothing changes (the network interface 'noop' attaches none): "
        "4 tries"
    )
    assert stand.wire.requests.count("POST /vifs") == NO_EFFECT_MAX
    assert "deploying" not in stand.states


def taking(what: str) -> Callable[[httpx.Request], Event | None]:
    """Requests of this kind are accepted, and Ironic never receives them."""
    method, _, end = what.partition(" ")

    async def accept(_: Go) -> httpx.Response:
        return httpx.Response(202)

    return lambda request: accept if request.method == method and request.url.path.endswith(end) else None


async def test_a_deploy_that_ironic_takes_and_never_begins_ends_with_the_reason() -> None:
    stand = Stand(hears=False)
    stand.wire.refuses = taking("PUT /states/provision")
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id))
        await stand.until_said(SpawnFailed)
        assert stand.node.instance_uuid is None

    assert stand.wire.requests.count("PUT /states/provision") == NO_EFFECT_MAX


async def test_an_undeploy_that_ironic_takes_and_never_begins_is_told_and_goes_on(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stand = Stand(hears=False)
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id))
        await stand.until_said(InstanceSpawned)
        stand.wire.refuses = taking("PUT /states/provision")
        await stand.order(an_undeploy(host=stand.id))
        await stand.until(lambda: stand.row.deploy is not None and stand.row.deploy.tries > 8, "many tries")
        assert len(stand.answers) == 1, "the instance is on the node"
        stand.wire.refuses = lambda _: None
        await stand.until_said(InstanceDestroyed)

    told = [each.getMessage() for each in caplog.records if "without success" in each.getMessage()]
    assert len(told) == 2, "at 4 and at 8 tries"
    assert f"the undeploy of instance {OURS} on node {stand.id} has made 4 tries" in told[0]
    assert "bring the node to 'deleted', and nothing changes" in told[0]


async def test_a_port_that_ironic_takes_off_and_that_stays_is_told_and_the_instance_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stand = Stand(hears=False)

    async def refuse(_: Go) -> httpx.Response:
        return httpx.Response(400, json={"error_message": '{"faultstring": "No."}'})

    # The validation.
    stand.wire.events[6] = refuse
    stand.wire.refuses = taking("DELETE port-1")
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=("port-1",)))
        await stand.until_said(SpawnFailed)

    assert stand.node.instance_uuid is None
    assert f"ports of instance {OURS} may still be attached to node {stand.id}" in caplog.text


LOCKED = httpx.Response(409, json={"error_message": '{"faultstring": "Node is locked."}'})
BROKEN = httpx.Response(500, json={"error_message": '{"faultstring": "Unexpected."}'})
FORBIDDEN = httpx.Response(403, json={"error_message": '{"faultstring": "Not you."}'})
NO_CONDUCTOR = httpx.Response(503, json={"error_message": '{"faultstring": "No valid host was found."}'})


@pytest.mark.parametrize(
    "answer", [LOCKED, BROKEN, FORBIDDEN, NO_CONDUCTOR], ids=lambda each: each.status_code
)
@pytest.mark.parametrize(
    "what", ["PATCH ", "GET /vifs", "POST /vifs", "GET /validate", "PUT /states/provision"]
)
async def test_a_step_that_fails_each_time_though_ironic_answers_ends_the_deploy(
    what: str, answer: httpx.Response
) -> None:
    stand = Stand(hears=False)
    is_over = False

    async def say(_: Go) -> httpx.Response:
        nonlocal is_over
        # The cleanup succeeds.
        is_over = is_over or (stand.row.deploy is not None and bool(stand.row.deploy.failure))
        return httpx.Response(answer.status_code, content=answer.content) if not is_over else await _()

    method, _, end = what.partition(" ")
    stand.wire.refuses = lambda request: (
        say if request.method == method and request.url.path.endswith(end) else None
    )
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=("port-1",)))
        await stand.until_said(SpawnFailed)
        await stand.until_available()

    (failed,) = stand.answers
    assert isinstance(failed, SpawnFailed)
    assert "(try 13, the last)" in failed.reason or "Ironic refuses" in failed.reason


async def test_an_ironic_that_goes_and_comes_is_told_once_each_and_not_at_every_try(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stand = Stand(hears=False)
    caplog.set_level("INFO")
    async with stand.running(), stand.daemon():
        stand.ironic.go_away(LONG_S, refuses=True)
        await stand.order(an_order(host=stand.id))
        await stand.until(lambda: stand.row.deploy is not None and stand.row.deploy.tries > 10, "many tries")
        stand.ironic.come_back()
        await stand.until_said(InstanceSpawned)

    told = [each.getMessage() for each in caplog.records if "deploy steps" in each.getMessage()]
    assert ["fails" in each for each in told] == [True, False], told


# Losing the node


async def test_a_daemon_that_loses_a_node_breaks_off_what_it_asks_and_what_it_says() -> None:
    stand = Stand(hears=False)
    stand.takes = lambda message: isinstance(message, DeployProgressed)
    broken_off = asyncio.Event()

    async def stand_still(_: Go) -> httpx.Response:
        try:
            return await asyncio.Future[httpx.Response]()
        finally:
            broken_off.set()

    async with stand.running(), stand.daemon() as place:
        await stand.order(an_order(host=stand.id))
        await stand.until(lambda: bool(stand.unsaid), "an answer waits for the broker")
        stand.wire.events |= dict.fromkeys(range(1, 1000), stand_still)
        await stand.order(an_undeploy(host=stand.id))
        await stand.until(lambda: len(stand.wire.events) < 999, "Ironic does not answer")

        place.lose(stand.id)

        await asyncio.wait_for(broken_off.wait(), 60)
        await stand.until(lambda: all(each.cancelled() for each in stand.unsaid), "nothing is said any more")


# Strangers


def take_over(stand: Stand) -> None:
    """An operator removes our instance from the node, and sets another."""
    for change in (
        {"op": "remove", "path": "/instance_uuid"},
        {"op": "add", "path": "/instance_uuid", "value": str(THEIRS)},
    ):
        stand.ironic.patch(str(stand.id), [change])


async def test_an_instance_that_somebody_sets_before_ours_is_deployed_stays_and_our_ports_go() -> None:
    stand = Stand(hears=False, settings=IronicSimSettings(delays=DELAYS, ports_count=3))

    async def take_and_lose(_: Go) -> httpx.Response:
        if stand.node.instance_uuid != str(THEIRS):
            take_over(stand)
            stand.ironic.attach_vif(str(stand.id), "theirs")
        raise httpx.ReadError("lost")

    # Read, patch, ports, attach, attach: then it is validated, and asked twice.
    stand.wire.events |= {6: take_and_lose, 7: take_and_lose}
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=PORTS))
        await stand.until_said(SpawnFailed)

        node = stand.node
        assert (node.instance_uuid, node.provision_state, node.vifs) == (
            str(THEIRS),
            "available",
            ("theirs",),
        )
        (failed,) = stand.answers
        assert isinstance(failed, SpawnFailed)
        assert failed.reason == f"instance {THEIRS} is on the node"
        assert stand.row.deploy is None


async def falsely_accepted(_: Go) -> httpx.Response:
    """Something between us and Ironic accepts a request that Ironic never receives."""
    return httpx.Response(204)


async def test_a_port_is_attached_when_ironic_shows_it_and_not_when_something_says_so() -> None:
    stand = Stand(hears=False)
    # Read, patch, ports: then the port is attached.
    stand.wire.events[4] = falsely_accepted
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=("port-1",)))
        await stand.until_said(InstanceSpawned)

        assert stand.node.vifs == ("port-1",)


async def test_a_port_is_off_a_node_when_ironic_shows_it_and_not_when_something_says_so() -> None:
    stand = Stand(hears=False)
    accepted = 0

    def accept_twice(request: httpx.Request) -> Event | None:
        nonlocal accepted
        accepted += request.method == "DELETE"
        return falsely_accepted if request.method == "DELETE" and accepted <= 2 else None

    async def refuse(_: Go) -> httpx.Response:
        return httpx.Response(400, json={"error_message": '{"faultstring": "No."}'})

    stand.wire.refuses = accept_twice
    # The validation.
    stand.wire.events[6] = refuse
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=("port-1",)))
        await stand.until_said(SpawnFailed)

        assert (stand.node.instance_uuid, stand.node.vifs, accepted) == (None, (), 3)


async def test_our_ports_are_detached_from_anothers_node_after_ironic_was_away_for_long() -> None:
    stand = Stand(hears=False)
    is_away = False

    async def take_and_go(_: Go) -> httpx.Response:
        nonlocal is_away
        is_away = True
        if stand.node.instance_uuid != str(THEIRS):
            take_over(stand)
        raise httpx.ReadError("lost")

    stand.wire.events |= {6: take_and_go, 7: take_and_go}
    stand.wire.refuses = lambda request: take_and_go if is_away and request.method == "DELETE" else None
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=PORTS))
        await stand.until(
            lambda: stand.row.deploy is not None and stand.row.deploy.tries > REFUSALS_MAX, "many tries"
        )
        is_away = False
        await stand.until_said(SpawnFailed)

        assert stand.node.vifs == ()


async def test_ports_of_ours_that_cannot_be_detached_from_anothers_node_are_given_up_in_the_end() -> None:
    stand = Stand(hears=False)
    asked = 0

    async def take_and_refuse(_: Go) -> httpx.Response:
        nonlocal asked
        asked += 1
        if stand.node.instance_uuid != str(THEIRS):
            take_over(stand)
        return httpx.Response(409, json={"error_message": '{"faultstring": "Node is locked."}'})

    # From the validation on, of each request that is no reading of the node.
    stand.wire.events |= {6: take_and_refuse}
    stand.wire.refuses = lambda request: take_and_refuse if request.method == "DELETE" else None
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=PORTS))
        await stand.until_said(SpawnFailed)

    assert stand.node.vifs == PORTS
    assert asked > 10


async def test_an_undeploy_of_a_node_whose_instance_somebody_removed_takes_our_ports_off() -> None:
    stand = Stand(hears=False)

    async def remove_and_stop(_: Go) -> httpx.Response:
        stand.ironic.patch(str(stand.id), [{"op": "remove", "path": "/instance_uuid"}])
        await stand.order(an_undeploy(host=stand.id))
        raise httpx.ReadError("lost")

    stand.wire.events[6] = remove_and_stop
    stand.wire.events[7] = remove_and_stop
    async with stand.running(), stand.daemon():
        await stand.order(an_order(host=stand.id, ports=PORTS))
        await stand.until_said(InstanceDestroyed)
        await stand.until_available()


# Orders


@pytest.mark.parametrize("seed", range(12))
async def test_orders_that_are_doubled_and_out_of_order_leave_at_most_the_last_attempt(seed: int) -> None:
    chance = random.Random(seed)
    orders: list[Order] = []
    for attempt in (1, 2, 3):
        orders += [an_order(attempt=attempt, ports=PORTS[:1])] * chance.choice((1, 2))
        orders += [an_undeploy(attempt=attempt)] * chance.choice((1, 2))
    # Each may come later than it was sent.
    late = {number: number + chance.uniform(0, 4) for number in range(len(orders))}
    orders = [orders[number] for number in sorted(late, key=late.__getitem__)]
    stand = Stand(hears=bool(seed % 2))
    async with stand.running(), stand.daemon():
        for order in orders:
            await stand.order(structs.replace(order, host=stand.id))
            await asyncio.sleep(chance.choice((0.0, 0.0, 0.003, 0.02)))
        await stand.until(lambda: stand.row.deploy is None and not stand.row.answers, "nothing is left to do")
        # A conductor that is told of an attempt it has given up orders it off.
        for attempt in (1, 2, 3):
            await stand.order(an_undeploy(attempt=attempt, host=stand.id))
        await stand.until(lambda: stand.row.deploy is None and not stand.row.answers, "nothing is left to do")
        await stand.until_available()
        asked = len(stand.wire.requests)
        for order in orders:
            await stand.order(structs.replace(order, host=stand.id))
        await a_moment()
        assert stand.node.instance_uuid is None
        assert len(stand.wire.requests) == asked, "what is over is not done again"

    ended = [each.attempt for each in stand.answers if isinstance(each, InstanceDestroyed)]
    assert {1, 2, 3} <= {*ended}, "each undeploy is answered"
    assert all(each.instance == OURS for each in stand.answers)
