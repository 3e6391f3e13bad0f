"""The one place that decides what happens to a message after its handler failed."""

import pytest

from bus.message import Message
from bus.messages.hosts import AskHosts, SetHost
from bus.settings import BUS, BusSettings
from bus.workers.handling import GiveUp, OneByOne, PutBack, Received, after_failure
from kit.errors import Bug, Interrupted, Locked, Poison, TookTooLong, Transient, Unavailable
from tests.varied import varied

SETTINGS = varied(BusSettings(), RETRY_DELAY_MS_FIRST=10, RETRY_DELAY_MS_MAX=100, ATTEMPTS_MAX=4)


@pytest.mark.parametrize(
    "problem", [Poison("no"), Transient("no"), Unavailable("no"), Bug("no"), ValueError("no")]
)
def test_a_batch_that_failed_is_tried_one_by_one(problem: Exception) -> None:
    assert after_failure(problem, items=3, attempts=0, settings=SETTINGS) == OneByOne()


def test_a_poison_message_is_dead_lettered_at_once() -> None:
    assert after_failure(Poison("never"), items=1, attempts=0, settings=SETTINGS) == GiveUp("never")


def test_anything_else_goes_back_with_growing_pauses() -> None:
    verdicts = [after_failure(ValueError("x"), items=1, attempts=n, settings=SETTINGS) for n in range(3)]

    assert verdicts == [PutBack(10, is_bug=True), PutBack(20, is_bug=True), PutBack(40, is_bug=True)]


@pytest.mark.parametrize("problem", [ValueError("x"), AssertionError("y"), Bug("z")])
def test_a_bug_in_a_second_process_gives_the_message_up_at_once(problem: Exception) -> None:
    verdict = after_failure(problem, items=1, attempts=0, settings=SETTINGS, failed_elsewhere=True)

    assert isinstance(verdict, GiveUp)
    assert verdict.reason.splitlines()[0].endswith("; two processes failed at it")


def test_a_failure_of_a_server_in_a_second_process_is_no_bug() -> None:
    verdict = after_failure(Interrupted("x"), items=1, attempts=0, settings=SETTINGS, failed_elsewhere=True)

    assert verdict == PutBack(10)


@pytest.mark.parametrize("problem", [Locked("by others"), Unavailable("no server")])
def test_a_failure_that_is_not_the_messages_fault_counts_no_attempt(problem: Exception) -> None:
    verdict = after_failure(problem, items=1, attempts=3, settings=SETTINGS)

    assert verdict == PutBack(SETTINGS.BLAMELESS_DELAY_MS, counts=False)


def test_a_timeout_counts_an_attempt_only_if_other_messages_succeed() -> None:
    problem = TookTooLong("60 s")

    alone = after_failure(problem, items=1, attempts=3, settings=SETTINGS, others_succeed=False)
    assert alone == PutBack(SETTINGS.BLAMELESS_DELAY_MS, counts=False)
    first = after_failure(problem, items=1, attempts=0, settings=SETTINGS, others_succeed=True)
    assert first == PutBack(10)
    last = after_failure(problem, items=1, attempts=3, settings=SETTINGS, others_succeed=True)
    assert last == GiveUp("60 s; 4 attempts, none is left")


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match=r"messages_waiting_max must be at least two parcels \(400\)"):
        BusSettings(messages_waiting_max=399)
    with pytest.raises(ValueError, match=r"bus\.prefetch is '0' .* must be a whole number, at least 1"):
        BUS.read({"MOOR_BUS_PREFETCH": "0"})


@pytest.mark.parametrize(
    ("message", "sender", "by"),
    [
        (AskHosts(), "moor-operator", "moor-operator"),
        (SetHost(host="h1", mode="down"), "moor-operator", "moor-operator"),
        (SetHost(host="h1", mode="down", for_user="ann"), "moor-operator", "moor-operator for ann"),
        # The verified name comes first, whatever the sender says.
        (
            SetHost(host="h1", mode="down", for_user="x for moor-operator"),
            "moor-app-shop",
            "moor-app-shop for x for moor-operator",
        ),
        (SetHost(host="h1", mode="down", for_user="ann"), "", "for ann"),
    ],
)
def test_an_order_is_by_its_verified_sender_and_then_by_the_person_that_it_names(
    message: Message, sender: str, by: str
) -> None:
    received = Received(message=message, id="", trace="", sender=sender, reply_to="", attempts=0)

    assert received.by == by
