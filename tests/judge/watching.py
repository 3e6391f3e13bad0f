"""Notes which tests run which places, in this process and in those that it starts: each function begins with a line that says so.

It must begin before the product is imported, so this file imports nothing of it.
"""

import ast
import builtins
import importlib.abc
import importlib.machinery
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from tests.judge.places import ROOMS, ROOT, functions_in, is_text

# The folder of the notes, handed on to the processes that tests start; and the test that runs now, set by pytest.
WATCHED = "MOOR_TEST_WATCHED"
CURRENT = "PYTEST_CURRENT_TEST"
_RAN = "__moor_ran__"


class _Notes:
    def __init__(self) -> None:
        self._test = ""
        self._noted: set[str] = set()

    def ran(self, place: str) -> None:
        if place not in self._noted:
            self._noted.add(place)
            if test := os.environ.get(CURRENT, "").rpartition(" (")[0]:
                self._write(test, place)

    def next_test(self) -> None:
        self._noted.clear()

    def _write(self, test: str, place: str) -> None:
        with (Path(os.environ[WATCHED]) / str(os.getpid())).open("a") as notes:
            if self._test != test:
                self._test = test
                notes.write(f"{test}\n")
            notes.write(f"\t{place}\n")


notes = _Notes()


class _Marking(importlib.machinery.SourceFileLoader):
    def get_code(self, fullname: str) -> CodeType:
        path = self.get_filename(fullname)
        tree = ast.parse(self.get_data(path), path)
        file = Path(path).relative_to(ROOT)
        for name, node in functions_in(tree).items():
            mark = ast.parse(f"{_RAN}({f'{file}:{name}'!r})").body
            for each in ast.walk(mark[0]):
                ast.copy_location(each, node.body[0])
            at = 1 if is_text(node.body[0]) else 0
            node.body[at:at] = mark
        return compile(tree, path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] not in ROOMS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if (
            spec
            and isinstance(spec.loader, importlib.machinery.SourceFileLoader)
            and "migrations" not in fullname
        ):
            spec.loader = _Marking(spec.loader.name, spec.loader.path)
        return spec


def watch_as_asked() -> None:
    if WATCHED in os.environ and not hasattr(builtins, _RAN):
        early = sorted(name for name in sys.modules if name.partition(".")[0] in ROOMS)
        assert not early, f"imported before the notes began: {early}"
        setattr(builtins, _RAN, notes.ran)
        sys.meta_path.insert(0, _Finder())


def asked() -> dict[str, Any]:
    """What a process must be started with, so that it notes too: nothing, unless notes are taken."""
    if WATCHED not in os.environ:
        return {}
    return {each: os.environ[each] for each in (WATCHED, CURRENT) if each in os.environ}
