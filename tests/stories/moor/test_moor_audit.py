"""`moor audit` where workers and brokers are away: one that follows goes on, and a cell's broker is a cell that does not answer."""

import signal
from pathlib import Path

import pytest

from tests.stories.moor.moor_process import moor, started

pytestmark = pytest.mark.asyncio


async def test_an_audit_that_follows_outlives_an_outage(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    cloud = ("up", "--cells", "harbour", "--hosts", "1")
    looks = ("audit", "--follow", "--every", "1", "--settle", "1", "--patience", "1")
    async with started(*cloud, **environment) as up:
        await up.until_printed("ready")
        async with started(*looks, **environment) as audit:
            await audit.until_printed("no faults: 0 instances")
            up.send_signal(signal.SIGKILL)
            await up.ended()
            told = await audit.until_printed_to_stderr("broke off")
            assert "the next one is in 1 s" in told
            async with started(*cloud, **environment) as again:
                await again.until_printed("ready")
                await audit.until_printed_to_stderr("it is answered again")
            assert not audit.has_ended


async def test_a_cells_broker_that_is_away_is_a_cell_that_does_not_answer(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", "harbour,island", "--hosts", "1", **environment) as up:
        await up.until_printed("ready")
        away = {"MOOR_CELL_BUS_URLS": "island=unix:///nonexistent/island", "MOOR_CELLS": "harbour,island"}
        done = await moor("audit", "--patience", "1", **environment, **away)

    assert (done.code, "the conductor of cell island did not answer" in done.out) == (3, True), done
