"""Log formats: text for people, or JSON with one object per line for programs. And the lines about instances.

Every request, decision and ending has a line (`InstanceLine`). The lines of a batch are one log record and one write: a record for each
would cost a boot more than all else that is logged.
"""

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any, Protocol
from urllib.parse import urlsplit
from uuid import UUID

import msgspec
from msgspec import Struct

TEXT = "%(asctime)s %(name)s %(levelname)s %(message)s"
FORMATS = ("text", "json")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# Fields that every log record has; others were given as `extra`.
_USUAL = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))


class InstanceLine(Struct, frozen=True, omit_defaults=True, gc=False):
    """What happened to an instance, a request or another object, in a word, and the names by which it is found."""

    message: str
    instance: UUID | None = None
    request: UUID | None = None
    host: str = ""
    cell: str = ""
    trace: str = ""
    project: str = ""
    name: str = ""
    by: str = ""
    count: str = ""
    attempt: str = ""
    reason: str = ""


_TEXT_OF_JSON = bytes.maketrans(b",:", b" =")
_encode_lines = msgspec.json.Encoder().encode_lines


def _text_of(line: str) -> str:
    if "=" in line:
        said: dict[str, str] = msgspec.json.decode(line)
        message = said.pop("message")
        texts = {name: msgspec.json.encode(value).decode() for name, value in said.items()}
        return " ".join(
            [message, *[f"{name}={text if '=' in text else text[1:-1]}" for name, text in texts.items()]]
        )
    # Quotes inside of values are escaped, so only the document's own are found here.
    text = line.replace('","', " ").replace('":"', "=")
    return text.removeprefix('{"message=').removesuffix('"}')


class _Lines:
    """The lines of one batch, as the message of a log record. They are written in one of two forms."""

    def __init__(self, lines: Sequence[InstanceLine]) -> None:
        self._encoded = _encode_lines(lines)[:-1]
        self._count = len(lines)

    def as_json(self, beginning: str) -> str:
        return self._encoded.decode().replace('{"message":', f'{beginning},"message":')

    def as_text(self, beginning: str) -> str:
        """Each line as `beginning message instance=... host=...`. A value with `=` is in quotes, or it could pass for other fields."""
        encoded = self._encoded
        if b"=" not in encoded:
            plain, fields = encoded.translate(_TEXT_OF_JSON, b'"{}'), encoded.count(b":")
            removed = len(encoded) - len(plain)
            if removed == 4 * fields + 2 * self._count and encoded.count(b",") == fields - self._count:
                # No value has a character that JSON uses, which is usual: half as dear as the other way.
                return plain.decode().replace("message=", beginning)
        return "\n".join(f"{beginning}{_text_of(line)}" for line in encoded.decode().split("\n"))

    def __str__(self) -> str:
        return self.as_text("")


class InstanceLog:
    """Writes the lines of a batch at the level INFO."""

    def __init__(self, name: str) -> None:
        self._log = logging.getLogger(name)

    @property
    def is_on(self) -> bool:
        """Are lines written? If not, the caller need not make them."""
        return self._log.isEnabledFor(logging.INFO)

    def write(self, lines: Sequence[InstanceLine]) -> None:
        if lines:
            self._log.info(_Lines(lines))


class TextFormatter(logging.Formatter):
    """Writes each log record as one line of text. A record with several lines has as many, each with the same beginning."""

    def __init__(self) -> None:
        super().__init__(TEXT)
        # The last second of which a record was written, and its text: to make that takes as long as the rest of a line.
        self._second = (0, "")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802, ARG002 - as logging has it
        second, text = self._second
        if second != int(record.created):
            second = int(record.created)
            text = time.strftime(self.default_time_format, self.converter(second))
            self._second = second, text
        return f"{text},{record.msecs:03.0f}"

    def format(self, record: logging.LogRecord) -> str:
        if not isinstance(record.msg, _Lines):
            return super().format(record)
        return record.msg.as_text(f"{self.formatTime(record)} {record.name} {record.levelname} ")


class JsonFormatter(logging.Formatter):
    """Writes each log record as one JSON object. Fields given as `extra` keep their names and types."""

    def format(self, record: logging.LogRecord) -> str:
        if isinstance(record.msg, _Lines):
            at = datetime.fromtimestamp(record.created, UTC)
            facts = {"at": at, "level": record.levelname, "logger": record.name}
            return record.msg.as_json(msgspec.json.encode(facts).decode()[:-1])
        line: dict[str, Any] = {
            "at": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= {key: value for key, value in vars(record).items() if key not in _USUAL and key not in line}
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=repr).decode()


def begin_to_log(environment: Mapping[str, str], *, level: str = "INFO") -> None:
    """Configure logging from MOOR_LOG_LEVEL and MOOR_LOG_FORMAT. `level` counts if MOOR_LOG_LEVEL is not set."""
    level = _one_of("MOOR_LOG_LEVEL", environment.get("MOOR_LOG_LEVEL") or level, LEVELS, str.upper)
    form = _one_of("MOOR_LOG_FORMAT", environment.get("MOOR_LOG_FORMAT") or "text", FORMATS, str.lower)
    handler = logging.StreamHandler()
    handler.setFormatter(_formatter(form))
    logging.basicConfig(level=level, handlers=(handler,))


def check_level(level: str) -> str:
    """The name of a level as `logging` knows it. Raises ValueError if there is no such level."""
    return _known(level, LEVELS, str.upper)


def check_format(form: str) -> str:
    """The name of a format. Raises ValueError if there is no such format."""
    return _known(form, FORMATS, str.lower)


def log_again(*, level: str, form: str) -> None:
    """Change the level and the format of a process that logs already."""
    root = logging.getLogger()
    root.setLevel(level)
    for handler in root.handlers:
        if isinstance(handler.formatter, JsonFormatter | TextFormatter):
            handler.setFormatter(_formatter(form))


def _formatter(form: str) -> logging.Formatter:
    return JsonFormatter() if form == "json" else TextFormatter()


def _one_of(name: str, text: str, allowed: tuple[str, ...], fold: Callable[[str], str]) -> str:
    try:
        return _known(text, allowed, fold)
    except ValueError as wrong:
        raise ValueError(f"{name} is {text!r}, {wrong}") from None


def _known(text: str, allowed: tuple[str, ...], fold: Callable[[str], str]) -> str:
    value = fold(text.strip())
    if value not in allowed:
        raise ValueError(f"must be one of {', '.join(allowed)}")
    return value


# Traces: where a message's handling is part of one, and what begins and ends such parts (spans).
#
# The envelope of a message has a W3C trace context (`traceparent`). It goes along with whatever follows from the message. Without
# a tracer, which is the default, that is all, and it costs nothing. With one (bus/otel.py), each worker adds a
# span for each message of a trace, and names it as the parent of what follows.


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
