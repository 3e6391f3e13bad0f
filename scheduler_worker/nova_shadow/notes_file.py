"""Keeps the notes of shadow mode in two files, one line of JSON for each note: the present one, and the one before it.

When the present one has half of the notes that are kept, or its first note is half as old as notes may become, it takes the place of
the one before it. So the oldest notes go, and no file is ever rewritten.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

import msgspec

from scheduler_worker.nova_shadow.core.notes import ShadowNote

log = logging.getLogger(__name__)

BEFORE = ".before"
# What one file of notes is for: some days of a cloud, and no register of what its users asked for.
NOTES_MAX, KEPT_S = 100_000, 14 * 86_400.0

_encode = msgspec.json.Encoder().encode
_decoder = msgspec.json.Decoder(ShadowNote)


class NotesFile:
    """Raises OSError if the files cannot be read or written."""

    def __init__(
        self, path: Path, *, notes_max: int = NOTES_MAX, kept_s: float = KEPT_S, clock: Callable[[], datetime]
    ) -> None:
        self._path = path
        self._lines_max = max(1, notes_max // 2)
        self._kept_s = kept_s
        self._clock = clock
        self._lines, self._first_at, self._is_torn = _measured(path)

    def add(self, notes: Sequence[ShadowNote]) -> None:
        for start in range(0, len(notes), self._lines_max):
            self._add(notes[start : start + self._lines_max])

    def _add(self, notes: Sequence[ShadowNote]) -> None:
        if self._is_full(len(notes)):
            self._path.replace(_before(self._path))
            self._lines, self._first_at, self._is_torn = 0, None, False
        # A line that a crash has cut off is ended first.
        start = b"\n" if self._is_torn else b""
        text = start + b"".join(_encode(each) + b"\n" for each in notes)
        with open_notes(self._path) as opened:
            opened.write(text)
        self._is_torn = False
        self._lines += len(notes)
        self._first_at = self._first_at or notes[0].at

    def _is_full(self, more: int) -> bool:
        if not self._lines:
            return False
        age_s = 0.0 if self._first_at is None else (self._clock() - self._first_at).total_seconds()
        return self._lines + more > self._lines_max or age_s > self._kept_s / 2

    def prune(self) -> None:
        """Delete the files whose last notes are too old."""
        for file in (_before(self._path), self._path):
            with suppress(FileNotFoundError):
                if self._clock().timestamp() - file.stat().st_mtime > self._kept_s:
                    file.unlink()
                    if file == self._path:
                        self._lines, self._first_at, self._is_torn = 0, None, False


class NotesRead(msgspec.Struct, frozen=True):
    """The notes, the oldest first, and how many lines could not be read."""

    notes: tuple[ShadowNote, ...]
    unreadable: int = 0


def open_notes(path: Path) -> BinaryIO:
    """The file, to write at its end. Only its owner reads what users asked for."""
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600), "ab")


def read_notes(path: Path, since: datetime | None = None) -> NotesRead:
    """All notes of requests that came since then. Raises FileNotFoundError if there are none yet."""
    notes: list[ShadowNote] = []
    unreadable = 0
    files = [each for each in (_before(path), path) if each.exists()]
    if not files:
        raise FileNotFoundError(path)
    for file in files:
        for line in _lines_of(file):
            try:
                note = _decoder.decode(line)
            except (msgspec.DecodeError, UnicodeError):
                unreadable += 1
                continue
            if since is None or note.at >= since:
                notes.append(note)
    return NotesRead(tuple(sorted(notes, key=lambda each: (each.at, each.instance))), unreadable)


def _before(path: Path) -> Path:
    return path.with_name(path.name + BEFORE)


def _lines_of(file: Path) -> Iterator[bytes]:
    with file.open("rb") as opened:
        for line in opened:
            if stripped := line.strip():
                yield stripped


def _measured(path: Path) -> tuple[int, datetime | None, bool]:
    """How many lines the file has, the time of the first note, and whether its last line has no end."""
    if not path.exists():
        return 0, None, False
    lines, first_at, last = 0, None, b"\n"
    with path.open("rb") as opened:
        for line in opened:
            last = line
            lines += 1
            if first_at is None:
                try:
                    first_at = _decoder.decode(line).at
                except (msgspec.DecodeError, UnicodeError):
                    log.warning("%s: a line is no note of shadow mode, and is left out", path)
    return lines, first_at, not last.endswith(b"\n")
