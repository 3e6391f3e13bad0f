"""Counts what runs meanwhile: calls, statements, rows that are written, and messages."""

import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any
from unittest.mock import patch

from sqlalchemy import event
from sqlalchemy.engine import Engine

from bus.message import type_of
from bus.workers.publisher import Outgoing, Publisher

_WRITES = ("INSERT", "UPDATE", "DELETE")
# A calibration takes a few milliseconds.
_ROUNDS = 20_000


class Counts:
    """The counts since the last `reset`. Calls of C functions count, too."""

    def __init__(self) -> None:
        self.calls = 0
        # SQLite runs a statement once for each row that it writes.
        self.statements: Counter[str] = Counter()
        self.messages: Counter[str] = Counter()

    def reset(self) -> None:
        self.calls = 0
        self.statements.clear()
        self.messages.clear()

    @property
    def rows(self) -> int:
        return sum(self.statements[each] for each in _WRITES)

    def called(self, _frame: FrameType, event_: str, _: Any) -> None:
        if event_ in ("call", "c_call"):
            self.calls += 1

    def stated(self, statement: str) -> None:
        self.statements[statement.split(None, 1)[0].upper()] += 1

    def connected(self, connection: Any, _: Any) -> None:
        connection.set_trace_callback(self.stated)


@contextmanager
def counting() -> Iterator[Counts]:
    """Count in all threads and SQLite connections that begin from here on."""
    counts = Counts()
    send_all = Publisher.send_all

    def sent(self: Publisher, outgoing: Sequence[Outgoing], *others: Any) -> Any:
        counts.messages.update(type_of(each.message) for each in outgoing)
        return send_all(self, outgoing, *others)

    event.listen(Engine, "connect", counts.connected)
    threading.setprofile(counts.called)
    sys.setprofile(counts.called)
    try:
        with patch.object(Publisher, "send_all", sent):
            yield counts
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        event.remove(Engine, "connect", counts.connected)


def calibration_s() -> float:
    """The CPU time that this machine needs just now for some fixed work."""
    began = time.process_time()
    found: dict[int, tuple[int, str]] = {}
    for number in range(_ROUNDS):
        found[number & 1023] = (number, f"{number}")
    assert len(found) == 1024
    return time.process_time() - began
