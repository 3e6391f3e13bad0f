"""`moor top`: the screen follows a cloud that runs, its tabs list what is there, and Enter opens a row."""

import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from rich.console import Console
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from moor.options import client, command_settings
from moor.overview.top_command import Details, Top
from tests.stories.moor.moor_process import moor, moor_json, started
from tests.waiting import until

pytestmark = pytest.mark.asyncio


@asynccontextmanager
async def watched(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pilot[None]]:
    """`moor top`, at a running `moor up` of this home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    settings = command_settings()
    async with client(settings, operates=True, patience_s=5) as moor:
        app = Top(moor, settings, 0.5)
        async with app.run_test(size=(120, 60)) as pilot:
            yield pilot


def text_of(pilot: Pilot[None], where: str) -> str:
    console = Console(width=110, color_system=None)
    with console.capture() as captured:
        console.print(pilot.app.screen.query_one(where, Static).content)
    return captured.get()


def rows_of(pilot: Pilot[None], tab: str) -> list[list[str]]:
    table = pilot.app.query_one(f"#{tab}-rows", DataTable)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


async def test_the_screen_follows_a_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        environment = {"XDG_STATE_HOME": place}
        async with started("up", "--cells", "harbour", "--hosts", "3", **environment) as up:
            await up.until_printed("ready")
            booted = await moor_json("boot", "--vcpus", "2", "--name", "web", **environment)
            await moor("boot", "--vcpus", "8000", "--name", "giant", **environment)
            async with watched(Path(place), monkeypatch) as pilot:
                await until(lambda: "1 active" in text_of(pilot, "#seen"))
                seen = text_of(pilot, "#seen")
                assert "Moorage  healthy" in seen
                assert "1 error" in seen
                await moor("boot", "--vcpus", "1", "--name", "more", **environment)
                await until(lambda: "2 active" in text_of(pilot, "#seen"))

                await pilot.press("3")
                await until(lambda: len(rows_of(pilot, "hosts")) == 3)
                await pilot.press("2")
                await until(lambda: len(rows_of(pilot, "instances")) == 3)
                assert booted["instances"][0]["id"] in {row[0] for row in rows_of(pilot, "instances")}

                await pilot.press("s", "s")
                await until(lambda: [row[1] for row in rows_of(pilot, "instances")] == ["giant"])
                await pilot.press("enter")
                await until(lambda: isinstance(pilot.app.screen, Details))
                details = text_of(pilot, "Static")
                assert "no host for giant among 3" in details
                assert "boot" in details
                await pilot.press("escape")

                await pilot.press("6")
                await until(lambda: "no dead letters" in text_of(pilot, "#told"))
                await pilot.press("5")
                await until(lambda: "no move is under way" in text_of(pilot, "#told"))

                up.send_signal(signal.SIGKILL)
                await pilot.press("1", "r")
                await until(lambda: "✗ no scheduler answers" in text_of(pilot, "#seen"))
                await pilot.press("q")
