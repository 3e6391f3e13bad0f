"""Marks: lines of the log that name rare paths of the product. A test that is there to drive the product down one says so by
`@pytest.mark.hits("the text of the line")`. It fails if the product does not get there, so a path that moved leaves no empty test behind.

Only lines of this process are heard, and not those of workers that a test starts.
"""

import ast
import logging
from collections.abc import Iterator
from contextlib import contextmanager

from tests.judge.places import ROOMS, ROOT, files_of, source_of, tree_of

# All but the log of each boot (kit/logs.py), which is not written unless somebody reads it.
_HEARD = [each for each in ROOMS if each != "moor"]


class _Heard(logging.Handler):
    """The texts of all lines, without the values in them."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: set[str] = set()

    def emit(self, record: logging.LogRecord) -> None:
        if isinstance(record.msg, str):
            self.texts.add(record.msg)


@contextmanager
def hits(*marks: str) -> Iterator[None]:
    """A context that is left by an AssertionError if the product did not come by all of these marks in it."""
    if not marks:
        yield
        return
    heard, logs = _Heard(), [logging.getLogger(each) for each in _HEARD]
    levels = [each.level for each in logs]
    for log in logs:
        log.addHandler(heard)
        log.setLevel(logging.DEBUG)
    try:
        yield
    finally:
        for log, level in zip(logs, levels, strict=True):
            log.removeHandler(heard)
            log.setLevel(level)
    missed = [each for each in marks if each not in heard.texts]
    assert not missed, f"the test did not get to where the product logs {missed}: it tests something else now"


def lines_of_rooms() -> Iterator[tuple[str, bool]]:
    """The text of each line that the rooms log, and whether it is a mark: a line for nothing but tests has no values."""
    for file in files_of():
        if "log." not in source_of(file):
            continue
        for node in ast.walk(tree_of(file)):
            match node:
                case ast.Call(ast.Attribute(ast.Name("log"), "log"), [_, ast.Constant(str(text)), *_]):
                    yield text, False
                case ast.Call(ast.Attribute(ast.Name("log"), level), [ast.Constant(str(text)), *values]):
                    yield text, level == "debug" and not values


def asked_for() -> Iterator[str]:
    """The texts that tests name."""
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        if "hits(" not in (source := file.read_text()):
            continue
        for node in ast.walk(ast.parse(source)):
            match node:
                case ast.Call(ast.Attribute(_, "hits") | ast.Name("hits"), texts):
                    found = [each.value for each in texts if isinstance(each, ast.Constant)]
                    yield from (each for each in found if isinstance(each, str))
