"""The feed's publisher reads a log that has grown, a page at a time, and publishes all of it."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from bus.memory import MemoryBroker
from bus.message import PARCEL_BYTES_MAX
from bus.messages.placement import LogPosition, ProvidersChanged
from bus.workers.publisher import Publisher
from bus.workers.sending import Outgoing
from bus.workers.station import Station
from engine.inventories import GroupId, GroupMember, Holder, ProviderState, ProviderUsage
from placement_worker.handlers import ChangePublisher, messages_of, rest_s
from placement_worker.settings import FeedPace
from placement_worker.store import Unpublished
from tests.contracts.placement_orders import a_host, a_report, an_id, consumer, provider
from tests.contracts.store_client import StoreClient
from tests.stores_in_memory import MemoryPlacementStore

pytestmark = pytest.mark.asyncio

PAGED = FeedPace(entries_max=2, poll_s=3_600.0, rest_s_max=3_600.0)
PATIENCE_S = 60
A_STATE = ProviderState(internal=1, id=provider("h1"), name="h1", root=provider("h1"))
A_USAGE = ProviderUsage(internal=1, id=provider("h1"), base=1, revision=2)


class RecordingPublisher(Publisher):
    """A publisher that only records the messages."""

    def __init__(self, station: Station) -> None:
        super().__init__(station.consuming, station.settings, "told")
        self.published: list[ProvidersChanged] = []

    def send_all(self, outgoing: Sequence[Outgoing], kept: object = ()) -> asyncio.Future[None]:  # noqa: ARG002 - the real one has it
        self.published += [each.message for each in outgoing if isinstance(each.message, ProvidersChanged)]
        done = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done


async def published_by(client: StoreClient, *, stops_at_once: bool) -> list[ProvidersChanged]:
    publisher = RecordingPublisher(Station(MemoryBroker().as_user(), "a-test"))
    part = ChangePublisher(client.store, (publisher,), pace=PAGED)
    running = asyncio.create_task(part.run())
    async with asyncio.timeout(PATIENCE_S):
        # The pauses between two reads are endless here.
        while not stops_at_once and names_in(publisher.published) != {"h5", "h6", "h7"}:
            await asyncio.sleep(0)
        if stops_at_once:
            await asyncio.sleep(0)
        await part.stop()
        await running
    return publisher.published


def names_in(published: Sequence[ProvidersChanged]) -> set[str]:
    return {state.name for each in published for state in each.providers}


async def a_log_whose_first_pages_have_no_provider() -> StoreClient:
    client = StoreClient(MemoryPlacementStore())
    for number in range(1, 8):
        await client.report(a_host(f"h{number}"))
    for number in range(1, 5):
        host = provider(f"h{number}")
        await client.report(a_report(root=host, removed=(host,)))
    return client


@pytest.mark.parametrize("stops_at_once", [False, True])
async def test_a_long_log_is_published_to_its_end_without_a_pause_and_before_a_stop(
    *, stops_at_once: bool
) -> None:
    client = await a_log_whose_first_pages_have_no_provider()

    published = await published_by(client, stops_at_once=stops_at_once)

    assert names_in(published) == {"h5", "h6", "h7"}
    assert [gone.id for each in published for gone in each.gone] == [provider(f"h{n}") for n in range(1, 5)]
    assert [each.at.position for each in published] == list(range(1, len(published) + 1))
    async with client.store.lead_feed() as feed:
        assert feed is not None
        left = await feed.read()
    assert (left.providers, left.gone) == ((), ())


async def test_after_a_short_page_the_next_change_is_published_soon() -> None:
    client = StoreClient(MemoryPlacementStore())
    publisher = RecordingPublisher(Station(MemoryBroker().as_user(), "a-test"))
    part = ChangePublisher(client.store, (publisher,), pace=PAGED)
    running = asyncio.create_task(part.run())

    # `rest_s_max` is an hour here.
    async with asyncio.timeout(PATIENCE_S):
        for number in range(1, 4):
            await client.report(a_host(f"h{number}"))
            await client.report(a_host(f"i{number}"))
            part.written()
            while f"i{number}" not in names_in(publisher.published):
                await asyncio.sleep(0)
        await part.stop()
        await running


@pytest.mark.parametrize(
    ("providers", "used", "took_s", "expected_s"),
    [(1, 0, 0.004, 0.0), (0, 1, 0.5, 0.0), (1, 1, 0.004, 0.008), (2, 0, 0.004, 0.008), (0, 2, 0.5, 0.02)],
)
async def test_only_after_several_changes_the_next_ones_gather(
    providers: int, used: int, took_s: float, expected_s: float
) -> None:
    unpublished = Unpublished("c", providers=(A_STATE,) * providers, usage=(A_USAGE,) * used)

    assert rest_s(unpublished, took_s, 0.02) == pytest.approx(expected_s)


async def test_members_that_left_come_after_all_that_joined_and_the_cursor_comes_last() -> None:
    """A member may have joined and left; a picture must end without it."""
    joined = tuple(
        GroupMember(group=GroupId(an_id("group")), consumer=consumer(str(n)), attempt=1, host=provider("h1"))
        for n in range(900)
    )
    left = tuple(Holder(consumer=each.consumer, attempt=1) for each in joined)
    unpublished = Unpublished(cursor="9", usage=(A_USAGE,), joined=joined, left=left, ended=left)

    messages = list(messages_of(unpublished, LogPosition(term=1, position=4)))

    assert [each.at.position for each in messages] == list(range(5, 5 + len(messages)))
    assert tuple(one for each in messages for one in each.joined) == joined
    assert tuple(one for each in messages for one in each.left) == left
    first_left = next(number for number, each in enumerate(messages) if each.left)
    assert not any(each.joined for each in messages[first_left + 1 :])
    assert [bool(each.cursor) for each in messages] == [False] * (len(messages) - 1) + [True]
    assert not any(each.ended for each in messages if each.joined or each.left)
    assert max(len(msgspec.json.encode(each)) for each in messages) < PARCEL_BYTES_MAX
