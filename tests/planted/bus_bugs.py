"""Planted bugs in the bus: the worker loop, the intake, the publisher, questions."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from msgspec import structs

from bus import message
from bus.broker import Receipt
from bus.topology import broker_user_of
from bus.workers import intake
from bus.workers.intake import Intake
from bus.workers.sending import ParcelSender
from bus.workers.station import Asker
from bus.workers.worker import Worker
from tests.planted.replacing import replaced


def acknowledge_before_commit() -> AbstractContextManager[None]:
    """The worker acknowledges a batch when it begins: if it dies in between, the batch is lost."""

    def planted(real: Any) -> Any:
        async def handle(self: Any, handler: Any, items: Any) -> None:
            await self.intake.done(items)
            await real(self, handler, items)

        return handle

    return replaced(Worker, "_handle", planted)


def acknowledged_without_confirms() -> AbstractContextManager[None]:
    """The worker acknowledges a batch when its messages are handed to the publisher, before the broker has confirmed
    them.
    """

    def planted(real: Any) -> Any:
        async def settle(self: Any, handler: Any, items: Any, leaving: Any, confirmed: Any) -> None:
            confirmed.add_done_callback(lambda done: done.cancelled() or done.exception())
            at_once = asyncio.get_running_loop().create_future()
            at_once.set_result(None)
            await real(self, handler, items, leaving, at_once)

        return settle

    return replaced(Worker, "_settle", planted)


def messages_confirmed_before_they_are_sent() -> AbstractContextManager[None]:
    """A handler's pending messages count as confirmed when its rows commit, so the next commit clears them unsent."""

    def planted(real: Any) -> Any:
        async def decide_and_save(self: Any, handler: Any, items: Any) -> Any:
            said = await real(self, handler, items)
            self._confirmed.extend(kept for each in said if (kept := getattr(each, "kept", None)) is not None)
            return said

        return decide_and_save

    return replaced(Worker, "_decide_and_save", planted)


def refused_counts_as_confirmed() -> AbstractContextManager[None]:
    """A full queue refuses the parcel, but the publisher takes it for stored."""

    def planted(real: Any) -> Any:
        async def publish_once(self: Any, parcel: Any) -> Any:
            receipt = await real(self, parcel)
            return Receipt.CONFIRMED if receipt in (Receipt.REFUSED, Receipt.LOST) else receipt

        return publish_once

    return replaced(ParcelSender, "_publish_once", planted)


def unroutable_counts_as_delivered() -> AbstractContextManager[None]:
    """No queue takes the order, but the publisher reports it as delivered."""

    def planted(real: Any) -> Any:
        async def publish_until_told(*arguments: Any) -> Any:
            receipt = await real(*arguments)
            return Receipt.CONFIRMED if receipt is Receipt.UNROUTABLE else receipt

        return publish_until_told

    return replaced(ParcelSender, "publish_until_told", planted)


def attempts_not_counted() -> AbstractContextManager[None]:
    """A message that goes back to its queue keeps its number of attempts: one that always fails is retried for ever."""
    return replaced(intake, "with_attempt_counted", lambda _real: lambda line, _more=1: line)


def half_a_parcel_lost() -> AbstractContextManager[None]:
    """A redelivered parcel is split, and only its first half goes back to the queue."""

    def planted(real: Any) -> Any:
        async def take_apart(self: Any, held: Any, lines: Any) -> None:
            await real(self, held, lines[: (len(lines) + 1) // 2])

        return take_apart

    return replaced(Intake, "_take_apart", planted)


def dead_letter_without_reason() -> AbstractContextManager[None]:
    """A dead letter does not say what was wrong."""

    def planted(real: Any) -> Any:
        async def bury_line(self: Any, held: Any, line: Any, _reason: str) -> None:
            await real(self, held, line, "it could not be handled")

        return bury_line

    return replaced(Intake, "_bury_line", planted)


def nothing_released_before_dead_letter() -> AbstractContextManager[None]:
    """A message is dead-lettered, and what was claimed for it stays claimed."""

    def planted(_real: Any) -> Any:
        async def give_back(_self: Any, _buried: Any) -> None:
            return

        return give_back

    return replaced(Worker, "_give_back", planted)


def late_answer_taken_for_another() -> AbstractContextManager[None]:
    """An answer to a question that has timed out is taken for the answer to the oldest open one."""

    def planted(real: Any) -> Any:
        def take(self: Any, envelope: Any, origin: Any) -> None:
            if envelope.cause not in self._asked and self._asked:
                envelope = structs.replace(envelope, cause=next(iter(self._asked)))
            real(self, envelope, origin)

        return take

    return replaced(Asker, "_take", planted)


def sender_taken_from_header() -> AbstractContextManager[None]:
    """A header that names a sender is believed on every exchange."""

    def planted(real: Any) -> Any:
        def origin_of(delivery: Any) -> Any:
            origin = real(delivery)
            named = delivery.parcel.headers.get(message.SENDER)
            return structs.replace(origin, sender=str(named)) if named else origin

        return origin_of

    return replaced(intake, "origin_of", planted)


def any_key_accepted() -> AbstractContextManager[None]:
    """A message counts under any routing key."""
    return replaced(intake, "judge", lambda _real: lambda _message, _origin, _post: None)


@contextmanager
def any_sender_accepted() -> Iterator[None]:
    """A parcel counts from any sender, and so does an answer from any sender."""

    def unless_strange(counts: object) -> Callable[[Any], Any]:
        return lambda real: (
            lambda what, origin, facts: (
                counts if broker_user_of(origin.sender) is None else real(what, origin, facts)
            )
        )

    with (
        replaced(intake, "judge_parcel", lambda _real: lambda _origin, _post: None),
        replaced(intake, "judge", unless_strange(None)),
        replaced(intake, "all_count", unless_strange(counts=True)),
    ):
        yield
