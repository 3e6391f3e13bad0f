"""No message of placement is larger than a reader accepts, and none leaves anything out."""

from collections.abc import Sequence
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from bus.codec import encode
from bus.message import PARCEL_BYTES_MAX, Envelope, Message
from bus.messages.cloud import VALUES_BYTES_MAX
from bus.messages.placement import ClaimAnswered, ClaimResources, LogPosition, ProviderGone, SnapshotPage
from bus.workers.handling import Answer, ReadOnly, Received, Said, Weighed
from engine.inventories import (
    AggregateId,
    ConsumerId,
    Holder,
    InventoryState,
    ProviderId,
    ProviderState,
    ProviderUsage,
)
from engine.refusals import ShapeMoved
from placement_worker.handlers import fitting, handlers, messages_of
from placement_worker.settings import PlacementSettings
from placement_worker.store import Unpublished
from placement_worker.view import ProviderView, how_many_fit
from placement_worker.wiring import STANDARD
from tests.contracts.placement_orders import (
    NOON,
    WEB,
    a_provider,
    a_report,
    a_share,
    amounts,
    provider,
)
from tests.stores_in_memory import MemoryPlacementStore

LARGEST = InventoryState(
    total=2**31 - 1,
    reserved=2**31 - 1,
    min_unit=2**31 - 1,
    max_unit=2**31 - 2,
    step_size=2**31 - 1,
    allocation_ratio=1.1234567890123457e-300,
    used=2**63 - 1,
)
NAMES = st.text(alphabet="ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", min_size=1, max_size=255)


@st.composite
def providers(draw: st.DrawFn) -> ProviderState:
    return ProviderState(
        internal=draw(st.integers(1, 2**53)),
        id=ProviderId(draw(st.uuids())),
        name=draw(st.text(min_size=1, max_size=200)),
        root=ProviderId(draw(st.uuids())),
        parent=ProviderId(draw(st.uuids())),
        cell="c" * 40,
        generation=2**53,
        shape=2**53,
        revision=2**53,
        inventories=dict.fromkeys(draw(st.lists(NAMES, max_size=5)), LARGEST),
        traits=tuple(draw(st.lists(NAMES, max_size=8))),
        aggregates=tuple(AggregateId(each) for each in draw(st.lists(st.uuids(), max_size=5))),
    )


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(providers(), max_size=8), st.integers(0, 10_000))
def test_as_many_providers_are_taken_as_the_room_has_bytes_for(drawn: list[ProviderState], room: int) -> None:
    fit = how_many_fit(drawn, room)

    assert len(msgspec.json.encode(drawn[:fit])) <= room + len("[]")
    assert fit == len(drawn) or len(msgspec.json.encode(drawn[: fit + 1])) > room


def fat(number: int, traits: int = 300) -> ProviderState:
    """A provider of about 30 kB."""
    return ProviderState(
        internal=number,
        id=ProviderId(UUID(int=number)),
        name=f"host-{number}",
        root=ProviderId(UUID(int=number)),
        traits=tuple(f"CUSTOM_{'X' * 90}_{n}" for n in range(traits)),
    )


def much_used(number: int) -> ProviderUsage:
    """A provider with so many classes in use that its usage takes some 25 kB."""
    return ProviderUsage(
        internal=number,
        id=ProviderId(UUID(int=number)),
        base=1,
        revision=2,
        used={f"CUSTOM_{'X' * 90}_{n}": 2**31 for n in range(200)},
    )


def test_a_page_that_is_too_large_is_cut_and_names_the_next_position() -> None:
    page = SnapshotPage(
        providers=tuple(fat(n) for n in range(1, 21)), published=LogPosition(term=1, position=1), next=99
    )

    cut = fitting(page)

    assert 0 < len(cut.providers) < 20
    assert cut.next == cut.providers[-1].internal
    assert len(encode(Envelope(message=cut))) <= PARCEL_BYTES_MAX


def test_a_page_that_fits_is_left_alone() -> None:
    page = SnapshotPage(providers=(fat(1),), published=LogPosition(term=1, position=1), next=None)

    assert fitting(page) is page


def test_nothing_fits_into_no_room_and_everything_into_enough() -> None:
    assert how_many_fit([fat(1)], room=10) == 0
    assert how_many_fit([fat(n) for n in range(3)], room=VALUES_BYTES_MAX) == 3


