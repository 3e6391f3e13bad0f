"""Traces: where a message's handling is part of one, and what begins and ends such parts (spans).

The envelope of a message has a W3C trace context (`traceparent`). It goes along with whatever follows from the message. Without
a tracer, which is the default, that is all, and it costs nothing. With one (bus/operating/otel.py), each worker adds a
span for each message of a trace, and names it as the parent of what follows.
"""

from datetime import datetime
from importlib.util import find_spec
from typing import Protocol
from urllib.parse import urlsplit

URL_VARIABLE = "MOOR_TRACES_URL"
SHARE_VARIABLE = "MOOR_TRACES_SHARE"
_SDK = "opentelemetry.exporter.otlp.proto.http"


class OpenSpan(Protocol):
    # The trace context of what follows from this.
    context: str

    def end(self, problem: str = "") -> None: ...


class MessageTracer(Protocol):
    def begin(self, message: object, queue: str, parent: str, sent_at: datetime | None) -> OpenSpan | None:
        """Begin the span of a message that was taken from this queue. None if it is in no trace, and begins none."""


class _Process:
    """The tracer of this process, and what its settings ask for."""

    tracer: MessageTracer | None = None
    url: str = ""
    share: float = 1.0


def tracer() -> MessageTracer | None:
    return _Process.tracer


def use_tracer(tracer: MessageTracer | None) -> None:
    _Process.tracer = tracer


def wanted() -> tuple[str, float]:
    """The address to which traces are sent, empty for none; and the share of requests that begin one."""
    return _Process.url, _Process.share


def want_traces(url: str, share: float | str = 1.0) -> None:
    """Have the process send traces to this address. Raises ValueError if it is no address, or if it cannot."""
    # Without a password.
    shown = url.rpartition("@")[2]
    if url and urlsplit(url).scheme not in ("http", "https"):
        raise ValueError(
            f"{URL_VARIABLE} is {shown!r}: write the address of an OTLP receiver, as http://localhost:4318"
        )
    if url and not _is_installed():
        raise ValueError(
            f"{URL_VARIABLE} is {shown!r}, and OpenTelemetry is not installed: pip install 'moorage[otel]'"
        )
    try:
        number = float(share)
    except ValueError:
        number = -1.0
    if not 0.0 <= number <= 1.0:
        raise ValueError(f"{SHARE_VARIABLE} is {share!r}, must be a number from 0 to 1")
    _Process.url, _Process.share = url, number


def _is_installed() -> bool:
    try:
        return find_spec(_SDK) is not None
    except ModuleNotFoundError:
        return False
