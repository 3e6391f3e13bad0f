"""`moor status`: the whole cloud on one screen, and an exit code that says whether it is healthy."""

import json
from pathlib import Path

import pytest

from bus.memory import MemoryBroker
from bus.unix_socket.server import serve_unix
from tests.stories.moor.moor_process import moor, moor_json, started
from tests.waiting import until

pytestmark = pytest.mark.asyncio


async def test_a_healthy_cloud_says_what_it_has(home: Path) -> None:
    environment = {"XDG_STATE_HOME": str(home)}
    async with started("up", "--cells", "harbour,island", "--hosts", "2", **environment) as up:
        await up.until_printed("ready")
        await moor_json("boot", "--vcpus", "64", "--count", "2", "--host", "island-host-00001", **environment)
        await moor_json("host", "set", "harbour-host-00002", "draining", **environment)

        status = await until(
            lambda: moor("status", "-o", "json", **environment),
            "all workers are heard",
            lambda said: len(json.loads(said.out)["overview"]["workers"]) >= 6,
        )
        told = json.loads(status.out)
        assert (status.code, told["healthy"], told["troubles"]) == (0, True, [])
        assert "hosts draining: 1" in told["notes"]
        overview = told["overview"]
        assert overview["instances"] == [{"state": "active", "cell": "island", "count": 2}]
        roles = [(each["beat"]["role"], each["beat"]["cell"]) for each in overview["workers"]]
        assert roles == [
            ("compute", "harbour"),
            ("compute", "island"),
            ("conductor", "harbour"),
            ("conductor", "island"),
            ("placement", "cell0"),
            ("scheduler", "cell0"),
        ]
        while len(stages := overview["stages"]) < 6:
            overview = (await moor_json("status", **environment))["overview"]
        counts = {each["stage"]: (each["minute"]["count"], each["hour"]["count"]) for each in stages}
        names = ["accept", "choose", "claim", "place", "spawn", "boot"]
        assert counts == dict.fromkeys(names, (2, 2))
        used = {(each["cell"], each["resource_class"]): each["used"] for each in overview["uses"]}
        assert (used["island", "VCPU"], used["harbour", "VCPU"]) == (128, 0)

        shown = await moor("status", **environment | {"COLUMNS": "80"})
        assert shown.code == 0
        assert "Moorage  healthy" in shown.out
        assert "2 instances   2 active" in shown.out
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
        shown = await moor("status", MOOR_BUS_URL=f"unix://{home / 'bus'}")

    assert shown.code == 1
    assert "lacks the queues scheduler.requests, scheduler.questions" in shown.out
