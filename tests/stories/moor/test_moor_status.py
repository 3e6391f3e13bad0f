"""`moor status`, `moor top` and `moor audit --follow`: what they say of a cloud that runs, and whatever is away."""

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from bus.memory import MemoryBroker
from bus.unix_socket.server import serve_unix
from moor.options import client, command_settings
from moor.overview.top_command import Details, Top
from tests.stories.moor.moor_process import moor, moor_says, started, up
from tests.waiting import until


async def test_a_healthy_cloud_says_what_it_has(home: Path) -> None:
    async with up(home, "--cells", "harbour,island", "--hosts", "2") as cloud:
        await cloud.json("boot", "--vcpus", "64", "--count", "2", "--host", "island-host-00001")
        await cloud.json("host", "set", "harbour-host-00002", "draining")

        async def status() -> Any:
            return json.loads((await cloud.run("status", "-o", "json")).out)

        told = await until(status, "all are heard", lambda found: len(found["overview"]["workers"]) >= 7)
        assert (told["healthy"], told["troubles"]) == (True, [])
        assert "hosts draining: 1" in told["notes"]
        overview = told["overview"]
        assert overview["instances"] == [{"state": "active", "cell": "island", "count": 2}]
        roles = [(each["beat"]["role"], each["beat"]["cell"]) for each in overview["workers"]]
        assert roles == [
            ("compute", "harbour"),
            ("compute", "island"),
            ("conductor", "harbour"),
            ("conductor", "island"),
            ("keeper", "cell0"),
            ("placement", "cell0"),
            ("scheduler", "cell0"),
        ]
        overview = (await until(status, "all stages", lambda found: len(found["overview"]["stages"]) >= 6))[
            "overview"
        ]
        counts = {
            each["stage"]: (each["minute"]["count"], each["hour"]["count"]) for each in overview["stages"]
        }
        assert counts == dict.fromkeys(["accept", "choose", "claim", "place", "spawn", "boot"], (2, 2))
        used = {(each["cell"], each["resource_class"]): each["used"] for each in overview["uses"]}
        assert (used["island", "VCPU"], used["harbour", "VCPU"]) == (128, 0)

        said = ("Moorage healthy", "2 instances 2 active")
        shown = await moor_says(0, said, "status", **cloud.environment, COLUMNS="80")
        assert max(map(len, shown.out.splitlines())) <= 80


AWAY = "postgresql://moor@127.0.0.1:1/moor"


UNANSWERED = "no scheduler answers: no worker has answered overview.query within 0.5 s"
NODES_UNKNOWN = "the bare-metal nodes are not known: "


@pytest.mark.parametrize(
    ("away", "told"),
    [
        ({}, [UNANSWERED]),
        ({"MOOR_IRONIC_DB_URL": AWAY}, [UNANSWERED, f"{NODES_UNKNOWN}database: cannot connect"]),
        (
            {"MOOR_IRONIC_DB_URL": "sqlite:////nonexistent/x.db", "MOOR_IRONIC_URL": "http://127.0.0.1:1"},
            [UNANSWERED, f"{NODES_UNKNOWN}database: /nonexistent/x.db"],
        ),
        (
            {"MOOR_IRONIC_URL": "http://127.0.0.1:1"},
            [UNANSWERED, f"{NODES_UNKNOWN}Ironic at http://127.0.0.1:1"],
        ),
        (
            {"MOOR_CELL_BUS_URLS": "c1=unix:///nonexistent/c1"},
            [UNANSWERED, "the broker unix:///nonexistent/c1: "],
        ),
        (
            {"MOOR_BUS_URL": "unix:///nonexistent/bus", "MOOR_IRONIC_DB_URL": AWAY},
            [
                "no scheduler answers: no broker: ",
                "the broker unix:///nonexistent/bus: ",
                f"{NODES_UNKNOWN}database: ",
            ],
        ),
    ],
)
async def test_the_screen_is_drawn_whatever_does_not_answer(
    home: Path, away: dict[str, str], told: list[str]
) -> None:
    """What is away is a line on it, beside what the others say."""
    socket = home / "bus"
    async with serve_unix(MemoryBroker(), socket):
        await moor("broker", "declare", "--cells", "c1", MOOR_BUS_URL=f"unix://{socket}")
        environment = {"MOOR_BUS_URL": f"unix://{socket}"} | away
        shown = await moor("status", "--within", "0.5", **environment)
        document = await moor("status", "--within", "0.5", "-o", "json", **environment)

    assert [each for each in told if each not in shown.out] == [], shown.out
    assert (shown.code, shown.err, document.code) == (1, "", 1)
    lines = json.loads(document.out)
    assert (lines["healthy"], lines["overview"]) == (False, None)
    assert [each for each in told if not any(each in line for line in lines["troubles"])] == []


