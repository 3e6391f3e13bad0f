"""Which hosts are silent by what several schedulers have heard: each writes what it knows, and believes of the others what it cannot know."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from engine.hosts import HostState
from engine.inventories import ProviderId
from engine.picture.picture import Picture
from scheduler_worker.hosts import HostRegistry
from tests.waiting import Clock

START = datetime(2026, 12, 1, 12, tzinfo=UTC)
DOWN_AFTER = timedelta(seconds=60)
HOST, OTHER = ProviderId(UUID(int=1)), ProviderId(UUID(int=2))


def a_row(id_: ProviderId = HOST, **fields: Any) -> HostState:
    return HostState(**{"id": id_, "name": f"h{id_.int}", "cell": "c1", "up": True, "sequence": 1, **fields})


class Scheduler:
    """A scheduler that knows two hosts of a cell; the other host is heard all the time."""

    def __init__(self, clock: Clock[datetime], *rows: HostState) -> None:
        self._clock = clock
        self.registry = HostRegistry(Picture(), DOWN_AFTER, lambda: clock.now)
        self.registry.learn(rows or (a_row(), a_row(OTHER)))

    def hears(self, *hosts: ProviderId) -> None:
        self.registry.hear_beats("c1", hosts)

    def learns(self, **fields: Any) -> None:
        """Another scheduler has written the host's row."""
        known = self.registry.get(HOST)
        assert known is not None
        self.registry.learn((structs.replace(known, sequence=known.sequence + 1, **fields),))

    @property
    def is_up(self) -> bool:
        known = self.registry.get(HOST)
        assert known is not None
        return self.registry.as_heard(known).up

    @property
    def writes(self) -> dict[ProviderId, datetime | None]:
        return self.registry.unwritten_silences()


def pass_s(clock: Clock[datetime], seconds: float, *schedulers: Scheduler) -> None:
    """Time goes by, in which the other host is heard."""
    until = clock.now + timedelta(seconds=seconds)
    while clock.now < until:
        clock.now += timedelta(seconds=5)
        for each in schedulers:
            each.hears(OTHER)
            each.registry.look()


def began_later_and_believes_the_one_that_has_listened_for_longer(
    clock: Clock[datetime],
) -> None:
    first = Scheduler(clock)
    first.hears(HOST, OTHER)
    pass_s(clock, 40, first)
    # It begins while the host is silent already, and counts from here.
    second = Scheduler(clock)
    pass_s(clock, 25, first, second)
    assert (first.is_up, second.is_up) == (False, True)
    assert first.writes == {HOST: START}

    second.learns(silent_since=START)
    second.registry.look()

    assert not second.is_up
    assert second.writes == {}, "it has not heard the host, and does not say so"


def has_heard_it_and_says_so(clock: Clock[datetime]) -> None:
    second = Scheduler(clock)
    pass_s(clock, 30, second)
    second.hears(HOST)
    pass_s(clock, 10, second)

    second.learns(silent_since=START)

    assert second.is_up
    assert second.writes == {HOST: None}


def falls_silent_again_for_another_one_first(
    clock: Clock[datetime],
) -> None:
    silent = a_row(silent_since=START - timedelta(seconds=90))
    second = Scheduler(clock, silent, a_row(OTHER))
    assert not second.is_up
    second.learns(silent_since=None)
    assert (second.is_up, second.writes) == (True, {})
    pass_s(clock, 30, second)

    second.learns(silent_since=START)

    assert (second.is_up, second.writes) == (False, {})
    second.hears(HOST)
    assert (second.is_up, second.writes) == (True, {HOST: None})


@pytest.mark.parametrize(
    "seen",
    [
        began_later_and_believes_the_one_that_has_listened_for_longer,
        has_heard_it_and_says_so,
        falls_silent_again_for_another_one_first,
    ],
)
def test_a_scheduler_believes_of_others_what_it_has_not_heard_itself(
    seen: Callable[[Clock[datetime]], None],
) -> None:
    seen(Clock(START))
