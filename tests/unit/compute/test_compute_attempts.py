"""Each order in each state of an attempt: the host's work, and its answer."""

import pytest
from msgspec import structs

from compute_sim.core.attempts import (
    AttemptRecord,
    AttemptState,
    Dead,
    HostOrder,
    Silent,
    Work,
    begun,
    next_step,
    waiting,
)
from tests.unit.compute.attempt_cases import (
    ADOPT,
    DESTROY,
    DONE,
    LEAVE,
    RECEIVE,
    SPAWN,
    Attempts,
    Case,
    Step,
    check,
    fails,
    respawn,
    start,
    stop,
)

CASES: dict[str, Case] = {
    "a build": [
        (SPAWN, "begins"),
        (SPAWN, "later"),
        (Work(200), "building until 50.2: nothing"),
        (DONE, "built: InstanceSpawned"),
        (SPAWN, "again"),
        (DONE, "built: InstanceSpawned"),
    ],
    "a build that fails says so each time": [
        (RECEIVE, "begins"),
        (fails("no image"), "failed: SpawnFailed no image"),
        (RECEIVE, "again"),
        (DONE, "failed: SpawnFailed no image"),
        (start(), "again"),
        (DONE, "failed: SpawnFailed 5 no image"),
        (stop(6), "InstanceStopped 6 the host does not have it: no image"),
    ],
    "what was destroyed is never built": [
        (DESTROY, "begins"),
        (fails("of no concern"), "destroyed: InstanceDestroyed"),
        (SPAWN, "again"),
        (DONE, "destroyed: InstanceDestroyed"),
        (stop(), "InstanceStopped 5 it was destroyed"),
        (start(), "SpawnFailed 5 it was destroyed"),
        (respawn(), "InstanceRedeployed 6 it was destroyed"),
    ],
    "what was destroyed unbuilt": [
        (SPAWN, "begins"),
        (DESTROY, "begins"),
        (DONE, "destroyed: InstanceDestroyed"),
        (RECEIVE, "again"),
        (DONE, "destroyed: InstanceDestroyed"),
    ],
    "an order to destroy that comes again while the destroy goes on joins it": [
        (SPAWN, "begins"),
        (DESTROY, "begins"),
        (DESTROY, "later"),
        # It removes saved images, too.
        (structs.replace(DESTROY, saved_until=3), "begins"),
        (DESTROY, "later"),
        (DONE, "destroyed: InstanceDestroyed"),
        (DESTROY, "begins"),
    ],
    "built or received to be stopped": [
        (structs.replace(RECEIVE, stopped=True), "begins"),
        (DONE, "stopped: InstanceStopped"),
        (RECEIVE, "again"),
        (DONE, "stopped: InstanceStopped"),
        (start(), "begins"),
        (DONE, "built: InstanceSpawned 5"),
    ],
    "built to be stopped, it fails like any other": [
        (structs.replace(SPAWN, stopped=True), "begins"),
        (fails("no disk"), "failed: SpawnFailed no disk"),
    ],
    "a host whose answers are lost": [
        (SPAWN, "begins"),
        (Silent(), "built: nothing"),
        (SPAWN, "again"),
        (DONE, "built: InstanceSpawned"),
    ],
    "a host whose answers come late": [
        (SPAWN, "begins"),
        (Silent(until_s=70.0), "built until 70: nothing"),
        (DONE, "built: InstanceSpawned"),
    ],
    "a dead host": [
        (SPAWN, "begins"),
        (Dead(), "destroyed: nothing"),
        (SPAWN, "again"),
        (DONE, "destroyed: InstanceDestroyed"),
    ],
    "stopped and started": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (stop(), "begins"),
        (DONE, "stopped: InstanceStopped 5"),
        (stop(), "again"),
        (DONE, "stopped: InstanceStopped 5"),
        (SPAWN, "again"),
        (DONE, "stopped: InstanceStopped 5"),
        (start(), "begins"),
        (DONE, "built: InstanceSpawned 5"),
        (start(), "again"),
        (DONE, "built: InstanceSpawned 5"),
    ],
    "one that cannot be stopped runs on": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (stop(), "begins"),
        (fails("busy"), "built: InstanceStopped 5 busy"),
        (DONE, "built: InstanceStopped 5 busy"),
        (stop(), "begins"),
        (fails("busy"), "built: InstanceStopped 5 busy"),
        (start(), "again"),
        (DONE, "built: InstanceSpawned 5"),
    ],
    "one that cannot be started stays stopped": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (stop(), "begins"),
        (DONE, "stopped: InstanceStopped 5"),
        (start(), "begins"),
        (fails("no memory"), "stopped: SpawnFailed 5 no memory"),
        (DONE, "stopped: SpawnFailed 5 no memory"),
        (start(), "begins"),
        (fails("no memory"), "stopped: SpawnFailed 5 no memory"),
        (stop(6), "again"),
        (DONE, "stopped: InstanceStopped 6"),
    ],
    "what does not run is not stopped": [
        (stop(), "InstanceStopped 5 the host has no attempt 1 of it"),
        (start(), "SpawnFailed 5 the host has no attempt 1 of it"),
        (respawn(), "InstanceRedeployed 6 the host has no attempt 1 of it"),
        (SPAWN, "begins"),
        (stop(), "InstanceStopped 5 it does not run yet"),
        (respawn(), "InstanceRedeployed 6 it does not run yet"),
    ],
    "saved once, and anew as another image": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (stop(5, "first"), "begins"),
        (stop(5, "first"), "later"),
        (DONE, "stopped: InstanceStopped 5 first"),
        (stop(5, "first"), "again"),
        (DONE, "stopped: InstanceStopped 5 first"),
        (stop(6, "second"), "begins"),
        (stop(7, "third"), "begins"),
        (DONE, "stopped: InstanceStopped 7 third"),
    ],
    "what was saved runs again": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (stop(5, "first"), "begins"),
        (DONE, "stopped: InstanceStopped 5 first"),
        (start(), "begins"),
        (DONE, "built: InstanceSpawned 5"),
        (stop(6), "begins"),
        (DONE, "stopped: InstanceStopped 6"),
    ],
    "what could not be saved is stopped": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (stop(5, "first"), "begins"),
        (fails("no room"), "stopped: InstanceStopped 5 no room"),
        (DONE, "stopped: InstanceStopped 5 no room"),
        (stop(6), "again"),
        (DONE, "stopped: InstanceStopped 6"),
        (stop(7, "second"), "begins"),
        (DONE, "stopped: InstanceStopped 7 second"),
    ],
    "an order to stop that was overtaken": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (start(5), "again"),
        (stop(5), "again"),
        (DONE, "built: InstanceSpawned 5"),
        (start(6), "again"),
        (stop(5), "again"),
        (DONE, "built: InstanceSpawned 6"),
        (stop(6), "again"),
        (stop(5), "again"),
        (DONE, "built: InstanceSpawned 6"),
    ],
    "an order to start that was overtaken": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (stop(6), "begins"),
        (start(5), "later"),
        (DONE, "stopped: InstanceStopped 6"),
        (start(5), "again"),
        (DONE, "stopped: InstanceStopped 6"),
        (start(6), "begins"),
        (DONE, "built: InstanceSpawned 6"),
    ],
    "started while it is built": [
        (SPAWN, "begins"),
        (start(), "later"),
        (DONE, "built: InstanceSpawned 5"),
        (stop(), "again"),
        (DONE, "built: InstanceSpawned 5"),
        (stop(6), "begins"),
        (DONE, "stopped: InstanceStopped 6"),
    ],
    "rebuilt": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (respawn(), "begins"),
        (respawn(), "later"),
        (DONE, "built: InstanceRedeployed 6"),
        (respawn(), "again"),
        (SPAWN, "again"),
        (stop(5), "again"),
        (start(5), "again"),
        (respawn(4), "again"),
        (DONE, "built: InstanceRedeployed 6"),
    ],
    "broken until a later rebuild succeeds": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (respawn(), "begins"),
        (fails("no image"), "broken: InstanceRedeployed 6 no image"),
        (respawn(), "again"),
        (SPAWN, "again"),
        (start(5), "again"),
        (DONE, "broken: InstanceRedeployed 6 no image"),
        (stop(8), "InstanceStopped 8 it could not be rebuilt: no image"),
        (respawn(7), "begins"),
        (DONE, "built: InstanceRedeployed 7"),
    ],
    "a rebuild fails and it runs on": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (respawn(), "begins"),
        (fails("no image", runs_on=True), "built: InstanceRedeployed 6 no image and runs"),
        (respawn(), "again"),
        (stop(5), "again"),
        (DONE, "built: InstanceRedeployed 6 no image and runs"),
        (start(8), "again"),
        (DONE, "built: InstanceSpawned 8"),
        (stop(9), "begins"),
        (DONE, "stopped: InstanceStopped 9"),
    ],
    "a later rebuild takes the place of an earlier one": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (respawn(), "begins"),
        (respawn(7), "begins"),
        (respawn(5), "later"),
        (DONE, "built: InstanceRedeployed 7"),
        (respawn(), "again"),
        (DONE, "built: InstanceRedeployed 7"),
    ],
    "a stop after a rebuild counts": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (stop(8), "begins"),
        (DONE, "stopped: InstanceStopped 8"),
        (respawn(), "again"),
        (DONE, "stopped: InstanceStopped 8"),
    ],
    "a guest that stops by itself tells that": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (stop(6), "begins"),
        (fails("it does not listen"), "built: InstanceStopped 6 it does not listen"),
        ("it was shut down", "stops"),
        (DONE, "stopped: InstanceStopped 6 it was shut down"),
        (start(8), "begins"),
        (DONE, "built: InstanceSpawned 8"),
    ],
    "a guest that stops by itself after its rebuild failed": [
        (SPAWN, "begins"),
        (DONE, "built: InstanceSpawned"),
        (respawn(), "begins"),
        (fails("no image", runs_on=True), "built: InstanceRedeployed 6 no image and runs"),
        ("it was shut down", "stops"),
        (DONE, "stopped: InstanceStopped 6 it was shut down"),
    ],
    "an adopted guest": [
        (ADOPT, "begins"),
        (DONE, "built: InstanceSpawned"),
        (ADOPT, "again"),
        (DONE, "built: InstanceSpawned"),
        (DESTROY, "begins"),
        (DONE, "destroyed: InstanceDestroyed"),
    ],
    "an adopted guest that does not run": [
        (structs.replace(ADOPT, stopped=True), "begins"),
        (DONE, "stopped: InstanceStopped"),
    ],
    "an adopted guest that is not there": [
        (ADOPT, "begins"),
        (fails("there is no such domain"), "failed: SpawnFailed there is no such domain"),
    ],
    "a guest that was left is never touched again": [
        (ADOPT, "begins"),
        (DONE, "built: InstanceSpawned"),
        (LEAVE, "begins"),
        (DONE, "destroyed: InstanceDestroyed"),
        (DESTROY, "again"),
        (DONE, "destroyed: InstanceDestroyed"),
        (SPAWN, "again"),
        (DONE, "destroyed: InstanceDestroyed"),
        (ADOPT, "again"),
        (DONE, "destroyed: InstanceDestroyed"),
        (LEAVE, "again"),
        (DONE, "destroyed: InstanceDestroyed"),
    ],
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_an_order_finds_this_and_is_answered(case: Case) -> None:
    check(case)


