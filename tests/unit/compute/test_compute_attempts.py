"""Each order in each state of an attempt: the host's work, and its answer."""

import re

import pytest
from msgspec import structs

from bus.message import Message
from bus.messages.cell import (
    DestroyInstance,
    InstanceDestroyed,
    InstanceRedeployed,
    InstanceSpawned,
    InstanceStopped,
    ReceiveInstance,
    RespawnInstance,
    SpawnFailed,
    SpawnInstance,
    StartInstance,
    StopInstance,
)
from compute_sim.core.attempts import (
    WELL,
    AttemptRecord,
    AttemptState,
    Condition,
    Dead,
    HostOrder,
    Silent,
    Work,
    answer_of,
    answered_again,
    answered_later,
    begun,
    due,
    next_step,
    refusal_of,
    stopped_by_itself,
    waiting,
)
from engine.flavors import Flavor, Image
from engine.inventories import ConsumerId, ResourceAmount, Share
from laboratory.computes.driver import root_of

HOST = root_of("h1")
INSTANCE = ConsumerId(HOST)
SHARE = Share(host=HOST, amounts=(ResourceAmount(provider=HOST, resource="VCPU", amount=1),))
SPAWN = SpawnInstance(cell="c1", instance=INSTANCE, attempt=1, host=HOST, flavor=Flavor(), share=SHARE)
RECEIVE = ReceiveInstance(
    cell="c1",
    instance=INSTANCE,
    attempt=1,
    host=HOST,
    flavor=Flavor(),
    share=SHARE,
    source=root_of("h2"),
    source_attempt=4,
)
DESTROY = DestroyInstance(cell="c1", instance=INSTANCE, attempt=1, host=HOST)


def stop(number: int = 5) -> StopInstance:
    return StopInstance(cell="c1", instance=INSTANCE, attempt=1, host=HOST, number=number)


def save(number: int = 5, image: str = "saved") -> StopInstance:
    return structs.replace(stop(number), save_as=image)


def start(number: int = 5) -> StartInstance:
    return StartInstance(cell="c1", instance=INSTANCE, attempt=1, host=HOST, number=number)


def respawn(number: int = 6) -> RespawnInstance:
    return RespawnInstance(
        cell="c1",
        instance=INSTANCE,
        attempt=1,
        host=HOST,
        number=number,
        flavor=Flavor(),
        share=SHARE,
        image=Image(source="http://images/fedora"),
    )


SPAWNED = InstanceSpawned(cell="c1", instance=INSTANCE, attempt=1, host=HOST)
STOPPED = InstanceStopped(cell="c1", instance=INSTANCE, attempt=1, host=HOST, number=5)
STARTED = structs.replace(SPAWNED, number=5)
GONE = InstanceDestroyed(cell="c1", instance=INSTANCE, attempt=1, host=HOST)


def rebuilt(number: int = 6, failure: str = "") -> InstanceRedeployed:
    return InstanceRedeployed(
        cell="c1",
        instance=INSTANCE,
        attempt=1,
        host=HOST,
        number=number,
        failure=failure,
        is_active=not failure,
    )


def spawn_failed(reason: str, number: int = 0) -> SpawnFailed:
    return SpawnFailed(cell="c1", instance=INSTANCE, attempt=1, host=HOST, reason=reason, number=number)


def not_stopped(failure: str) -> InstanceStopped:
    return structs.replace(STOPPED, failure=failure)


def over(
    attempt: AttemptRecord, condition: Condition = WELL, failure: str = ""
) -> tuple[AttemptRecord, Message | None]:
    """The attempt after its driver said that the work is over."""
    return due(attempt, condition, Work(failure=failure), 50.0)


def ended(order: HostOrder, failure: str = "") -> AttemptRecord:
    return over(begun(order, Work(), 0.0), failure=failure)[0]


