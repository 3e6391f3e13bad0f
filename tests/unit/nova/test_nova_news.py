"""When placement has hosts that Nova was not known to have, Nova is read again: soon, then less and less often."""

import asyncio
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

from engine.inventories import InventoryState, ProviderId, ProviderState
from engine.picture.picture import Picture
from nova_bridge.cloud import NovaCloud
from nova_bridge.hosts import BEFORE_REFUSALS, PAUSE_FIRST, NovaNews

pytestmark = pytest.mark.asyncio

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)


class ReadNova:
    """Counts how often it is read. Each reading gives another value, if it `answers`."""

    def __init__(self) -> None:
        self.cloud: NovaCloud | None = NovaCloud()
        self.readings = 0
        self.answers = True
        self.now = NOON

    def read_soon(self) -> None:
        self.readings += 1
        if self.answers:
            self.cloud = NovaCloud()


def a_host(number: int) -> ProviderState:
    id_ = ProviderId(UUID(int=number))
    return ProviderState(
        internal=number,
        id=id_,
        name=f"h{number}",
        root=id_,
        revision=1,
        inventories={"VCPU": InventoryState(total=8)},
    )


def some_news() -> tuple[NovaNews, ReadNova, Picture]:
    nova, picture = ReadNova(), Picture()
    return NovaNews(picture, nova, nova.read_soon, lambda: nova.now), nova, picture


async def test_nova_is_not_read_while_no_host_is_missing() -> None:
    news, nova, _ = some_news()
    news.look()
    await news.before_refusal()
    assert nova.readings == 0


async def test_a_missing_host_has_nova_read_at_growing_intervals_and_another_one_at_once() -> None:
    news, nova, picture = some_news()
    picture.apply([a_host(1)])
    read_at = []
    for second in range(100):
        nova.now = NOON + timedelta(seconds=second)
        before = nova.readings
        news.look()
        if nova.readings > before:
            read_at.append(second)
    assert read_at == [0, 5, 15, 35, 75]

    picture.apply([a_host(2)])
    news.look()
    assert nova.readings == 6


async def test_services_whose_cell_is_not_known_have_nova_read_too() -> None:
    news, nova, _ = some_news()
    nova.cloud = NovaCloud(unplaced=("new",))
    news.look()
    assert nova.readings == 1


async def test_a_refusal_waits_until_nova_was_read_but_others_soon_after_do_not() -> None:
    news, nova, picture = some_news()
    picture.apply([a_host(1)])
    for _ in range(3):
        await news.before_refusal()
    assert nova.readings == 1

    nova.now = NOON + BEFORE_REFUSALS + PAUSE_FIRST
    await news.before_refusal()
    assert nova.readings == 2


async def test_a_refusal_does_not_wait_for_a_nova_that_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    news, nova, picture = some_news()
    picture.apply([a_host(1)])
    nova.answers = False
    monkeypatch.setattr("nova_bridge.hosts.READ_WITHIN_S", 0.1)
    async with asyncio.timeout(2):
        await news.before_refusal()
    assert nova.readings == 1
