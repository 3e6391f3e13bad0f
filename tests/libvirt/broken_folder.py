"""A folder whose file system hangs, or answers with an error such as ESTALE: a file server that is away, for the processes of tests.

Python tells an audit hook before it opens, lists, makes, renames or removes a file, and the hook does what the folder does. So this
breaks the folder for one process, and for nothing that it starts.
"""

import os
import sys
import threading
from pathlib import Path
from typing import Any

_EVENTS = frozenset(
    f"os.{each}" for each in ("listdir", "scandir", "mkdir", "rename", "remove", "rmdir", "symlink", "utime")
) | {"open"}
_folders: list["BrokenFolder"] = []


class LoopWaits(BaseException):
    """The event loop would wait for a folder that hangs."""


class BrokenFolder:
    """It works until it is told to `hang` or to `fail`, and again after `heal`."""

    def __init__(self, folder: Path, loop_thread: threading.Thread | None = None) -> None:
        """A thread that may not wait for the folder, `loop_thread`, gets `LoopWaits`."""
        self._folder = str(folder)
        self._loop_thread = loop_thread
        self._errno = 0
        self._works = threading.Event()
        self._works.set()
        self.waiting = 0
        if not _folders:
            sys.addaudithook(_hook)
        _folders.append(self)

    def hang(self) -> None:
        self._works.clear()

    def fail(self, errno: int) -> None:
        self._errno = errno

    def heal(self) -> None:
        self._errno = 0
        self._works.set()

    def use(self, path: str) -> None:
        if not path.startswith(self._folder):
            return
        if self._errno:
            raise OSError(self._errno, os.strerror(self._errno), path)
        if self._works.is_set():
            return
        if threading.current_thread() is self._loop_thread:
            raise LoopWaits(path)
        self.waiting += 1
        self._works.wait()
        self.waiting -= 1


def _hook(event: str, args: tuple[Any, ...]) -> None:
    if event in _EVENTS:
        for path in args[:2]:
            if isinstance(path, str | Path):
                for folder in _folders:
                    folder.use(str(path))