async def test_the_screen_is_drawn_on_a_broker_where_nothing_is_declared(home: Path) -> None:
    async with serve_unix(MemoryBroker(), home / "bus"):
        lacks = "lacks the queues scheduler.requests, scheduler.questions"
        await moor_says(1, lacks, "status", MOOR_BUS_URL=f"unix://{home / 'bus'}")


@asynccontextmanager
async def watched(home: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Pilot[None]]:
    """`moor top`, at a running `moor up` of this home."""
    monkeypatch.setenv("XDG_STATE_HOME", str(home))
    settings = command_settings()
    async with (
        client(settings, operates=True, patience_s=5) as moor,
        Top(moor, settings, 0.5).run_test(size=(120, 60)) as pilot,
    ):
        yield pilot


def text_of(pilot: Pilot[None], where: str) -> str:
    console = Console(width=110, color_system=None)
    with console.capture() as captured:
        console.print(pilot.app.screen.query_one(where, Static).content)
    return captured.get()


def rows_of(pilot: Pilot[None], tab: str) -> list[list[str]]:
    table = pilot.app.query_one(f"#{tab}-rows", DataTable)
    return [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]


async def test_the_screen_follows_a_cloud(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with up(home, "--cells", "harbour", "--hosts", "3") as cloud:
        booted = await cloud.json("boot", "--vcpus", "2", "--name", "web")
        await cloud.run("boot", "--vcpus", "8000", "--name", "giant")
        async with watched(home, monkeypatch) as pilot:
            await until(lambda: "1 active" in text_of(pilot, "#seen"))
            seen = text_of(pilot, "#seen")
            assert "Moorage  healthy" in seen
            assert "1 error" in seen
            await cloud.run("boot", "--vcpus", "1", "--name", "more")
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

            cloud.process.send_signal(signal.SIGKILL)
            await pilot.press("1", "r")
            await until(lambda: "✗ no scheduler answers" in text_of(pilot, "#seen"))
            await pilot.press("q")


async def test_an_audit_that_follows_outlives_an_outage_and_a_cell_whose_broker_is_away_does_not_answer(
    home: Path,
) -> None:
    hosts = ("--cells", "harbour,island", "--hosts", "1")
    looks = ("audit", "--follow", "--every", "1", "--settle", "1", "--patience", "1")
    async with up(home, *hosts) as cloud:
        away = {"MOOR_CELL_BUS_URLS": "island=unix:///nonexistent/island", "MOOR_CELLS": "harbour,island"}
        told = "the conductor of cell island did not answer"
        await moor_says(3, told, "audit", "--patience", "1", **cloud.environment, **away)
        async with started(*looks, **cloud.environment) as audit:
            await audit.until_printed("no faults: 0 instances")
            cloud.process.send_signal(signal.SIGKILL)
            await cloud.process.ended()
            assert "the next one is in 1 s" in await audit.until_printed_to_stderr("broke off")
            async with up(home, *hosts):
                await audit.until_printed_to_stderr("it is answered again")
            assert not audit.has_ended
