"""No message of placement is larger than a reader accepts, and none leaves anything out."""

from uuid import UUID

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from bus.broker import PARCEL_BYTES_MAX
from bus.codec import encode
from bus.message import AggregateId, ConsumerId, Envelope, ProviderId
from bus.messages.placement import (
    Holder,
    InventoryState,
    LogPosition,
    ProviderGone,
    ProviderState,
    ProviderUsage,
    SnapshotPage,
)
from placement_worker.change_publisher import messages_of
from placement_worker.handlers import fitting
from placement_worker.paging import ROOM, how_many_fit
from placement_worker.store import Unpublished

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
    assert how_many_fit([fat(n) for n in range(3)], room=ROOM) == 3


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
