"""A file that remembers which consumers Nova did not know, and since when: `moor audit --heal` may be run by a timer."""

from collections.abc import Mapping
from pathlib import Path

import msgspec
from msgspec import Struct

from engine.inventories import ConsumerId
from kit.errors import NOT_JSON
from moor.books.rules import FirstLook
from moor.options import fail, tell
from moor.private_files import replace_private


class _Kept(Struct, frozen=True):
    nova: str
    looks: tuple[FirstLook, ...]


class LooksInFile:
    """`nova` names the Nova that was asked: looks of another one count for nothing."""

    def __init__(self, file: Path, nova: str) -> None:
        self._file = file
        self._nova = nova

    def load(self) -> Mapping[ConsumerId, FirstLook]:
        try:
            kept = msgspec.json.decode(self._file.read_bytes(), type=_Kept)
        except FileNotFoundError:
            return {}
        except OSError as problem:
            fail(f"{self._file} cannot be read: {problem.strerror or problem}")
        except NOT_JSON as problem:
            tell(
                f"{self._file} is not as this command writes it, and counts for nothing: {problem}", "yellow"
            )
            return {}
        if kept.nova != self._nova or any(each.at.tzinfo is None for each in kept.looks):
            return {}
        return {each.consumer: each for each in kept.looks}

    def save(self, looks: Mapping[ConsumerId, FirstLook]) -> None:
        if not looks and not self._file.exists():
            return
        ordered = tuple(looks[id_] for id_ in sorted(looks))
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            replace_private(self._file, msgspec.json.encode(_Kept(self._nova, ordered)).decode() + "\n")
        except OSError as problem:
            fail(
                f"{self._file} cannot be written, so no later audit would know this look: {problem.strerror or problem}"
            )
