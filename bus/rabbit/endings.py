"""Tells each waiting caller once that a channel or connection has ended, and limits the wait for a clean close."""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from pamqp import commands

from kit.errors import AccessRefused, NotFound, Refusal

log = logging.getLogger(__name__)

# The longest wait for the broker's part of a close.
CLOSE_S_MAX = 5.0

_T = TypeVar("_T")


def refusal_of(frame: commands.Channel.Close) -> Refusal:
    text = frame.reply_text or f"closed by the broker with code {frame.reply_code}"
    match frame.reply_code:
        case 403:
            return AccessRefused(text)
        case 404:
            return NotFound(text)
        case _:
            return Refusal(text)


def again(why: Exception) -> Exception:
    """A copy of this exception to raise. An exception that is raised twice grows its traceback."""
    return type(why)(*why.args)


def fail(future: asyncio.Future[Any], why: Exception) -> None:
    if not future.done():
        future.set_exception(again(why))
        # The caller may have been cancelled: mark the exception as retrieved, so that asyncio does not log it.
        future.exception()


async def bounded(closing: Coroutine[Any, Any, _T] | asyncio.Future[_T]) -> None:
    """Wait until a channel or connection is closed, for a limited time. Failures to close are only logged."""
    task = asyncio.ensure_future(closing)
    try:
        await asyncio.wait((task,), timeout=CLOSE_S_MAX)
    finally:
        task.cancel()
    if task.done() and not task.cancelled() and (problem := task.exception()):
        log.debug("closing ended with %r", problem)
