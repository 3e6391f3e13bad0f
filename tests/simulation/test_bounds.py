"""A run in which something repeats without end, or waits for ever, fails and says what does."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from kit.parts import Periodic
from tests.narrowing import present
from tests.planted.replacing import replaced
from tests.simulation import loop, seeds
from tests.simulation.drawing import draw
from tests.simulation.findings import Findings
from tests.simulation.loop import ENDS_S_MAX, StoppedRun, bounded_cpu, on_bound, run_simulated
from tests.simulation.seeds import ENDS, run


def test_a_task_that_never_rests_ends_the_run_and_is_named() -> None:
    async def spins() -> None:
        while True:
            await asyncio.sleep(0)
            Periodic("spins", _nothing, 1.0)

    assert "kit.parts.Periodic.__init__ 200" in _why_it_ended(spins)


def test_a_wait_without_a_timer_ends_the_run() -> None:
    assert "no timer is set" in _why_it_ended(lambda: asyncio.Event().wait())


def test_a_wait_beyond_the_bound_ends_the_run_and_is_named() -> None:
    async def waits_for_nobody() -> None:
        while True:
            await asyncio.sleep(10)

    assert "waits_for_nobody" in (why := _why_it_ended(waits_for_nobody))
    assert f"{ENDS_S_MAX + 10:.0f} s" in why


def test_a_loop_that_awaits_nothing_ends_the_run_and_is_named() -> None:
    async def never_awaits() -> None:
        while True:
            pass

    with pytest.raises(StoppedRun, match=r"0.05 s of CPU, in .*never_awaits"), bounded_cpu(0.05):
        run_simulated(never_awaits())


def test_a_seed_that_does_not_end_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    # Until then a cloud at rest still beats.
    monkeypatch.setattr(loop, "ENDS_S_MAX", 60.0)
    plan = structs.replace(draw(4), faults=(), admin_ops=())

    async def never_settles(_cloud: object, _connection: object) -> list[str]:
        await asyncio.Event().wait()
        return []

    with replaced(seeds, "unsettled", lambda _real: never_settles):
        broken = run(plan).broken

    assert present(broken).promise == ENDS


def _why_it_ended(work: Callable[[], Awaitable[object]]) -> str:
    async def ended() -> str:
        findings = Findings()
        on_bound(lambda why: findings.breaks(ENDS, why))
        working = asyncio.ensure_future(work())
        await findings.is_over.wait()
        working.cancel()
        return present(findings.broken).how

    return run_simulated(ended())


async def _nothing() -> None:
    pass
