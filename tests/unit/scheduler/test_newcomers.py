"""Hosts that placement has, and that have told nothing of themselves yet."""

from uuid import UUID

import pytest

from engine.inventories import ProviderId
from engine.picture.picture import Picture
from scheduler_worker import hosts as newcomers
from scheduler_worker.hosts import Newcomers

HOST, LATER = ProviderId(UUID(int=1)), ProviderId(UUID(int=2))


class Untold(Picture):
    def __init__(self, *hosts: ProviderId) -> None:
        self.hosts = [*hosts]

    def unregistered(self) -> list[ProviderId]:
        return self.hosts


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(newcomers, "TOLD_WITHIN_S", 0.1)
    monkeypatch.setattr(newcomers, "LOOK_S", 0.01)


@pytest.mark.asyncio
async def test_each_newcomer_is_waited_for_once() -> None:
    picture = Untold(HOST)
    watched = Newcomers(picture)

    assert await watched.until_told()
    assert not await watched.until_told(), "a provider that tells nothing delays no further refusal"
    picture.hosts.append(LATER)
    assert await watched.until_told()


@pytest.mark.asyncio
async def test_without_newcomers_nothing_waits() -> None:
    assert not await Newcomers(Untold()).until_told()
