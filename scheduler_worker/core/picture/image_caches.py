"""Which hosts have which images cached, as they told last; hosts are named by their rows."""

from collections.abc import Iterable

import numpy as np

from placement_worker.core.candidates.columns import Flags


class ImageCaches:
    def __init__(self) -> None:
        self._rows: dict[str, set[int]] = {}
        self._of_row: dict[int, frozenset[str]] = {}

    def put(self, row: int, images: Iterable[str]) -> bool:
        """Replace the cached images of the host in this row. Returns whether they are others than before."""
        before, now = self._of_row.pop(row, frozenset()), frozenset(images)
        for image in before - now:
            self._rows[image].discard(row)
            if not self._rows[image]:
                del self._rows[image]
        for image in now - before:
            self._rows.setdefault(image, set()).add(row)
        if now:
            self._of_row[row] = now
        return now != before

    def knows(self, image: str) -> bool:
        """Does any host have this image in its cache?"""
        return image in self._rows

    def having(self, image: str, length: int) -> Flags:
        """A flag for each of `length` rows: does this host have the image in its cache?"""
        flags = np.zeros(length, dtype=np.bool_)
        flags[list(self._rows.get(image, ()))] = True
        return flags
