"""The environment that a worker needs before it starts, and its end."""

import asyncio

import pytest

from kit.parts import PartGroup, Supervised
from kit.process import exiting_if_wrong, make_ready, run_until
from tests.simulation.loop import run_simulated


def test_a_missing_variable_is_named_with_its_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"), exiting_if_wrong():
        make_ready({"MOOR_BUS_URL": "", "MOOR_CELL": "c1"}, "MOOR_CELL", "MOOR_BUS_URL", "MOOR_DB_URL")

    said = capsys.readouterr().err
    assert (
        said == "MOOR_BUS_URL and MOOR_DB_URL must be set: where the broker is, and where the database is\n"
    )


def test_without_a_missing_variable_there_is_no_message(capsys: pytest.CaptureFixture[str]) -> None:
    make_ready({"MOOR_BUS_URL": "unix:///x"}, "MOOR_BUS_URL")

    assert capsys.readouterr().err == ""


def test_a_process_that_cannot_drain_ends_after_its_time() -> None:
    async def scenario() -> float:
        told = asyncio.Event()
        told.set()
        await run_until(told, (Supervised("a part", asyncio.Event().wait, is_cut_short=False),), 5)
        return asyncio.get_running_loop().time()

    assert run_simulated(scenario()) == 5.0


def test_the_parts_of_a_group_are_told_to_stop_in_their_order() -> None:
    """Those that take work come before those that their work needs."""
    stopped: list[str] = []

    class Told(Supervised):
        async def stop(self) -> None:
            stopped.append(self.status.name)

    async def scenario() -> None:
        await PartGroup(*(Told(name, asyncio.Event().wait) for name in ("takes", "hands on", "sends"))).stop()

    run_simulated(scenario())
    assert stopped == ["takes", "hands on", "sends"]