@pytest.mark.parametrize("order", [SPAWN, RECEIVE], ids=["spawn", "receive"])
def test_an_instance_that_is_built_or_received_as_a_stopped_one_does_not_run(
    order: SpawnInstance | ReceiveInstance,
) -> None:
    building = begun(structs.replace(order, stopped=True), Work(50), 10.0)

    after, answer = over(building)

    assert after.state is AttemptState.STOPPED
    assert answer == structs.replace(STOPPED, attempt=order.attempt, number=0)
    # Repeated, it is answered again; it fails, and is started, like any other.
    again = answered_again(after, order, 60.0)
    assert over(again)[1] == answer
    failed_there, said = over(building, failure="no disk")
    assert failed_there.state is AttemptState.FAILED
    assert isinstance(said, SpawnFailed)
    running, started = over(begun(structs.replace(start(), attempt=order.attempt), Work(), 70.0))
    assert (running.state, type(started)) == (AttemptState.BUILT, InstanceSpawned)


# An attempt in each state.
KNOWN: dict[AttemptState | None, AttemptRecord | None] = {
    None: None,
    AttemptState.WAITING: waiting(SPAWN),
    AttemptState.BUILDING: begun(SPAWN, Work(50), 10.0),
    AttemptState.RECEIVING: begun(RECEIVE, Work(50), 10.0),
    AttemptState.BUILT: ended(SPAWN),
    AttemptState.STOPPING: begun(stop(), Work(50), 10.0),
    AttemptState.STOPPED: ended(stop()),
    AttemptState.STARTING: begun(start(), Work(50), 10.0),
    AttemptState.REBUILDING: begun(respawn(5), Work(50), 10.0),
    AttemptState.BROKEN: ended(respawn(5), "no image"),
    AttemptState.FAILED: ended(SPAWN, "no image"),
    AttemptState.DESTROYED: ended(DESTROY),
}


