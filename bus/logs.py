"""Log formats: text for people, or JSON with one object per line for programs."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec

TEXT = "%(asctime)s %(name)s %(levelname)s %(message)s"
FORMATS = ("text", "json")
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

# Fields that every log record has; others were given as `extra`.
_USUAL = frozenset((*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"))


class JsonFormatter(logging.Formatter):
    """Writes each log record as one JSON object. Fields given as `extra` keep their names and types."""

    def format(self, record: logging.LogRecord) -> str:
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
    handler.setFormatter(JsonFormatter() if form == "json" else logging.Formatter(TEXT))
    logging.basicConfig(level=level, handlers=(handler,))


def _one_of(name: str, text: str, allowed: tuple[str, ...], fold: Any) -> str:
    value: str = fold(text.strip())
    if value not in allowed:
        raise ValueError(f"{name} is {text!r}, must be one of {', '.join(allowed)}")
    return value
