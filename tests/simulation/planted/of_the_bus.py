"""The bus, planted: the worker loop, the intake, the publisher, questions."""

import asyncio
from contextlib import AbstractContextManager
from typing import Any

from msgspec import structs

from bus import headers, intake
from bus.asking import Asker
from bus.broker import Receipt
from bus.intake import Intake
from bus.publisher import Publisher
from bus.worker import Worker
from tests.simulation.replacing import replaced


def acknowledge_before_commit() -> AbstractContextManager[None]:
    """The batch is acknowledged when it is begun: who dies over it has lost it."""

    def by(real: Any) -> Any:
        async def handle(self: Any, handler: Any, items: Any) -> None:
            await self.intake.done(items)
            await real(self, handler, items)

        return handle

    return replaced(Worker, "_handle", by)


def acknowledged_without_confirms() -> AbstractContextManager[None]:
    """The batch is acknowledged when what it says was handed to the publisher, and not when the broker has confirmed it."""

    def by(real: Any) -> Any:
        async def settle(self: Any, handler: Any, items: Any, leaving: Any, confirmed: Any) -> None:
            confirmed.add_done_callback(lambda done: done.cancelled() or done.exception())
            at_once = asyncio.get_running_loop().create_future()
            at_once.set_result(None)
            await real(self, handler, items, leaving, at_once)

        return settle

    return replaced(Worker, "_settle", by)


def notes_confirmed_before_they_are_sent() -> AbstractContextManager[None]:
    """What a handler's rows keep is marked as confirmed when the rows are committed: the next commit clears it."""

    def by(real: Any) -> Any:
        async def decide_and_save(self: Any, handler: Any, items: Any) -> Any:
            said = await real(self, handler, items)
            self._confirmed.extend(kept for each in said if (kept := getattr(each, "kept", None)) is not None)
            return said

        return decide_and_save

    return replaced(Worker, "_decide_and_save", by)


def refused_taken_for_confirmed() -> AbstractContextManager[None]:
    """A queue is full and refuses the parcel: its publisher believes that it has arrived."""

    def by(real: Any) -> Any:
        async def publish_once(self: Any, parcel: Any) -> Any:
            receipt = await real(self, parcel)
            return Receipt.CONFIRMED if receipt in (Receipt.REFUSED, Receipt.LOST) else receipt

        return publish_once

    return replaced(Publisher, "_publish_once", by)


def unroutable_taken_for_delivered() -> AbstractContextManager[None]:
    """No queue takes the order, and its publisher tells those who wait that it is delivered."""
    return replaced(Publisher, "_unroutable", lambda _real: lambda _self, _parcel, _kind, _count: None)


def attempts_not_counted() -> AbstractContextManager[None]:
    """A message that goes back to its queue is as old as it was: one that always fails comes back for ever."""
    return replaced(intake, "put_back", lambda _real: lambda line: line)


def half_a_parcel_lost() -> AbstractContextManager[None]:
    """A parcel that came back is halved, and only its first half goes back to the queue."""

    def by(real: Any) -> Any:
        async def halve(self: Any, held: Any, lines: Any) -> None:
            await real(self, held, lines[: (len(lines) + 1) // 2])

        return halve

    return replaced(Intake, "_halve", by)


def dead_letter_without_reason() -> AbstractContextManager[None]:
    """A letter says that something was wrong, and not what."""

    def by(real: Any) -> Any:
        async def bury_line(self: Any, line: Any, held: Any, _reason: str) -> bool:
            taken: bool = await real(self, line, held, "it could not be handled")
            return taken

        return bury_line

    return replaced(Intake, "_bury_line", by)


def nothing_given_back_before_burial() -> AbstractContextManager[None]:
    """A message is buried, and what was claimed for it stays claimed."""

    def by(_real: Any) -> Any:
        async def give_back(_self: Any, _buried: Any) -> None:
            return

        return give_back

    return replaced(Worker, "_give_back", by)


def late_answer_taken_for_another() -> AbstractContextManager[None]:
    """An answer to a question that is over is taken for the answer to the oldest that is not."""

    def by(real: Any) -> Any:
        def take(self: Any, envelope: Any, origin: Any) -> None:
            if envelope.cause not in self._asked and self._asked:
                envelope = structs.replace(envelope, cause=next(iter(self._asked)))
            real(self, envelope, origin)

        return take

    return replaced(Asker, "_take", by)


def sender_believed_by_its_header() -> AbstractContextManager[None]:
    """Whoever a header names as the sender is the sender, on every exchange."""

    def by(real: Any) -> Any:
        def origin_of(delivery: Any) -> Any:
            origin = real(delivery)
            named = delivery.parcel.headers.get(headers.SENDER)
            return structs.replace(origin, sender=str(named)) if named else origin

        return origin_of

    return replaced(intake, "origin_of", by)


def any_key_will_do() -> AbstractContextManager[None]:
    """A message counts under whatever key it came."""
    return replaced(intake, "judge", lambda _real: lambda _message, _origin, _post: None)


def stranger_listened_to() -> AbstractContextManager[None]:
    """A parcel counts, whoever sent it, and whomever it has answered."""
    return replaced(intake, "judge_parcel", lambda _real: lambda _origin, _post: None)
