"""Planted bugs in the bus: the worker loop, the intake, the publisher, questions."""

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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
from tests.planted.replacing import ANY_CLOUD, planted, planted_as, planted_by, replaced


# The worker acknowledges a batch when it begins: if it dies in between, the batch is lost.
@planted("a batch acknowledged before its commit", Worker, "_handle", world=ANY_CLOUD)
async def acknowledge_before_commit(real: Any, self: Any, handler: Any, items: Any) -> None:
    await self.intake.done(items)
    await real(self, handler, items)


# The worker acknowledges a batch when its messages are handed to the publisher, before the broker has confirmed them.
@planted("a batch acknowledged without its confirms", Worker, "_settle", world=ANY_CLOUD)
async def acknowledged_without_confirms(
    real: Any, self: Any, handler: Any, items: Any, leaving: Any, confirmed: Any
) -> None:
    confirmed.add_done_callback(lambda done: done.cancelled() or done.exception())
    at_once = asyncio.get_running_loop().create_future()
    at_once.set_result(None)
    await real(self, handler, items, leaving, at_once)


# A handler's pending messages count as confirmed when its rows commit, so the next commit clears them unsent.
@planted("messages confirmed before they are sent", Worker, "_decide_and_save", world=ANY_CLOUD)
async def messages_confirmed_before_they_are_sent(real: Any, self: Any, handler: Any, items: Any) -> Any:
    said = await real(self, handler, items)
    self._confirmed.extend(kept for each in said if (kept := getattr(each, "kept", None)) is not None)
    return said


# A full queue refuses the parcel, but the publisher takes it for stored.
@planted("a refused parcel counts as confirmed", ParcelSender, "_publish_once", world=ANY_CLOUD)
async def refused_counts_as_confirmed(real: Any, self: Any, parcel: Any) -> Any:
    receipt = await real(self, parcel)
    return Receipt.CONFIRMED if receipt in (Receipt.REFUSED, Receipt.LOST) else receipt


# No queue takes the order, but the publisher reports it as delivered.
@planted("an unroutable order counts as delivered", ParcelSender, "publish_until_told", world=ANY_CLOUD)
async def unroutable_counts_as_delivered(real: Any, *arguments: Any) -> Any:
    receipt = await real(*arguments)
    return Receipt.CONFIRMED if receipt is Receipt.UNROUTABLE else receipt


# A message that goes back to its queue keeps its number of attempts: one that always fails is retried for ever.
planted_by("attempts are not counted", intake, "with_attempt_counted", world=ANY_CLOUD)(
    lambda _real: lambda line, _more=1: line
)


# A redelivered parcel is split, and only its first half goes back to the queue.
@planted("half of a redelivered parcel is lost", Intake, "_take_apart", world=ANY_CLOUD)
async def half_a_parcel_lost(real: Any, self: Any, held: Any, lines: Any) -> None:
    await real(self, held, lines[: (len(lines) + 1) // 2])


# A dead letter does not say what was wrong.
@planted("a dead letter without its reason", Intake, "_bury_line", world=ANY_CLOUD)
async def dead_letter_without_reason(real: Any, self: Any, held: Any, line: Any, _reason: str) -> None:
    await real(self, held, line, "it could not be handled")


# A message is dead-lettered, and what was claimed for it stays claimed.
@planted("nothing released before a dead letter", Worker, "_give_back", world=ANY_CLOUD)
async def nothing_released_before_dead_letter(_real: Any, _self: Any, _buried: Any) -> None:
    return


# An answer to a question that has timed out is taken for the answer to the oldest open one.
@planted("a late answer taken for another one", Asker, "_take", world=ANY_CLOUD)
def late_answer_taken_for_another(real: Any, self: Any, envelope: Any, origin: Any) -> None:
    if envelope.cause not in self._asked and self._asked:
        envelope = structs.replace(envelope, cause=next(iter(self._asked)))
    real(self, envelope, origin)


# A header that names a sender is believed on every exchange.
@planted("the sender taken from a header", intake, "origin_of", world=ANY_CLOUD)
def sender_taken_from_header(real: Any, delivery: Any) -> Any:
    origin = real(delivery)
    named = delivery.parcel.headers.get(message.SENDER)
    return structs.replace(origin, sender=str(named)) if named else origin


# A message counts under any routing key.
planted_by("any routing key accepted", intake, "judge", world=ANY_CLOUD)(
    lambda _real: lambda _message, _origin, _post: None
)


@planted_as("any sender accepted", world=ANY_CLOUD)
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
