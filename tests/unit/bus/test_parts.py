"""The kit for the parts of a process, on the simulated clock."""

import asyncio
import logging
import random
from collections.abc import Sequence

import pytest

from kit.errors import ConnectionLost, NotFound, Operational, Refusal, Transient
from kit.parts import (
    PartState,
    Pauses,
    Periodic,
    RowByRow,
    SingleFlight,
    Supervised,
    operational,
)
from tests.simulation.loop import run_simulated, until_s

PAUSES = Pauses(first_s=1.0, max_s=8.0)


class Work:
    """Fails as often as configured, with these errors in turn, and records when it ran."""

    def __init__(self, *problems: Exception) -> None:
        self._problems = list(problems)
        self.at_s: list[float] = []
        self.under_way = 0

    async def __call__(self) -> None:
        assert self.under_way == 0, "never two at a time"
        self.under_way += 1
        try:
            self.at_s.append(round(asyncio.get_running_loop().time(), 2))
            await asyncio.sleep(0.25)
            if self._problems:
                raise self._problems.pop(0)
        finally:
            self.under_way -= 1


def test_a_failed_run_is_retried_after_growing_pauses_with_jitter() -> None:
    work = Work(*[ConnectionLost("gone")] * 6)

    async def scenario() -> None:
        await Supervised("a part", work, pauses=PAUSES, chance=random.Random(1)).run()

    run_simulated(scenario())

    pauses = [later - earlier - 0.25 for earlier, later in zip(work.at_s, work.at_s[1:], strict=False)]
    assert all(
        most / 2 <= pause <= most + 0.01 for pause, most in zip(pauses, (1, 2, 4, 8, 8, 8), strict=True)
    )


def test_a_failure_is_logged_once_per_change_and_counted_each_time(caplog: pytest.LogCaptureFixture) -> None:
    problems = [Transient("try 1"), Transient("try 2"), NotFound("no queue"), NotFound("no queue")]
    part = Supervised("a part", Work(*problems), pauses=PAUSES)

    with caplog.at_level(logging.WARNING, "kit.parts"):
        run_simulated(part.run())

    assert part.status.failures == 4
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    assert "try 1" in caplog.records[0].message
    assert "moor broker declare" in caplog.records[1].message


def test_a_bug_ends_the_part_with_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    part = Supervised("a part", Work(TypeError("planted")))

    with pytest.raises(TypeError, match="planted"):
        run_simulated(part.run())

    assert part.status.last_error == "TypeError: planted"
    assert part.status.state is PartState.ENDED
    (record,) = [each for each in caplog.records if each.levelname == "CRITICAL"]
    assert record.exc_info is not None


async def test_a_bug_at_one_row_is_told_and_the_other_rows_are_worked_on() -> None:
    told: list[object] = []

    async def work(rows: Sequence[str]) -> None:
        assert "b" not in rows
        told.extend(rows)

    async def met_bug(row: object, _: Exception) -> None:
        told.append(f"bug at {row}")

    await RowByRow(met_bug).each("abc", work, str)

    assert told == ["a", "bug at b", "c"]


def test_a_bug_together_with_an_operational_error_is_a_bug() -> None:
    assert isinstance(operational(ExceptionGroup("", [Transient("a"), Refusal("b")])), Operational)
    assert operational(ExceptionGroup("", [Transient("a"), TypeError("b")])) is None


def test_stop_cuts_a_part_short_and_waits_for_one_that_ends_itself() -> None:
    async def scenario() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        endless = Supervised("endless", asyncio.Event().wait)

        async def end_orderly() -> None:
            await orderly.stopping.wait()
            await asyncio.sleep(3)

        orderly = Supervised("orderly", end_orderly, is_cut_short=False)

        ends = []
        for part in (endless, orderly):
            running = asyncio.create_task(part.run())
            await asyncio.sleep(1)
            begun_s = loop.time()
            await part.stop()
            await running
            ends.append(round(loop.time() - begun_s, 2))
        return ends[0], ends[1]

    assert run_simulated(scenario()) == (0.0, 3.0)


def test_a_periodic_part_runs_every_so_often_and_at_once_when_woken() -> None:
    work = Work()

    async def scenario() -> None:
        part = Periodic("a part", work, 10.0)
        running = asyncio.create_task(part.run())
        await until_s(15)
        part.wake()
        # While it runs: one more run, and never two at the same time.
        await until_s(15.1)
        part.wake()
        part.wake()
        await until_s(26)
        await part.stop()
        await running

    run_simulated(scenario())

    assert work.at_s == [0.0, 10.25, 15.0, 15.25, 25.5]


def test_callers_share_the_next_flight_and_never_the_one_under_way() -> None:
    work = Work(Transient("no"))

    async def scenario() -> list[float]:
        flight = SingleFlight("a flight", work, pauses=Pauses(1, 1))
        loop = asyncio.get_running_loop()
        ends: list[float] = []

        async def caller(at_s: float) -> None:
            await until_s(at_s)
            await flight.done()
            ends.append(loop.time())

        await asyncio.gather(*[caller(at_s) for at_s in (0, 0.1, 0.1, 0.2)])
        assert flight.status.failures == 1
        return ends

    ends = run_simulated(scenario())
    assert len(work.at_s) == 3, "one that failed and succeeded then, and one for all who came meanwhile"
    assert len(set(ends)) == 2