def test_many_changes_make_several_messages_at_positions_without_gaps() -> None:
    unpublished = Unpublished(
        cursor="c",
        providers=tuple(fat(n) for n in range(1, 31)),
        gone=tuple(ProviderGone(internal=n, id=ProviderId(UUID(int=n)), revision=n) for n in range(50)),
        usage=tuple(much_used(n) for n in range(31, 50)),
        claimed=tuple(Holder(consumer=ConsumerId(UUID(int=n)), attempt=1) for n in range(1000)),
        ended=tuple(Holder(consumer=ConsumerId(UUID(int=n)), attempt=1) for n in range(500)),
    )

    messages = list(messages_of(unpublished, LogPosition(term=3, position=7)))

    assert [each.at for each in messages] == [
        LogPosition(term=3, position=8 + n) for n in range(len(messages))
    ]
    assert all(len(encode(Envelope(message=each))) <= PARCEL_BYTES_MAX for each in messages)
    assert tuple(p for each in messages for p in each.providers) == unpublished.providers
    assert tuple(g for each in messages for g in each.gone) == unpublished.gone
    assert tuple(u for each in messages for u in each.usage) == unpublished.usage
    assert tuple(c for each in messages for c in each.claimed) == unpublished.claimed
    assert tuple(e for each in messages for e in each.ended) == unpublished.ended


def test_claims_come_after_the_states_of_their_providers() -> None:
    unpublished = Unpublished(
        cursor="c",
        providers=tuple(fat(n) for n in range(1, 31)),
        usage=tuple(much_used(n) for n in range(31, 50)),
        claimed=(Holder(consumer=ConsumerId(UUID(int=1)), attempt=1),),
    )

    messages = list(messages_of(unpublished, LogPosition(term=1, position=0)))

    assert [bool(each.claimed) for each in messages] == [False] * (len(messages) - 1) + [True]
    last_whole = max(n for n, each in enumerate(messages) if each.providers)
    assert all(n >= last_whole for n, each in enumerate(messages) if each.usage)


def test_nothing_new_is_no_message() -> None:
    assert list(messages_of(Unpublished(cursor="c"), LogPosition(term=1, position=0))) == []


def test_one_provider_at_its_largest_still_fits() -> None:
    largest = structs.replace(
        fat(1),
        traits=tuple(f"{n:04}{'X' * 251}" for n in range(400)),
        inventories={f"{n:04}{'X' * 251}": LARGEST for n in range(200)},
        aggregates=tuple(AggregateId(UUID(int=n)) for n in range(400)),
    )

    assert how_many_fit([largest]) == 1
    (told, _) = messages_of(
        Unpublished(
            cursor="c", providers=(largest,), claimed=(Holder(consumer=ConsumerId(UUID(int=1)), attempt=1),)
        ),
        LogPosition(term=1, position=0),
    )
    assert told.providers == (largest,)
    assert len(encode(Envelope(message=told))) <= PARCEL_BYTES_MAX
    assert (
        len(
            encode(
                Envelope(
                    message=SnapshotPage(providers=(largest,), published=LogPosition(term=1, position=1))
                )
            )
        )
        <= PARCEL_BYTES_MAX
    )


@pytest.mark.asyncio
async def test_a_refusal_with_many_moved_trees_fits_into_one_message() -> None:
    """The ids of all roots are in it, too."""
    names = [f"{number:04}{'x' * 150}" for number in range(900)]
    reports = [a_report(a_provider(name), root=provider(name)) for name in names]
    roots = {provider(name): 99 for name in names}
    host = provider(names[0])
    share = a_share(host, amounts(host, VCPU=1), roots)
    order = ClaimResources(cell="c1", consumer=WEB, attempt=1, issued_at=NOON, share=share)

    (answer,) = (await handled(reports, [order]))[-1]

    assert isinstance(answer, Answer)
    assert isinstance(answer.message, ClaimAnswered)
    assert isinstance(answer.message.verdict, ShapeMoved)
    assert answer.message.verdict.roots == tuple(roots)
    assert len(answer.message.verdict.trees) > len(roots) / 2
    assert len(encode(Envelope(message=answer.message))) <= PARCEL_BYTES_MAX


async def handled(*batches: Sequence[Message]) -> list[Sequence[Said]]:
    """What placement says to each of these batches, which are of one kind of message each."""
    store, said = MemoryPlacementStore(), []
    of_type = handlers(
        store, ProviderView(store), PlacementSettings(), vocabulary=STANDARD, clock=lambda: NOON
    )
    for batch in batches:
        handler = of_type[type(batch[0])]
        assert not isinstance(handler, ReadOnly | Weighed)
        async with store.transaction() as tx:
            asks = [
                Received(message=each, id="1", trace="", sender="", reply_to="me", attempts=0)
                for each in batch
            ]
            said.append(await handler(asks, tx))
    return said
