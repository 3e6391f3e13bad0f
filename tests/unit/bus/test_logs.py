"""The log of a worker, as text and as JSON."""

import json
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from uuid import UUID

import pytest
from msgspec import structs

from kit.logs import InstanceLine, InstanceLog, JsonFormatter, TextFormatter, begin_to_log


def a_record(message: str, *args: object, **extra: object) -> logging.LogRecord:
    return logging.getLogger("bus.x").makeRecord(
        "bus.x", logging.WARNING, __file__, 1, message, args, None, extra=extra
    )


@contextmanager
def as_in_a_new_process() -> Iterator[logging.Logger]:
    """The logger that a worker sets up; restored afterwards. pytest gives it handlers of its own."""
    root = logging.getLogger()
    handlers, level = root.handlers, root.level
    root.handlers = []
    try:
        yield root
    finally:
        root.handlers = handlers
        root.setLevel(level)


@pytest.mark.parametrize(
    ("environment", "levels"),
    [
        ({}, ["INFO", "WARNING"]),
        ({"MOOR_LOG_LEVEL": " debug"}, ["DEBUG", "INFO", "WARNING"]),
        ({"MOOR_LOG_LEVEL": "Warning", "MOOR_LOG_FORMAT": "text"}, ["WARNING"]),
        ({"MOOR_LOG_LEVEL": "INFO", "MOOR_LOG_FORMAT": "JSON"}, ["INFO", "WARNING"]),
    ],
)
def test_a_process_logs_at_the_configured_level_and_in_the_configured_format(
    environment: dict[str, str], levels: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with as_in_a_new_process() as root:
        begin_to_log(environment)
        for level in ("DEBUG", "INFO", "WARNING"):
            root.getChild("bus.x").log(logging.getLevelNamesMapping()[level], "it is %s", level)

    lines = capsys.readouterr().err.splitlines()
    if environment.get("MOOR_LOG_FORMAT") == "JSON":
        assert [json.loads(line)["message"] for line in lines] == [f"it is {level}" for level in levels]
    else:
        texts = [re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} (.*)", line) for line in lines]
        assert [text and text[1] for text in texts] == [f"bus.x {level} it is {level}" for level in levels]


def test_a_traceback_is_one_field_and_an_entry_is_one_line() -> None:
    record = a_record("it\nfailed")
    with pytest.raises(ValueError, match="planted") as raised:
        int("planted")
    record.exc_info = (raised.type, raised.value, raised.tb)

    text = JsonFormatter().format(record)

    assert "\n" not in text
    assert "ValueError: invalid literal" in json.loads(text)["exception"]


INSTANCE, REQUEST = UUID("4238bc08-5119-4acf-b0bc-724c2c964b7c"), UUID("4238bc08-5119-4acf-b0bc-724c2c964b70")
PLACED = InstanceLine("placed", INSTANCE, REQUEST, "h1", "harbour", name="web")
ODD = InstanceLine("error", INSTANCE, reason='no host: {"x": 1}, really\n2026 moor INFO a forged line')


def lines_of(formatter: logging.Formatter, *lines: InstanceLine) -> list[str]:
    written: list[str] = []

    class Kept(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            written.extend(formatter.format(record).split("\n"))

    log, handler = logging.getLogger("moor.instances"), Kept()
    log.addHandler(handler)
    before = log.level
    log.setLevel(logging.INFO)
    try:
        InstanceLog("moor.instances").write(lines)
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
    return written


def test_each_line_of_a_batch_is_a_line_with_its_own_beginning_as_text() -> None:
    placed = rf"^\d{{4}}-\S+ \S+ moor.instances INFO placed instance={INSTANCE} request={REQUEST} host=h1 cell=harbour name=web$"

    for line in lines_of(TextFormatter(), PLACED, PLACED):
        assert re.match(placed, line)
    plain, odd = lines_of(TextFormatter(), PLACED, ODD)
    assert re.match(placed, plain), "also beside a line that is written in the other way"
    assert odd.endswith(
        rf"INFO error instance={INSTANCE} reason=no host: {{\"x\": 1}}, really\n2026 moor INFO a forged line"
    )


@pytest.mark.parametrize("name", ["message=gone", "web host=h2", "a=b", '=", "', "message="])
def test_no_name_passes_for_other_fields_of_its_line_or_its_beginning(name: str) -> None:
    line, _ = lines_of(TextFormatter(), structs.replace(PLACED, name=name), PLACED)

    assert line.endswith(
        f"INFO placed instance={INSTANCE} request={REQUEST} host=h1 cell=harbour name={json.dumps(name)}"
    )


def test_each_line_of_a_batch_is_an_object_as_json() -> None:
    placed, odd = map(json.loads, lines_of(JsonFormatter(), PLACED, ODD))

    assert placed.pop("at").endswith("Z")
    assert placed == {
        "level": "INFO",
        "logger": "moor.instances",
        "message": "placed",
        "instance": str(INSTANCE),
        "request": str(REQUEST),
        "host": "h1",
        "cell": "harbour",
        "name": "web",
    }
    assert odd["reason"] == ODD.reason
