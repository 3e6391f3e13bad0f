"""The hosts that changed so that they may have room where they had none: more is free, or other facts are known.

Nothing is recorded while no instance waits for room. A host that only took something is not recorded either.
"""

from collections.abc import Callable, Iterable


class TouchedHosts:
    """Hosts by their rows in the picture. `everything`: a change that may concern any host."""

    def __init__(self) -> None:
        self.is_watched = False
        self.rows: set[int] = set()
        self.everything = False
        self._tell: Callable[[], None] = lambda: None

    def tell(self, listener: Callable[[], None]) -> None:
        """Set the listener that is called after each recorded change."""
        self._tell = listener

    def watch(self, *, watches: bool) -> None:
        """Begin to record changes, or stop. The changes recorded so far are forgotten."""
        self.is_watched = watches
        self.rows.clear()
        self.everything = False

    def add(self, rows: Iterable[int]) -> None:
        if self.is_watched:
            before = len(self.rows)
            self.rows.update(row for row in rows if row >= 0)
            if len(self.rows) > before:
                self._tell()

    def add_all(self) -> None:
        if self.is_watched and not self.everything:
            self.everything = True
            self._tell()

    def take(self) -> set[int] | None:
        """The rows that are recorded, which are then forgotten; None if any host may have changed."""
        taken = None if self.everything else set(self.rows)
        self.rows.clear()
        self.everything = False
        return taken
