"""How much processor time the longest callback of the event loop took, which nobody else could run beside."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


class Turns:
    """`longest_s` is of this thread alone: a busy machine makes it little longer."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self.longest = ""


@contextmanager
def turns_measured() -> Iterator[Turns]:
    """Of every loop of asyncio's own; uvloop's callbacks are not seen."""
    turns = Turns()
    run = asyncio.Handle._run  # noqa: SLF001 - there is no other place to look from

    def measured(handle: asyncio.Handle) -> None:
        began_s = time.thread_time()
        run(handle)
        took_s = time.thread_time() - began_s
        if took_s > turns.longest_s:
            turns.longest_s, turns.longest = took_s, str(handle)[:200]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio.Handle, "_run", measured)
        yield turns
