"""Which of Nova's consumers may be freed, since Nova does not know them? Pure: the caller asks Nova, and remembers each first look.

Nova tells of an instance before it is claimed, and of a migration before it holds anything. Still a consumer is freed only if Nova did
not know it in two looks that were further apart than any of Nova's own calls may take, and if its row did not change between them.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta

from msgspec import Struct

from bus.auditing import mending
from bus.auditing.judging import amounts_in_words
from bus.auditing.views import Fault, Places
from bus.message import ConsumerId
from bus.messages.books import BookEntry, SeenConsumer

UNKNOWN = "unknown to nova"


class HoldersAsked(Struct, frozen=True):
    """The consumers that Nova does not know; or, in `problem`, why that cannot be said: then none is unknown."""

    unknown: frozenset[ConsumerId] = frozenset()
    problem: str = ""


class FirstLook(Struct, frozen=True):
    """When Nova was first found not to know this consumer, and what its row was then."""

    consumer: ConsumerId
    seen: SeenConsumer
    at: datetime


def seen_of(consumer: BookEntry) -> SeenConsumer:
    return SeenConsumer(generation=consumer.generation, attempt=consumer.attempt, ended=consumer.ended)


def first_looks(
    unknown: Iterable[BookEntry], earlier: Mapping[ConsumerId, FirstLook], now: datetime
) -> dict[ConsumerId, FirstLook]:
    """The first look at each consumer that Nova does not know now: the earlier one, if its row is still the same.

    A consumer that Nova knows again, or that holds nothing any more, is forgotten.
    """
    return {
        each.id: before
        if (before := earlier.get(each.id)) is not None and before.seen == seen_of(each) and before.at <= now
        else FirstLook(each.id, seen_of(each), now)
        for each in unknown
    }


def faults_unknown(
    unknown: Iterable[BookEntry],
    looks: Mapping[ConsumerId, FirstLook],
    *,
    began: datetime,
    wait: timedelta,
    places: Places,
) -> list[Fault]:
    """`began` is when the present look began. Only what was first looked at more than `wait` before is freed."""
    return [
        _fault(each, looks[each.id], began, wait, places)
        for each in sorted(unknown, key=lambda each: each.id)
    ]


def _fault(consumer: BookEntry, look: FirstLook, began: datetime, wait: timedelta, places: Places) -> Fault:
    is_over = look.seen == seen_of(consumer) and began - look.at > wait
    return Fault(
        UNKNOWN,
        consumer.id,
        f"consumer {consumer.id} of type {consumer.type} holds {amounts_in_words(consumer.held, places)}, and Nova knows no instance and "
        "no migration of this id",
        mend=mending.end(consumer) if is_over else None,
        advice=""
        if is_over
        else f"so it is since {_in_words(look.at)}: --heal frees it if Nova still does not know it after {_in_words(look.at + wait)}",
        version=(consumer.generation, consumer.attempt, consumer.ended, consumer.held),
    )


def _in_words(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M:%S} UTC"
