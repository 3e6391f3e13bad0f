"""Builds on silent hosts that the checker must report, and those that no conductor could notice in time."""

import asyncio
from collections.abc import Callable
from uuid import UUID

from msgspec import structs

from bus.messages.build import AttemptFailed
from engine.inventories import Choice, ConsumerId, ProviderId, Share
from laboratory.computes.faults import Dies, FaultScript
from tests.simulation.cloud import Cloud
from tests.simulation.drawing import draw
from tests.simulation.loop import run_simulated
from tests.simulation.process import SimProcess
from tests.simulation.silence_checker import SLOW_S, TIMED_OUT
from tests.simulation.workers import BUS

CELL, NAME = "c1", "host"
HOST = ProviderId(UUID(int=1))
INSTANCE = ConsumerId(UUID(int=2))
SILENT_SINCE_S = 1.0
# The conductor is away for a little less than it needs to notice silence. Then a build begins.
AWAY_S = BUS.host_down_s - 0.5
ATTEMPT_S = SLOW_S + 2.0


def test_a_build_on_a_host_that_a_conductor_must_know_as_silent_is_reported() -> None:
    assert _broken_after(lambda _: None) == "a build leaves a silent host"
    # The faults end; the conductor was not away.
    assert _broken_after(SimProcess.stop_faults) == "a build leaves a silent host"


def test_a_conductor_listens_from_when_it_reaches_the_broker_again() -> None:
    assert _broken_after(SimProcess.go_online, is_away=True) == ""
    assert _broken_after(SimProcess.stop_faults, is_away=True) == ""


def _broken_after(then: Callable[[SimProcess], None], *, is_away: bool = False) -> str:
    """The promise that breaks if a build begins at that time, and waits for its whole attempt on a silent host."""

    async def broken() -> str:
        script = FaultScript(faults=(Dies(after_s=SILENT_SINCE_S, hosts=(NAME,)),))
        cloud = Cloud(structs.replace(draw(1), script=script))
        cloud.hosts.tree_written(HOST, NAME, CELL, frozenset())
        silence = cloud.cells.silence
        conductor = SimProcess(f"conductor-{CELL}-1", 1, 1, cloud)
        if is_away:
            conductor.go_offline()
        else:
            conductor.cut("the network failed")
        await asyncio.sleep(AWAY_S)
        then(conductor)
        silence.begins(INSTANCE)
        await asyncio.sleep(ATTEMPT_S)
        failure = AttemptFailed(attempt=1, host=NAME, reason=f"{TIMED_OUT} {ATTEMPT_S:g} s")
        silence.failed(INSTANCE, failure, Choice(name=NAME, share=Share(host=HOST, amounts=())), CELL)
        return cloud.findings.broken.promise if cloud.findings.broken else ""

    return run_simulated(broken())