def after(*steps: Step) -> AttemptRecord | None:
    attempts = Attempts()
    for each in steps:
        attempts.play(each)
    return attempts.known


# An attempt in each state.
KNOWN: dict[AttemptState | None, AttemptRecord | None] = {
    None: None,
    AttemptState.WAITING: waiting(SPAWN),
    AttemptState.BUILDING: after(SPAWN),
    AttemptState.RECEIVING: after(RECEIVE),
    AttemptState.BUILT: after(SPAWN, DONE),
    AttemptState.STOPPING: after(SPAWN, DONE, stop()),
    AttemptState.STOPPED: after(SPAWN, DONE, stop(), DONE),
    AttemptState.STARTING: after(SPAWN, DONE, stop(), DONE, start()),
    AttemptState.REBUILDING: after(SPAWN, DONE, respawn(5)),
    AttemptState.BROKEN: after(SPAWN, DONE, respawn(5), fails("no image")),
    AttemptState.FAILED: after(SPAWN, fails("no image")),
    AttemptState.DESTROYED: after(DESTROY, DONE),
}


BEGINS, LATER, AGAIN, REFUSED = "begins", "later", "again", "refused"
ORDERS: tuple[tuple[HostOrder, ...], ...] = (
    (SPAWN, RECEIVE),
    (stop(6),),
    (stop(6, "saved"),),
    (start(6),),
    (respawn(7),),
    (DESTROY,),
)
# What each of these orders finds in each state.
STEPS: dict[AttemptState | None, tuple[str, ...]] = {
    None: (BEGINS, REFUSED, REFUSED, REFUSED, REFUSED, BEGINS),
    AttemptState.WAITING: (LATER, REFUSED, REFUSED, LATER, BEGINS, BEGINS),
    AttemptState.BUILDING: (LATER, REFUSED, REFUSED, LATER, REFUSED, BEGINS),
    AttemptState.RECEIVING: (LATER, REFUSED, REFUSED, LATER, REFUSED, BEGINS),
    AttemptState.BUILT: (AGAIN, BEGINS, BEGINS, AGAIN, BEGINS, BEGINS),
    AttemptState.STOPPING: (LATER, LATER, BEGINS, BEGINS, BEGINS, BEGINS),
    AttemptState.STOPPED: (AGAIN, AGAIN, BEGINS, BEGINS, BEGINS, BEGINS),
    AttemptState.STARTING: (LATER, BEGINS, BEGINS, LATER, BEGINS, BEGINS),
    AttemptState.REBUILDING: (LATER, REFUSED, REFUSED, LATER, BEGINS, BEGINS),
    AttemptState.BROKEN: (AGAIN, REFUSED, REFUSED, REFUSED, BEGINS, BEGINS),
    AttemptState.FAILED: (AGAIN, REFUSED, REFUSED, AGAIN, REFUSED, BEGINS),
    AttemptState.DESTROYED: (AGAIN, REFUSED, REFUSED, REFUSED, REFUSED, BEGINS),
}


def test_each_order_in_each_state_is_decided_as_the_table_says() -> None:
    assert [known.state if known else None for known in KNOWN.values()] == [*KNOWN] == [None, *AttemptState]
    for state, steps in STEPS.items():
        for step, of_column in zip(steps, ORDERS, strict=True):
            assert {next_step(KNOWN[state], order) for order in of_column} == {step}, (state, of_column)
    assert STEPS.keys() == KNOWN.keys()


def test_an_order_that_removes_saved_images_joins_only_a_destroy_that_removes_them() -> None:
    order = structs.replace(DESTROY, saved_until=3)
    going_on = begun(order, Work(50, needs_order=True), 10.0)

    steps = [next_step(going_on, structs.replace(DESTROY, saved_until=until)) for until in (0, 3, 4)]

    assert steps == ["later", "later", "begins"]