BEGINS, LATER, AGAIN, REFUSED = "begins", "later", "again", "refused"
ORDERS: tuple[tuple[HostOrder, ...], ...] = (
    (SPAWN, RECEIVE),
    (stop(6),),
    (save(6),),
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


# Builds


@pytest.mark.parametrize("order", [SPAWN, RECEIVE])
def test_a_build_is_due_when_it_is_over_and_the_same_order_changes_nothing_until_then(
    order: SpawnInstance | ReceiveInstance,
) -> None:
    building = begun(order, Work(50), 10.0)

    assert (building.state.takes_slot, building.due_s) == (True, 10.05)
    assert answered_later(building, order) is building
    built, answer = over(building)
    assert (built.state, built.due_s, answer) == (AttemptState.BUILT, None, SPAWNED)
    assert over(answered_again(built, order, 11.0)) == (built, SPAWNED)


@pytest.mark.parametrize("order", [SPAWN, RECEIVE, stop(), start(), respawn(), DESTROY])
def test_an_attempt_is_due_again_while_its_driver_still_works_on_it(order: HostOrder) -> None:
    attempt = begun(order, Work(50), 10.0)

    still, nothing = due(attempt, WELL, Work(200, "it fails in the end"), 11.0)

    assert (still.state, still.due_s, nothing) == (attempt.state, 11.2, None)


@pytest.mark.parametrize("order", [SPAWN, RECEIVE])
def test_a_failed_build_gives_its_reason_each_time_it_is_asked(
    order: SpawnInstance | ReceiveInstance,
) -> None:
    failed, answer = over(begun(order, Work(1), 0.0), failure="no image")

    assert (failed.state, answer) == (AttemptState.FAILED, spawn_failed("no image"))
    assert over(answered_again(failed, order, 5.0))[1] == answer
    assert over(answered_again(failed, start(), 5.0))[1] == spawn_failed("no image", 5)
    assert refusal_of(failed, stop()) == not_stopped("the host does not have it: no image")


@pytest.mark.parametrize("order", [SPAWN, RECEIVE])
def test_an_attempt_that_was_destroyed_is_never_built(order: SpawnInstance | ReceiveInstance) -> None:
    gone, answer = over(begun(DESTROY, Work(failure="of no concern"), 1.0))

    assert answer == GONE
    assert over(answered_again(gone, order, 2.0)) == (gone, GONE)
    assert refusal_of(gone, stop()) == not_stopped("it was destroyed")
    assert refusal_of(gone, start()) == spawn_failed("it was destroyed", 5)


def test_a_silent_host_loses_its_answers_a_late_one_keeps_them_a_dead_one_has_none() -> None:
    building = begun(SPAWN, Work(1), 0.0)

    unheard, nothing = over(building, Silent())
    kept, nothing_yet = over(building, Silent(until_s=7.0))
    lost, nothing_ever = over(building, Dead())

    assert (unheard.state, unheard.due_s, nothing) == (AttemptState.BUILT, None, None)
    assert (kept.state, kept.due_s, nothing_yet) == (AttemptState.BUILT, 7.0, None)
    assert (lost.state, lost.due_s, nothing_ever) == (AttemptState.DESTROYED, None, None)
    assert over(kept)[1] == SPAWNED


# Stopping and starting


def test_an_instance_is_stopped_and_started_again_and_answers_each_order_as_often_as_it_comes() -> None:
    stopped, answer = over(begun(stop(), Work(50), 1.0))

    assert (stopped.state, answer) == (AttemptState.STOPPED, STOPPED)
    for order in (stop(), SPAWN, RECEIVE):
        assert over(answered_again(stopped, order, 2.0))[1] == STOPPED

    runs, answer = over(begun(start(), Work(50), 3.0))
    assert (runs.state, answer) == (AttemptState.BUILT, STARTED)
    assert over(answered_again(runs, start(), 4.0))[1] == STARTED


def test_an_instance_that_cannot_be_stopped_runs_on_and_may_be_ordered_to_stop_again() -> None:
    runs, answer = over(begun(stop(), Work(), 1.0), failure="busy")

    assert (runs.state, answer) == (AttemptState.BUILT, not_stopped("busy"))
    # Its answer may be due for long.
    assert over(runs)[1] == answer
    assert next_step(runs, stop()) == "begins"
    assert over(answered_again(runs, start(), 2.0))[1] == STARTED


def test_an_instance_that_cannot_be_started_stays_stopped_and_may_be_ordered_to_start_again() -> None:
    stopped, answer = over(begun(start(), Work(), 1.0), failure="no memory")

    assert (stopped.state, answer) == (AttemptState.STOPPED, spawn_failed("no memory", 5))
    assert over(stopped)[1] == answer
    assert next_step(stopped, start()) == "begins"
    assert over(answered_again(stopped, stop(6), 2.0))[1] == structs.replace(STOPPED, number=6)


@pytest.mark.parametrize(
    ("state", "reason"),
    [
        (None, "the host has no attempt 1 of it"),
        (AttemptState.WAITING, "it does not run yet"),
        (AttemptState.BUILDING, "it does not run yet"),
        (AttemptState.RECEIVING, "it does not run yet"),
    ],
)
def test_what_does_not_run_is_not_stopped_and_the_answer_says_why(
    state: AttemptState | None, reason: str
) -> None:
    assert refusal_of(KNOWN[state], stop()) == not_stopped(reason)


def test_an_unknown_attempt_is_not_started() -> None:
    assert refusal_of(None, start()) == spawn_failed("the host has no attempt 1 of it", 5)


# Saving


@pytest.mark.parametrize("known", [ended(SPAWN), ended(stop(4)), begun(stop(4), Work(50), 0.0)])
def test_what_runs_is_stopping_or_stopped_is_saved_once(known: AttemptRecord) -> None:
    assert next_step(known, save()) == "begins"
    saving = begun(save(), Work(50), 1.0)
    assert next_step(saving, save()) == "later"
    saved, answer = over(saving)
    assert (saved.state, answer) == (AttemptState.STOPPED, structs.replace(STOPPED, saved="saved"))
    assert next_step(saved, save()) == "again"
    assert over(answered_again(saved, save(), 2.0))[1] == answer


def test_what_is_saved_is_saved_anew_as_another_image() -> None:
    saved = ended(save())

    assert next_step(saved, save(6, "another")) == "begins"
    assert next_step(begun(save(), Work(50), 1.0), save(6, "another")) == "begins"
    assert over(begun(save(6, "another"), Work(), 2.0))[1] == structs.replace(
        STOPPED, saved="another", number=6
    )


def test_what_runs_again_is_not_saved_any_more() -> None:
    runs = ended(start())

    assert next_step(runs, save(6)) == "begins"
    assert over(begun(stop(6), Work(), 2.0))[1] == structs.replace(STOPPED, number=6)


def test_what_could_not_be_saved_is_stopped_and_may_be_ordered_to_be_saved_again() -> None:
    stopped, answer = over(begun(save(), Work(), 1.0), failure="no room for the image")

    assert (stopped.state, answer) == (AttemptState.STOPPED, not_stopped("no room for the image"))
    assert over(stopped)[1] == answer
    assert next_step(stopped, save()) == "begins"
    assert next_step(stopped, start()) == "begins"
    # It was not saved, whatever else it is asked.
    again = over(answered_again(stopped, stop(6), 2.0))
    assert again[1] == structs.replace(STOPPED, number=6)
    assert next_step(again[0], save(7)) == "begins"


# Orders that overtake each other


@pytest.mark.parametrize("first", [start(5), stop(6), start(6)])
def test_an_order_to_stop_that_was_overtaken_is_not_obeyed(first: StopInstance | StartInstance) -> None:
    obeyed = ended(first)

    assert next_step(obeyed, stop(5)) == "again"
    again = answered_again(obeyed, stop(5), 2.0)
    assert (again.state, again.rank) == (obeyed.state, obeyed.rank)
    assert over(again)[1] == answer_of(obeyed)


def test_an_order_to_start_that_was_overtaken_by_the_next_move_is_not_obeyed() -> None:
    stopping = begun(stop(6), Work(50), 0.0)

    assert next_step(stopping, start(5)) == "later"
    assert answered_later(stopping, start(5)) is stopping
    assert next_step(ended(stop(6)), start(5)) == "again"
    assert next_step(ended(stop(6)), start(6)) == "begins"


def test_an_order_to_start_what_is_still_being_built_counts_against_the_order_to_stop_before_it() -> None:
    building = answered_later(begun(SPAWN, Work(50), 0.0), start())

    built, answer = over(building)

    assert (built.state, answer) == (AttemptState.BUILT, STARTED)
    assert next_step(built, stop()) == "again"
    assert next_step(built, stop(6)) == "begins"


@pytest.mark.parametrize(
    ("state", "order"),
    [
        (AttemptState.STOPPING, start()),
        (AttemptState.STARTING, stop(6)),
        *[(state, DESTROY) for state in AttemptState],
    ],
)
def test_the_last_order_counts_whatever_goes_on(state: AttemptState, order: HostOrder) -> None:
    assert next_step(KNOWN[state], order) == "begins"


def test_an_attempt_without_an_answer_yet_has_none() -> None:
    for state in (
        AttemptState.WAITING,
        AttemptState.BUILDING,
        AttemptState.RECEIVING,
        AttemptState.STOPPING,
        AttemptState.STARTING,
    ):
        known = KNOWN[state]
        assert known is not None
        with pytest.raises(ValueError, match=re.escape(f"is {state.value} and has no answer yet")):
            answer_of(known)


# Rebuilding


def test_an_instance_is_rebuilt_and_answers_for_its_rebuild_as_often_as_it_is_asked() -> None:
    rebuilding = begun(respawn(), Work(50), 10.0)

    assert (rebuilding.state.takes_slot, rebuilding.due_s) == (True, 10.05)
    assert next_step(rebuilding, respawn()) == "later"
    built, answer = over(rebuilding)
    assert (built.state, answer) == (AttemptState.BUILT, rebuilt())
    for order in (respawn(), SPAWN, stop(5), start(5), respawn(4)):
        assert next_step(built, order) == "again"
        assert over(answered_again(built, order, 20.0)) == (built, rebuilt())


def test_an_instance_that_could_not_be_rebuilt_is_broken_until_a_later_rebuild_succeeds() -> None:
    broken, answer = over(begun(respawn(), Work(), 0.0), failure="no image")

    assert (broken.state, broken.state.is_over, answer) == (
        AttemptState.BROKEN,
        False,
        rebuilt(6, "no image"),
    )
    for order in (respawn(), SPAWN, start(5)):
        assert next_step(broken, order) == "again"
        assert over(answered_again(broken, order, 5.0))[1] == answer
    assert refusal_of(broken, stop(8)) == structs.replace(
        not_stopped("it could not be rebuilt: no image"), number=8
    )
    assert next_step(broken, respawn(7)) == "begins"
    assert over(begun(respawn(7), Work(), 6.0))[1] == rebuilt(7)


def test_an_instance_that_runs_on_after_a_rebuild_failed_says_so_as_often_as_it_is_asked() -> None:
    told = structs.replace(rebuilt(6, "no image"), is_active=True)
    as_before, answer = due(begun(respawn(), Work(), 0.0), WELL, Work(failure="no image", runs_on=True), 50.0)

    assert (as_before.state, answer) == (AttemptState.BUILT, told)
    for order in (respawn(), SPAWN, stop(5), start(5), respawn(4)):
        assert next_step(as_before, order) == "again"
        assert over(answered_again(as_before, order, 20.0)) == (as_before, told)
    # Later orders are not about this rebuild.
    assert over(answered_again(as_before, start(8), 20.0))[1] == structs.replace(SPAWNED, number=8)
    assert next_step(as_before, stop(8)) == "begins"
    assert next_step(as_before, respawn(7)) == "begins"


@pytest.mark.parametrize(
    "known",
    [
        due(begun(respawn(), Work(), 0.0), WELL, Work(failure="no image", runs_on=True), 50.0)[0],
        ended(stop(6), "it does not listen"),
    ],
    ids=["rebuild", "stop"],
)
def test_a_guest_that_stops_by_itself_tells_that_and_not_what_failed_before(known: AttemptRecord) -> None:
    assert (known.state, bool(known.failure)) == (AttemptState.BUILT, True)

    stopped, told = over(stopped_by_itself(known, "it was shut down", 60.0))

    assert stopped.state is AttemptState.STOPPED
    assert told == structs.replace(STOPPED, number=6, by_itself="it was shut down")


def test_a_later_rebuild_takes_the_place_of_one_that_goes_on_or_waits_and_never_an_earlier_one() -> None:
    for known in (begun(respawn(), Work(50), 10.0), waiting(respawn())):
        assert next_step(known, respawn(7)) == "begins"
        assert next_step(known, respawn(5)) == "later"
        assert next_step(known, respawn()) == "later"


def test_a_later_move_is_answered_by_what_it_asks_for_and_not_by_the_rebuild_before() -> None:
    built = ended(respawn())

    # It overtook the order to stop.
    assert next_step(built, start(8)) == "again"
    started, answer = over(answered_again(built, start(8), 20.0))
    assert answer == structs.replace(SPAWNED, number=8)
    assert next_step(started, respawn()) == "again"
    assert next_step(ended(stop(8)), respawn()) == "again"
    assert over(answered_again(ended(stop(8)), respawn(), 21.0))[1] == structs.replace(STOPPED, number=8)


@pytest.mark.parametrize(
    ("known", "why"),
    [
        (None, "the host has no attempt 1 of it"),
        (KNOWN[AttemptState.BUILDING], "it does not run yet"),
        (KNOWN[AttemptState.FAILED], "the host does not have it: no image"),
        (KNOWN[AttemptState.DESTROYED], "it was destroyed"),
    ],
)
def test_what_the_host_does_not_have_is_not_rebuilt(known: AttemptRecord | None, why: str) -> None:
    assert refusal_of(known, respawn()) == rebuilt(6, why)
