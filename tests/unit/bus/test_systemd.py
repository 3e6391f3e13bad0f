"""What systemd is told of a worker."""

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kit.health import About, Health, ReadyTeller
from kit.parts import Status
from kit.process import Systemd


@pytest.fixture
def listener(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    path = str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(path)
        listening.settimeout(10)
        monkeypatch.setenv("NOTIFY_SOCKET", path)
        yield listening


class Waiting:
    """A part that the worker needs, and that is not there yet."""

    def __init__(self) -> None:
        self.status = Status("broker", is_needed=True)


async def test_a_worker_says_what_it_waits_for_then_that_it_is_ready_and_that_it_stops(
    listener: socket.socket,
) -> None:
    part = Waiting()
    health = Health(About("scheduler", "1"), (part,))
    teller = ReadyTeller(health)
    running = asyncio.create_task(teller.run())

    async def heard() -> str:
        return (await asyncio.to_thread(listener.recv, 4096)).decode()

    assert await heard() == "STATUS=waits for broker"
    part.status.well()
    assert await heard() == "READY=1\nSTATUS=ready"
    health.is_stopping = True
    assert await heard() == "STOPPING=1\nSTATUS=drains"
    await teller.stop()
    await running


def test_a_sign_of_life_comes_twice_in_the_time_that_systemd_waits(listener: socket.socket) -> None:
    systemd = Systemd({"NOTIFY_SOCKET": str(listener.getsockname()), "WATCHDOG_USEC": "60000000"})

    for second in range(100, 200):
        systemd.alive(float(second))

    listener.setblocking(False)
    heard: list[bytes] = []
    while len(heard) < 100:
        try:
            heard.append(listener.recv(100))
        except BlockingIOError:
            break
    assert heard == [b"WATCHDOG=1"] * 4
