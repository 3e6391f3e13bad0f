"""A host adopts a guest that it has, and one that it has left is never touched again."""

from bus.messages.cell import AdoptGuest, InstanceDestroyed, InstanceSpawned, InstanceStopped, LeaveGuest
from compute_sim.core.attempts import (
    WELL,
    AttemptRecord,
    AttemptState,
    Work,
    answer_of,
    begun,
    due,
    next_step,
)
from engine.flavors import Flavor
from laboratory.computes.driver import SimulatedDriver
from laboratory.computes.hosts import SimulatedHost
from tests.unit.compute.test_compute_attempts import DESTROY, HOST, INSTANCE, SHARE, SPAWN

ADOPT = AdoptGuest(cell="c1", instance=INSTANCE, attempt=1, host=HOST, flavor=Flavor(), share=SHARE)
LEAVE = LeaveGuest(cell="c1", instance=INSTANCE, attempt=1, host=HOST)


def after(order: AdoptGuest | LeaveGuest, work: Work | None = None) -> AttemptRecord:
    work = work or SimulatedDriver(SimulatedHost(name="h1")).begin(order, 0.0)
    assert work.left_ms == 0, "nothing is built"
    return due(begun(order, work, 0.0), WELL, work, 0.0)[0]


def test_an_adopted_guest_is_answered_like_one_that_was_built_or_stopped() -> None:
    running, stopped = (
        after(ADOPT),
        after(AdoptGuest(**{f: getattr(ADOPT, f) for f in ADOPT.__struct_fields__} | {"stopped": True})),
    )

    assert (running.state, stopped.state) == (AttemptState.BUILT, AttemptState.STOPPED)
    assert isinstance(answer_of(running), InstanceSpawned)
    assert isinstance(answer_of(stopped), InstanceStopped)
    assert next_step(running, ADOPT) == "again"
    assert next_step(running, DESTROY) == "begins"


def test_a_host_without_the_guest_says_so() -> None:
    assert after(ADOPT, Work(failure="there is no such domain")).state is AttemptState.FAILED


def test_a_guest_that_was_left_is_not_touched_by_any_later_order() -> None:
    left = after(LEAVE)

    assert isinstance(answer_of(left), InstanceDestroyed)
    for order in (DESTROY, SPAWN, ADOPT, LEAVE):
        assert next_step(left, order) == "again"
