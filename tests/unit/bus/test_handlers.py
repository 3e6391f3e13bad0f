"""The one place that decides what happens to a message after its handler failed."""

from typing import Any

import pytest

from bus.message import Message
from bus.messages.hosts import AskHosts, SetHost
from bus.settings import BUS, BusSettings
from bus.workers.handlers import GiveUp, OneByOne, PutBack, Received, after_failure
from kit.errors import Bug, Interrupted, Locked, Poison, TookTooLong, Transient, Unavailable
from tests.varied import varied

SETTINGS = varied(BusSettings(), RETRY_DELAY_MS_FIRST=10, RETRY_DELAY_MS_MAX=100, ATTEMPTS_MAX=4)


BLAMELESS = PutBack(SETTINGS.BLAMELESS_DELAY_MS, counts=False)
SLOW = TookTooLong("60 s")
VERDICTS: dict[str, tuple[Exception, dict[str, Any], GiveUp | OneByOne | PutBack]] = {
    **{
        f"a batch that failed is tried one by one: {type(problem).__name__}": (
            problem,
            {"items": 3},
            OneByOne(),
        )
        for problem in (Poison("no"), Transient("no"), Unavailable("no"), Bug("no"), ValueError("no"))
    },
    "a poison message is dead-lettered at once": (Poison("never"), {}, GiveUp("never")),
    **{
        f"anything else goes back with growing pauses: {attempts}": (
            ValueError("x"),
            {"attempts": attempts},
            PutBack(delay_ms, is_bug=True),
        )
        for attempts, delay_ms in enumerate((10, 20, 40))
    },
    "a failure of a server in a second process is no bug": (
        Interrupted("x"),
        {"failed_elsewhere": True},
        PutBack(10),
    ),
    "a lock that others have counts no attempt": (Locked("by others"), {"attempts": 3}, BLAMELESS),
    "a server that is away counts no attempt": (Unavailable("no server"), {"attempts": 3}, BLAMELESS),
    "a timeout counts no attempt if no other message succeeds": (
        SLOW,
        {"attempts": 3, "others_succeed": False},
        BLAMELESS,
    ),
    "a timeout counts an attempt if other messages succeed": (SLOW, {"others_succeed": True}, PutBack(10)),
    "the last timeout gives the message up": (
        SLOW,
        {"attempts": 3, "others_succeed": True},
        GiveUp("60 s; 4 attempts, none is left"),
    ),
}


@pytest.mark.parametrize("case", VERDICTS)
def test_what_happens_to_a_message_whose_handler_failed(case: str) -> None:
    problem, facts, verdict = VERDICTS[case]

    assert after_failure(problem, settings=SETTINGS, **{"items": 1, "attempts": 0, **facts}) == verdict


@pytest.mark.parametrize("problem", [ValueError("x"), AssertionError("y"), Bug("z")])
def test_a_bug_in_a_second_process_gives_the_message_up_at_once(problem: Exception) -> None:
    verdict = after_failure(problem, items=1, attempts=0, settings=SETTINGS, failed_elsewhere=True)

    assert isinstance(verdict, GiveUp)
    assert verdict.reason.splitlines()[0].endswith("; two processes failed at it")


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
        (SetHost(host="h1", mode="down", for_user="ann"), "moor-keeper", "moor-keeper for ann"),
    ],
)
def test_an_order_is_by_its_verified_sender_and_then_by_the_person_that_it_names(
    message: Message, sender: str, by: str
) -> None:
    received = Received(message=message, id="", trace="", sender=sender, reply_to="", attempts=0)

    assert received.by == by
