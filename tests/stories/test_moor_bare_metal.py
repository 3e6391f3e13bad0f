"""`moor up --nodes`, `moor node`, `moor check` and `moor boot` on bare metal, each a process of its own."""

import asyncio
import signal
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.stories.cloud import until_so
from tests.stories.moor_process import Process, moor, moor_json, started

pytestmark = pytest.mark.asyncio


@pytest.fixture
def home() -> Iterator[Path]:
    """A short path: a socket's may not be long."""
    with tempfile.TemporaryDirectory(prefix="moor-") as place:
        yield Path(place)


@asynccontextmanager
async def up(home: Path, *arguments: str, **environment: str) -> AsyncIterator[Process]:
    async with started("up", "--hosts", "2", *arguments, XDG_STATE_HOME=str(home), **environment) as process:
        await process.until_told("ready")
        yield process


async def ring(home: Path) -> dict[str, int]:
    """How many nodes each daemon that is alive owns."""
    shown = await moor_json("ring", XDG_STATE_HOME=str(home))
    return {each["name"]: each["nodes"] for each in shown["daemons"] if each["state"] == "alive"}


async def nodes_up(home: Path) -> list[tuple[str, str]]:
    hosts = await moor_json("host", "list", XDG_STATE_HOME=str(home))
    return [(host["name"], host["cell"]) for host in hosts if host["kind"] == "ironic" and host["up"]]


async def test_a_cloud_has_nodes_that_daemons_share_and_that_outlive_a_kill(home: Path) -> None:
    async with up(home, "--nodes", "6", "--daemons", "2") as first:
        before = await nodes_up(home)
        assert sorted(cell for _, cell in before) == ["harbour"] * 3 + ["island"] * 3
        shared = await ring(home)
        assert shared.keys() == {"ironic-1", "ironic-2"}
        assert sum(shared.values()) == 6
        first.send_signal(signal.SIGKILL)
        await first.ended()

    async with up(home, "--nodes", "7", "--daemons", "1"):
        # Nobody waits for the leases of the daemons before.
        assert "ironic-2" not in await ring(home)

        async def has_all() -> bool:
            return await ring(home) == {"ironic-1": 7}

        await until_so(has_all, "one daemon owns all nodes")
        assert {*before} < {*await nodes_up(home)}


async def test_a_port_that_is_taken_is_said(home: Path) -> None:
    server = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server:
        ran = await moor("up", "--nodes", "1", "--ironic-listen", address, XDG_STATE_HOME=str(home))

    assert ran.code == 1
    assert "--ironic-listen names another address" in ran.err


@pytest.mark.parametrize(
    ("environment", "told"),
    [
        ({"MOOR_IRONIC_SIM_LISTEN": "6385"}, "--ironic-listen is '6385': write host:port"),
        ({"MOOR_IRONIC_URL": "http://ironic"}, "ironic_url"),
    ],
)
async def test_what_contradicts_the_simulated_ironic_is_named(
    home: Path, environment: dict[str, str], told: str
) -> None:
    ran = await moor("up", "--nodes", "1", XDG_STATE_HOME=str(home), **environment)

    assert ran.code == 2
    assert told in ran.err
